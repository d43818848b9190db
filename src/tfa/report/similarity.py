"""How similar images of a map are: of their descriptors as they are, and under the head.

The galleries of a head hold what queries are compared with. Of residual terms a query's feature is of the same kind, so
products of rows are scores. A second-order S_0 compares z + Uᵀμ and ⟨v, μ⟩ of a query with z and 1 of an image (see
`SecondOrderSide`): two images of the map miss `image_level` of both.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tfa.base.backend import l2_normalize
from tfa.method.carriers import MEAN
from tfa.method.query_sides import ResidualSide, SecondOrderSide
from tfa.method.scorer import GLOBAL, Scorer, ScoreTerm
from tfa.search.gallery import Gallery

MOST_PAIRS = 2000
_PAIR_BLOCK = 256  # rows in memory at a time

Pairs = Callable[[np.ndarray, np.ndarray], np.ndarray]  # products of pairs of rows


def sample_similarity(scorer: Scorer, alive: np.ndarray, most: int = MOST_PAIRS) -> dict[str, list[float]] | None:
    """Similarity of the same pairs of images: of their descriptors as they are, and under the final head.

    Half of the pairs are neighbours in the map's order, which often show one place; the others are drawn (seed 0).
    """
    rows, original = _original(scorer, alive)
    if len(rows) < 2:
        return None
    near = np.linspace(0, len(rows) - 2, min(most // 2, len(rows) - 1)).round().astype(np.int64)
    drawn = np.random.default_rng(0).integers(0, len(rows), (2, most - len(near)))
    drawn = drawn[:, drawn[0] != drawn[1]]
    one, other = np.r_[near, drawn[0]], np.r_[near + 1, drawn[1]]
    level = image_level(scorer, rows)
    final = sum(term.weight * _dots(term.gallery, rows[one], rows[other]) for term in scorer.terms)
    final = final + level[one] + level[other] + scorer.bias[rows[other]]
    return {"original": original(one, other).tolist(), "final": final.tolist()}


def image_level(scorer: Scorer, rows: np.ndarray) -> np.ndarray:
    """What each image adds to its scores with others beyond the products of their rows, zero of residual heads.

    ⟨v, v'⟩ = ⟨z, z'⟩ + 1 + l + l',   l = ⟨Uᵀμ, z⟩ + (‖μ‖² − 1) / 2,   1 the product of two rows of MEAN.
    """
    level = np.zeros(len(rows))
    for term in scorer.terms:
        if term.side != GLOBAL and term.gamma is None:
            side = scorer.sides[term.side]
            if isinstance(side, SecondOrderSide):
                level += term.weight * (_level(side, term, rows) - 0.5)
    return level


def _level(side: SecondOrderSide, term: ScoreTerm, rows: np.ndarray) -> np.ndarray:
    """⟨Uᵀμ, z⟩ + ‖μ‖² / 2 of each image."""
    mean = side.mean.astype(np.float64)
    origin = side.mean_coordinates.astype(np.float64)
    blocks = [rows[low : low + _PAIR_BLOCK] for low in range(0, len(rows), _PAIR_BLOCK)]
    along = [term.gallery.take(block).astype(np.float64) @ origin for block in blocks]
    return np.concatenate([np.empty(0), *along]) + mean @ mean / 2


def _original(scorer: Scorer, alive: np.ndarray) -> tuple[np.ndarray, Pairs]:
    """Gallery rows of which the map keeps the descriptor in some form, and products of pairs of them."""
    local = [term for term in scorer.terms if term.side != GLOBAL and term.gamma != MEAN]
    term = next((term for term in local if term.gamma is None), local[0])
    side = scorer.sides[term.side]
    if isinstance(side, SecondOrderSide):
        return alive, _second_order_pairs(side, term, alive)
    if term.gamma is None:
        return alive, lambda one, other: _dots(term.gallery, alive[one], alive[other])
    side = next(side for side in scorer.sides if isinstance(side, ResidualSide) and side.geometry is not None)
    assert side.geometry is not None
    assert side.anchors is not None
    rows, _, kept = np.intersect1d(alive, side.geometry.anchors, return_indices=True)
    anchors = Gallery.of(side.anchors)
    return rows, lambda one, other: _dots(anchors, kept[one], kept[other])


def _second_order_pairs(side: SecondOrderSide, term: ScoreTerm, rows: np.ndarray) -> Pairs:
    """⟨v, v'⟩ where the map has z; where it has φ_γ alone, which forgets the length of z, the cosine of z and z'."""
    if term.gamma is None:
        level = _level(side, term, rows)
        return lambda one, other: _dots(term.gallery, rows[one], rows[other]) + level[one] + level[other]
    assert isinstance(term.gamma, float)
    power = side.eigenvalues ** (term.gamma / 2)

    def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        pairs = (l2_normalize(term.gallery.take(rows[[a, b]]) * power) for a, b in zip(one, other, strict=True))
        return np.array([float(left @ right) for left, right in pairs])

    return cosines


def _dots(gallery: Gallery, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Inner products of pairs of rows, two rows in memory at a time."""
    pairs = (gallery.take([a, b]) for a, b in zip(one, other, strict=True))
    return np.array([float(left @ right) for left, right in pairs])
