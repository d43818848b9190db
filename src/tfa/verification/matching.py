"""Matching (ours, beyond the paper): do two photos hold the same patches in the same arrangement?

    match      (i, j) is a match if j is the most similar patch to i and i the most similar to j
    vote       each match votes for its displacement (row_j − row_i, column_j − column_i), in cells of the patch grid,
               with its distinctiveness: how much more similar i is to j than to any other patch
    evidence   M, the most votes in a window of 5 × 5 displacements

Photos of one place move most of their patches alike; of two places, the matches scatter, and what lines up all the
same (sky above road) is like many patches and so has little weight. Arrays in, arrays out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

WINDOW = 2  # displacements to each side of the strongest that are consistent with it
_UNITS = 2**20  # of a vote


@dataclass(frozen=True)
class Matches:
    """Mutual matches of two photos, and which of them move alike."""

    ours: np.ndarray  # patch of the query, one for each match, rising
    theirs: np.ndarray  # patch of the candidate
    distinct: np.ndarray  # how much more similar the two are than the query's patch and any other
    consistent: np.ndarray  # bool

    @property
    def count(self) -> int:
        return int(self.consistent.sum())

    @property
    def evidence(self) -> float:
        """M."""
        return float(self.distinct[self.consistent].sum())


Nearest = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def find_nearest(similarities: np.ndarray) -> Nearest:
    """Find the best column of each row of `n m` (of equals the first), its similarity and that of the second best.

    The last array is the similarity of each column's best row. `similarities` is overwritten.
    """
    every = np.arange(len(similarities))
    best = similarities.argmax(axis=1)
    highest, columns = similarities[every, best], similarities.max(axis=0)
    if similarities.shape[1] < 2:  # nothing to compare it with
        return best, highest, highest, columns
    similarities[every, best] = -np.inf
    return best, highest, similarities.max(axis=1), columns


def find_mutual(best: np.ndarray, highest: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the (candidate, row) of each mutual match from `find_nearest` of candidates, `c n`, `c n` and `c m`.

    A row is matched if nothing in its best column is higher; of several rows as high, the first.
    """
    candidate, row = np.nonzero(highest == np.take_along_axis(columns, best, axis=1))
    column = candidate * columns.shape[1] + best[candidate, row]
    first = np.full(columns.size, best.shape[1])
    np.minimum.at(first, column, row)
    kept = first[column] == row
    return candidate[kept], row[kept]


def compute_displacements(
    ours: np.ndarray, theirs: np.ndarray, grid: tuple[int, int], other: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the rows and columns, in cells, by which each match moves from one patch grid to the other."""
    (y, x), (v, u) = np.divmod(ours, grid[1]), np.divmod(theirs, other[1])
    return v - y, u - x


def find_strongest_windows(
    candidate: np.ndarray,
    moved: tuple[np.ndarray, np.ndarray],
    votes: np.ndarray,
    reach: tuple[int, int],
    count: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Find the middle of the window of displacements with the most votes, for each of `count` candidates.

    Of equals it is the first. A vote has a candidate and a move, down and right, of `reach` at most.
    """
    height, width = 2 * reach[0] + 1, 2 * reach[1] + 1
    # Zeros all around, so that a window at the edge is as large as any; one more in front for differences of sums.
    rows, columns = height + 2 * WINDOW + 1, width + 2 * WINDOW + 1
    down, right = moved[0] + reach[0] + WINDOW + 1, moved[1] + reach[1] + WINDOW + 1
    cells = np.bincount((candidate * rows + down) * columns + right, votes, minlength=count * rows * columns)
    total = cells.reshape(count, rows, columns)
    total.cumsum(axis=1, out=total).cumsum(axis=2, out=total)  # sums of all rectangles at the origin
    side = 2 * WINDOW + 1
    tall = total[:, side:] - total[:, :-side]
    at = (tall[:, :, side:] - tall[:, :, :-side]).reshape(count, height * width).argmax(axis=1)
    return at // width - reach[0], at % width - reach[1]


def find_matches(
    query: np.ndarray, candidates: np.ndarray, grid: tuple[int, int], other: tuple[int, int]
) -> list[Matches]:
    """Match compact patches `n r` of a photo with `c m r` of others; one result for each of them."""
    count = len(candidates)
    if not count:
        return []
    similarities = np.empty((len(query), candidates.shape[1]), np.float32)
    found = []
    for candidate in candidates:  # one at a time: its similarities stay in the cache
        np.matmul(query, candidate.T, out=similarities)
        found.append(find_nearest(similarities))
    best, highest, second, columns = map(np.stack, zip(*found, strict=True))
    candidate, ours = find_mutual(best, highest, columns)
    theirs = best[candidate, ours]
    # In units of 2⁻²⁰ votes add up to the same number in any order: what is equal stays equal.
    distinct = np.rint((highest - second)[candidate, ours].astype(np.float64) * _UNITS) / _UNITS
    down, right = compute_displacements(ours, theirs, grid, other)
    reach = (max(grid[0], other[0]) - 1, max(grid[1], other[1]) - 1)
    middle = find_strongest_windows(candidate, (down, right), distinct, reach, count)
    alike = (np.abs(down - middle[0][candidate]) <= WINDOW) & (np.abs(right - middle[1][candidate]) <= WINDOW)
    ends = np.searchsorted(candidate, np.arange(count + 1))
    parts = [slice(start, stop) for start, stop in pairwise(ends)]
    return [Matches(ours[part], theirs[part], distinct[part], alike[part]) for part in parts]


def measure_evidence(
    query: np.ndarray, candidates: np.ndarray, grid: tuple[int, int], other: tuple[int, int]
) -> np.ndarray:
    """Measure M of each candidate: compact patches `n r` against `c m r` → `c`."""
    return np.array([found.evidence for found in find_matches(query, candidates, grid, other)], np.float64)
