"""What the decisions of a map rest on, in numbers that can be drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfa.maps import PlaceMap
from tfa.method.query_sides import residual
from tfa.method.scorer import GLOBAL, Scorer
from tfa.search.gallery import Gallery

MOST_EIGENVALUES = 200
MOST_PAIRS = 2000


def evidence_of(place_map: PlaceMap) -> dict[str, Any]:
    """Candidates, decisions and reasons of the head that saw the map's photos only; its spectrum; a sample of pairs.

    The spectrum is null where the chosen head needs none, and so are similarities of a map of fewer than two photos.
    """
    head = place_map.state.database
    made = head.decisions
    chosen = {f"{made['assignment']}/{made['carrier']}"}
    if made["admit_cls"]:
        chosen.add(f"{made['assignment']}/adaptive+cls")
    candidates = [
        {"name": name, "support": numbers["support"], "agreement": list(numbers["agreement"]), "chosen": name in chosen}
        for name, numbers in head.evidence["candidates"].items()
    ]
    return {
        "candidates": candidates,
        "decisions": made,
        "reasons": head.evidence["reasons"],
        "spectrum": spectrum_of(head.stored.scorer),
        "similarity": similarity_of(head.stored.scorer, place_map.rows),
    }


def spectrum_of(scorer: Scorer) -> dict[str, Any] | None:
    """Eigenvalues of the first vocabulary's residuals, the shaping γ with the most weight, and the spectral width."""
    for number, side in enumerate(map(residual, scorer.sides)):
        if side.geometry is None:
            continue
        shaped = [part for part in scorer.terms if part.side == number and part.gamma is not None]
        strongest = max(shaped, key=lambda part: part.weight)
        return {
            "eigenvalues": side.geometry.eigenvalues[:MOST_EIGENVALUES].tolist(),
            "rank": side.geometry.rank,
            "gamma": strongest.gamma,
            "participation": side.geometry.participation,
        }
    return None


def similarity_of(scorer: Scorer, alive: np.ndarray, most: int = MOST_PAIRS) -> dict[str, list[float]] | None:
    """Similarity of the same pairs of images: of their residuals as they are, and under the final head.

    Half of the pairs are neighbours in the map's order, which often show one place; the others are drawn (seed 0).
    """
    rows, kept, descriptors = _original(scorer, alive)
    if len(rows) < 2:
        return None
    near = np.linspace(0, len(rows) - 2, min(most // 2, len(rows) - 1)).round().astype(np.int64)
    drawn = np.random.default_rng(0).integers(0, len(rows), (2, most - len(near)))
    drawn = drawn[:, drawn[0] != drawn[1]]
    one, other = np.r_[near, drawn[0]], np.r_[near + 1, drawn[1]]
    final = sum(term.weight * _dots(term.gallery, rows[one], rows[other]) for term in scorer.terms)
    final = final + scorer.bias[rows[other]]
    return {"original": _dots(descriptors, kept[one], kept[other]).tolist(), "final": final.tolist()}


def _original(scorer: Scorer, alive: np.ndarray) -> tuple[np.ndarray, np.ndarray, Gallery]:
    """Gallery rows whose residual descriptor the map keeps, and where: rows of another gallery."""
    for term in scorer.terms:
        if term.side != GLOBAL and term.gamma is None:
            return alive, alive, term.gallery
    side = next(side for side in map(residual, scorer.sides) if side.geometry is not None)
    assert side.geometry is not None
    assert side.anchors is not None
    rows, _, kept = np.intersect1d(alive, side.geometry.anchors, return_indices=True)
    return rows, kept, Gallery.of(side.anchors)


def _dots(gallery: Gallery, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Inner products of pairs of rows, two rows in memory at a time."""
    pairs = (gallery.take([a, b]) for a, b in zip(one, other, strict=True))
    return np.array([float(left @ right) for left, right in pairs])
