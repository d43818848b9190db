"""A made-up map around a made-up head, and an encoder that gives made-up tokens: what editing a large map needs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfa.maps.state import DATABASE, MapState, NamedHead
from tfa.maps.stored_head import StoredHead
from tfa.maps.stored_space import StoredSpaces
from tfa.method.scorer import as_residual_side
from tfa.types import ImageRecord

WORDS = 64  # of the residual heads that compete with a second-order one
THREE = [0.1] * 3  # a number of each construction
STRENGTHS = {**dict.fromkeys(("rho", "alpha", "participation", "displacement"), THREE), "c": 0.6, "beta": 0.3}
# fmt: off
DECISIONS: dict[str, dict[str, Any]] = {
    "paper": {
        "assignment": "soft", "carrier": "adaptive", "c": 0.6, "beta": 0.3,
        "admit_cls": False, "sigma_local": THREE, "sigma_cls": THREE,
    },
    "judged": {
        "representation": "second_order", "carrier": "tempered", "c": 0.6, "beta": 0.3,
        "centring": False, "score_calibrated": False,
    },
}
EVIDENCE: dict[str, dict[str, Any]] = {
    "paper": {
        "pseudo_queries": 0, "assignments": {"hard": STRENGTHS, "soft": STRENGTHS}, "candidates": {},
        "reasons": dict.fromkeys(("assignment", "strengths", "admit_cls", "carrier"), "made up"),
    },
    "judged": {
        "photos": 0, "kind": "made up", "incumbent": "second_order/tempered", "candidates": {},
        "strengths": {"second_order": STRENGTHS}, "reasons": {"judge": "made up"},
    },
}
# fmt: on


class SyntheticEncoder:
    """Gives every photo the same tokens, at once: what is left of an edit is the map's own time."""

    id: str = "made-up"
    fingerprint: str = hashlib.sha256(b"made up").hexdigest()
    model: str = fingerprint
    global_channels: int | None = None
    notes: tuple[str, ...] = ()
    device: str = "cpu"

    def __init__(self, patches: np.ndarray, grid: tuple[int, int]) -> None:
        self.patches, self.grid, self.channels = patches, grid, int(patches.shape[1])

    def encode(self, images: Sequence[Any]) -> tuple[np.ndarray, np.ndarray | None]:
        return np.repeat(self.patches[None], len(images), axis=0), None


def synthetic_state(
    head: StoredHead, encoder: SyntheticEncoder | None = None, spaces: StoredSpaces | None = None
) -> MapState:
    """The first state of a map of that head, with records as long as those of real photos.

    A second-order head lives in `spaces`; its map is a judged one and has the words of the heads that competed.
    """
    images = len(head.scorer.bias)
    records = []
    for number in range(images):
        digest = hashlib.sha256(number.to_bytes(8, "little")).hexdigest()
        records.append(ImageRecord(id=number, path=f"/photos/of/a/town/{number:08d}.jpg", digest=digest, fitted=True))
    facts = {
        "id": SyntheticEncoder.id,
        "fingerprint": SyntheticEncoder.fingerprint,
        "channels": head.scorer.sides[0].channels,
        "global_channels": None,
        "grid": [1, 1] if encoder is None else list(encoder.grid),
        "weights": None,
    }
    kind = "paper" if spaces is None else "judged"
    named = NamedHead(DATABASE, head, DECISIONS[kind], EVIDENCE[kind], "database", 0)
    if spaces is not None:
        words = np.random.default_rng(0).standard_normal((1, WORDS, head.scorer.sides[0].channels), np.float32)
        return MapState(facts, {}, (named,), records, words, kind, spaces, next_id=images)
    words = np.stack([as_residual_side(head.scorer.sides[0]).centers] * 3)
    return MapState(facts, {}, (named,), records, words, next_id=images)
