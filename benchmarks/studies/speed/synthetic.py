"""Synthetic tokens, map states and heads of any size."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.tokens import Tokens
from tfa.errors import BadSpec
from tfa.maps.folder import writer
from tfa.maps.state import DATABASE, MapState, NamedHead
from tfa.maps.stored_head import INTEGERS, StoredHead, StoredSpace, StoredSpaces
from tfa.method import second_order_space
from tfa.method.carriers import MEAN, PAPER_CARRIERS, SIGMAS, carrier_terms
from tfa.method.decisions import SpectralStrengths
from tfa.method.evidence import Mask
from tfa.method.scorer import ResidualSide, Scorer, ScoreTerm, SecondOrderSide, as_residual_side
from tfa.method.second_order import DIRECTION_COUNT, descriptor_width
from tfa.method.second_order_space import MAX_PSEUDO, normalize_rows
from tfa.method.spectrum import Geometry
from tfa.search.gallery import BaseRows, Gallery, ScaledRows
from tfa.search.quantized import ROW_TOP, SEVEN_TOP, QuantizedRows
from tfa.types import ImageRecord

THINGS = 400  # kinds of things
SEEN = 44  # of them per image: half of 64 words then have no patch, as in photos
_NOISE = 0.7
_POOL = 16_384  # patches of noise; every image uses a run of them


class LazyTokens(Sequence):
    """Patches `(n, d)` of images, float16, generated deterministically on access.

    `seconds` is the time spent on generating them, which is excluded from measurements.
    """

    def __init__(self, images: int, patches: int, channels: int) -> None:
        rng = np.random.default_rng(0)
        self.images, self.patches, self.seconds = images, patches, 0.0
        self.things = rng.standard_normal((THINGS, channels), np.float32)
        self.noise = _NOISE * rng.standard_normal((max(_POOL, 2 * patches), channels), np.float32)
        self.shapes = np.tile(np.array([patches, channels], np.int64), (images, 1))

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, index: Any) -> Any:
        started = time.perf_counter()
        kinds, first = self._drawn(int(index))
        made = (self.things[kinds] + self.noise[first : first + self.patches]).astype(np.float16)
        self.seconds += time.perf_counter() - started
        return made

    def _drawn(self, index: int) -> tuple[np.ndarray, int]:
        """Return the thing that each patch shows, and where its noise starts."""
        rng = np.random.default_rng((1, index))
        seen = rng.integers(0, THINGS, SEEN)
        return seen[rng.integers(0, SEEN, self.patches)], int(rng.integers(0, len(self.noise) - self.patches))

    def global_tokens(self) -> np.ndarray:
        """Return the mean of each image's patches without noise, `(b, d)`."""
        tokens = np.empty((self.images, self.things.shape[1]), np.float32)
        for index in range(self.images):
            kinds, counts = np.unique(self._drawn(index)[0], return_counts=True)
            tokens[index] = (counts / self.patches).astype(np.float32) @ self.things[kinds]
        return tokens


def lazy_tokens(images: int, patches: int, channels: int) -> tuple[Tokens, LazyTokens]:
    """Return structured tokens and their generator."""
    maker = LazyTokens(images, patches, channels)
    return Tokens(maker, maker.global_tokens()), maker


THREE = [0.1] * 3  # one number per construction
_STATE_STRENGTHS = {**dict.fromkeys(("rho", "alpha", "participation", "displacement"), THREE), "c": 0.6, "beta": 0.3}
# fmt: off
DECISIONS: dict[str, dict[str, Any]] = {
    "paper": {
        "assignment": "soft", "carrier": "adaptive", "c": 0.6, "beta": 0.3,
        "admit_cls": False, "sigma_local": THREE, "sigma_cls": THREE,
    },
    "second-order": {
        "representation": "second_order", "carrier": "tempered", "c": 0.6, "beta": 0.3,
        "centring": False, "score_calibrated": False,
    },
}
EVIDENCE: dict[str, dict[str, Any]] = {
    "paper": {
        "pseudo_queries": 0, "assignments": {"hard": _STATE_STRENGTHS, "soft": _STATE_STRENGTHS}, "candidates": {},
        "reasons": dict.fromkeys(("assignment", "strengths", "admit_cls", "carrier"), "made up"),
    },
    "second-order": {"strengths": {"second_order": _STATE_STRENGTHS}, "reasons": {"representation": "made up"}},
}
# fmt: on


class SyntheticEncoder:
    """Returns the same tokens for every photo at once, so that only the map's time of an edit remains."""

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
    """Return the first state of a map of this head, with records as long as those of real photos.

    A second-order head uses `spaces`.
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
    kind = "paper" if spaces is None else "second-order"
    named = NamedHead(DATABASE, head, DECISIONS[kind], EVIDENCE[kind], "database", 0)
    if spaces is not None:
        return MapState(facts, {}, (named,), records, None, kind, spaces, next_id=images)
    words = np.stack([as_residual_side(head.scorer.sides[0]).centers] * 3)
    return MapState(facts, {}, (named,), records, words, next_id=images)


def weight(state: MapState) -> int:
    """Return the size of the map's files in bytes."""
    with tempfile.TemporaryDirectory(prefix="tfa-size-") as folder:
        writer.write_new(Path(folder) / "made.tfa", state, overwrite=False)
        return sum(file.stat().st_size for file in (Path(folder) / "made.tfa").iterdir())


MAX_RANK = 4096  # maximum directions of a geometry
_STRENGTHS = {"c": 0.6, "beta": 0.3}  # strengths of the adaptive carrier, so that all its terms are used


