"""Other ways to judge whether the matches of two photos hold together, beside the one of `tfa.verification`.

Each takes a `Pair` and returns a number: how much speaks for one place. They are compared by the study of
`tfa bench verification`; all of them, and the comparison, are ours.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from tfa.errors import MissingExtra
from tfa.verification import matching
from tfa.verification.matching import displacements, matches, mutual, nearest

Measure = Callable[["Pair"], float]
TOLERANCE = 2.0  # cells by which a match may miss a transformation and still agree with it
SCALES = (0.5, 2.0)  # photos of one place from further apart share too few patches
SAMPLES = 256  # pairs of matches that propose a similarity
USUAL = 0.05  # distinctiveness of a match, about
TRIALS = 40  # samples that propose an affine map or a homography


class Pair:
    """Compact patches `n r` and `m r` of a query and a candidate; what is found in them is kept while they are."""

    def __init__(self, query: np.ndarray, candidate: np.ndarray, grid: tuple[int, int], other: tuple[int, int]) -> None:
        self.query, self.candidate, self.grid, self.other = query, candidate, grid, other

    @cached_property
    def similarities(self) -> np.ndarray:
        return self.query @ self.candidate.T

    @cached_property
    def mutual(self) -> tuple[np.ndarray, np.ndarray]:
        best, highest, _, columns = (found[None] for found in nearest(self.similarities.copy()))
        _, ours = mutual(best, highest, columns)
        return ours, best[0, ours]

    @cached_property
    def best(self) -> tuple[np.ndarray, np.ndarray]:
        """Every patch of the query with its most similar one, whether or not that is mutual."""
        return np.arange(len(self.query)), self.similarities.argmax(axis=1)

    @cached_property
    def distinctiveness(self) -> np.ndarray:
        """Best minus second best similarity of each patch of the query; 0 where there is no second."""
        if self.similarities.shape[1] < 2:
            return np.zeros(len(self.query))
        two = np.partition(self.similarities, -2, axis=1)[:, -2:]
        return (two[:, 1] - two[:, 0]).astype(np.float64)

    @property
    def reach(self) -> tuple[int, int]:
        return max(self.grid[0], self.other[0]) - 1, max(self.grid[1], self.other[1]) - 1

    @cached_property
    def cells(self) -> tuple[np.ndarray, np.ndarray]:
        """Places of the mutual matches in both grids as complex numbers, column + i·row."""
        ours, theirs = self.mutual
        (y, x), (v, u) = np.divmod(ours, self.grid[1]), np.divmod(theirs, self.other[1])
        return x + 1j * y, u + 1j * v


def as_built(pair: Pair) -> float:
    """The evidence of `tfa.verification`."""
    return matches(pair.query, pair.candidate[None], pair.grid, pair.other)[0].evidence


def without_geometry(pair: Pair) -> float:
    """Mutual matches wherever they lie."""
    return float(pair.distinctiveness[pair.mutual[0]].sum())


def window_of(cells: int) -> Measure:
    """Votes for displacements within a window of so many cells a side."""
    return lambda pair: voted(pair, *pair.mutual, half=cells // 2, weights=pair.distinctiveness[pair.mutual[0]])


def one_way(pair: Pair) -> float:
    """Every patch of the query votes, not only those whose match is mutual."""
    return voted(pair, *pair.best, weights=pair.distinctiveness)


def counted(pair: Pair) -> float:
    """Every match has the same vote: a usual distinctiveness, so that the score weighs as much beside it."""
    return USUAL * voted(pair, *pair.mutual)


def by_similarity(pair: Pair) -> float:
    """Votes weigh as much as the patches are alike; an opposite patch has no vote."""
    return USUAL * voted(pair, *pair.mutual, weights=pair.similarities[pair.mutual].clip(min=0))


def voted(
    pair: Pair, ours: np.ndarray, theirs: np.ndarray, *, half: int | None = None, weights: np.ndarray | None = None
) -> float:
    """The largest sum of votes in a window of 2·half + 1 displacements a side; `half` as built if not given."""
    half = matching.WINDOW if half is None else half
    down, right = displacements(ours, theirs, pair.grid, pair.other)
    height, width = 2 * pair.reach[0] + 1, 2 * pair.reach[1] + 1
    at = (down + pair.reach[0]) * width + right + pair.reach[1]
    votes = np.bincount(at, weights, minlength=height * width).reshape(height, width)
    # The sum over a square is a sum over rows of sums over columns.
    for axis in (0, 1):
        ends = [(half, half) if a == axis else (0, 0) for a in (0, 1)]
        votes = np.lib.stride_tricks.sliding_window_view(np.pad(votes, ends), 2 * half + 1, axis).sum(axis=-1)
    return float(votes.max())


def similarity(pair: Pair) -> float:
    """Matches that one shift, turn and scale explains: w = a z + b through two matches, the best of many pairs."""
    z, w = pair.cells
    votes = pair.distinctiveness[pair.mutual[0]]
    if len(z) < 2:
        return float(votes.sum())
    i, j = _two_of(len(z))
    apart = z[i] != z[j]  # always so of mutual matches; a division by zero otherwise
    i, j = i[apart], j[apart]
    a = (w[i] - w[j]) / (z[i] - z[j])
    allowed = (np.abs(a) >= SCALES[0]) & (np.abs(a) <= SCALES[1])
    a, b = a[allowed], (w[i] - a * z[i])[allowed]
    missed = np.abs(a[:, None] * z + b[:, None] - w)
    return float(((missed <= TOLERANCE) * votes).sum(axis=1).max(initial=0.0))


def _two_of(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of different numbers below `count`: all of them if they are few, else always the same draw."""
    first, second = np.triu_indices(count, 1)
    if len(first) <= SAMPLES:
        return first, second
    drawn = np.random.default_rng(0).choice(len(first), SAMPLES, replace=False)
    return first[drawn], second[drawn]


def affine(pair: Pair) -> float:
    return _explained(pair, "AffineTransform", 3)


def homography(pair: Pair) -> float:
    return _explained(pair, "ProjectiveTransform", 4)


def _explained(pair: Pair, model: str, needed: int) -> float:
    """The votes of matches that the best transformation of scikit-image's RANSAC explains."""
    try:
        from skimage import measure, transform
    except ImportError:
        raise MissingExtra("the study fits with scikit-image; install with pip install 'tfa-bench'") from None
    z, w = pair.cells
    if len(z) <= needed:  # any sample explains itself
        return 0
    sides: Any = tuple(np.stack([side.real, side.imag], axis=1) for side in (z, w))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # samples on a line have no transformation: they count for nothing
        _, inliers = measure.ransac(sides, getattr(transform, model), needed, TOLERANCE, max_trials=TRIALS, rng=0)
    votes = pair.distinctiveness[pair.mutual[0]]
    return 0.0 if inliers is None else float(votes[np.asarray(inliers, bool)].sum())