def synthetic_head(
    images: int, carrier: str, *, words: int = 64, channels: int = 384, storage: str = INTEGERS
) -> StoredHead:
    """Return a head of one vocabulary under soft assignment, with `images` random rows."""
    if carrier not in PAPER_CARRIERS or images < 3:
        raise BadSpec(
            f"carrier={carrier!r}, images={images}: use one of {', '.join(PAPER_CARRIERS)} and at least 3 images"
        )
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((words, channels), np.float32)
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    terms, rank = carrier_terms(carrier, _STRENGTHS["c"], _STRENGTHS["beta"]), min(images - 1, MAX_RANK)
    descriptors = _rows(rng, images, words * channels, SEVEN_TOP, storage)
    side = ResidualSide("soft", centers, 0.01)
    if any(term.gamma is not None for term in terms):
        eta = np.geomspace(0.05 * images, 1e-4 * images, rank)
        vectors = np.empty((images, 0 if storage == INTEGERS else rank), np.float32)
        directions = None
        if storage == INTEGERS:
            levels, fine = _levels(rng, (rank, images), ROW_TOP), _levels(rng, (rank, images), ROW_TOP)
            directions = QuantizedRows(
                levels, np.full(rank, 1 / (60 * np.sqrt(images)), np.float32), images, ROW_TOP, fine
            )
        else:
            vectors = (rng.standard_normal((images, rank), np.float32) / np.sqrt(images)).astype(storage)
        means = np.full(images, 0.3)
        geometry = Geometry(np.arange(images), vectors, eta, means, 0.3, 50.0)
        side = ResidualSide("soft", centers, 0.01, geometry, descriptors, directions)
    parts = []
    for term in terms:
        rows = descriptors if term.gamma is None else _rows(rng, images, rank, ROW_TOP, storage)
        parts.append(ScoreTerm(term.weight, 0, term.gamma, Gallery.of(rows)))
    return StoredHead(Scorer((side,), tuple(parts), np.zeros(images)), storage)


def _rows(rng: np.random.Generator, images: int, width: int, top: int, storage: str) -> BaseRows:
    """Make rows of about unit length."""
    levels = _levels(rng, (images, width), top)
    step = np.full(images, np.sqrt(3 / width) / top, np.float32)
    if storage == INTEGERS:
        return QuantizedRows(levels, step, width, top)
    return (levels * np.float32(step[0])).astype(storage)


def _levels(rng: np.random.Generator, shape: tuple[int, int], top: int) -> np.ndarray:
    return rng.integers(-top, top + 1, shape, np.int8)


def synthetic_spaces(images: int, channels: int = 384, storage: str = INTEGERS) -> StoredSpaces:
    """Return a second-order space of one construction, with `images` random rows."""
    rng, directions = np.random.default_rng(0), min(DIRECTION_COUNT, channels)
    width = descriptor_width(directions)
    rank = min(images - 1, second_order_space.MAX_RANK, width)
    onto = np.linalg.qr(rng.standard_normal((channels, directions)))[0].T.astype(np.float32)
    mean = rng.standard_normal(width, np.float32) / np.float32(np.sqrt(width))
    side = SecondOrderSide(onto, mean, _rows(rng, rank, width, SEVEN_TOP, storage), np.geomspace(1e-2, 1e-4, rank))
    rows, pseudo = Gallery.of(_rows(rng, images, rank, ROW_TOP, storage)), np.arange(min(images, MAX_PSEUDO))
    space = StoredSpace(side, rows, np.ones(images, np.float32), pseudo, Mask(pseudo, pseudo))
    strengths = SpectralStrengths.of([0.9] * 3, [20.0] * 3, [0.1] * 3)
    return StoredSpaces((space,), strengths, dict.fromkeys(SIGMAS, (0.1,) * 3), storage)


def second_order_head(spaces: StoredSpaces, carrier: str = "tempered") -> StoredHead:
    """Return a head of this carrier in the space."""
    [space], parts = spaces.spaces, []
    [(halves, lengths)] = space.chunks()
    for term in carrier_terms(carrier, _STRENGTHS["c"], _STRENGTHS["beta"], dict.fromkeys(SIGMAS, 0.1)):
        for gamma in (None, MEAN) if term.gamma is None else (term.gamma,):
            rows = Gallery.of(normalize_rows(halves, lengths, space.side.eigenvalues, gamma))
            parts.append(ScoreTerm(term.weight, 0, gamma, rows))
    return StoredHead(Scorer((space.side,), tuple(parts), np.zeros(len(spaces))), spaces.storage)


def rows_read(head: StoredHead) -> list[BaseRows]:
    """Return the rows that one query is multiplied with, each once."""
    sides = [rows for side in map(as_residual_side, head.scorer.sides) for rows in (side.anchors, side.directions)]
    vectors = [side.geometry.vectors for side in map(as_residual_side, head.scorer.sides) if side.geometry is not None]
    every = (*sides, *vectors, *(chunk for part in head.scorer.terms for chunk in part.gallery.chunks))
    own = [rows.base if isinstance(rows, ScaledRows) else rows for rows in every if rows is not None]
    return list({id(rows): rows for rows in own if rows.shape[1]}.values())


def numbers_read(head: StoredHead) -> int:
    return sum(rows.shape[0] * rows.shape[1] for rows in rows_read(head))


def arrays_read(head: StoredHead) -> list[np.ndarray]:
    """Return the arrays of these rows."""
    arrays: list[np.ndarray | None] = []
    for rows in rows_read(head):
        arrays += [rows.levels, rows.fine] if isinstance(rows, QuantizedRows) else [rows]
    return [array for array in arrays if array is not None]
