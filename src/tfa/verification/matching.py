"""Match the patches of two photos and count the matches that agree on one displacement.

    match      patches i and j match if each is the other's most similar patch
    vote       a match votes for its displacement (row_j − row_i, column_j − column_i), in cells of the patch grid,
               weighted by distinctiveness: how much more similar i is to j than to any other patch
    evidence   M = s · max over windows of votes / side        windows of 3, 5, 7, 9 and 13 cells a side, s = 4

In photos of one place most matches share a displacement; in photos of two places they scatter. A narrow window is
selective if the viewpoint is shared; a wide one is needed if it is not. Dividing by the side lets them compete. The
scale s gives √M the spread that one window of 5 × 5 cells has, the only window of maps without cell means (`patches`).
Arrays in, arrays out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

Windows = tuple[tuple[int, float], ...]  # cells a side (odd) and weight of a vote of each window, narrow ones first
SCALE = 4.0  # s
BY_EVIDENCE: Windows = tuple((side, SCALE / side) for side in (3, 5, 7, 9, 13))
ONE_WINDOW: Windows = ((5, 1.0),)
_UNITS = 2**20  # units per vote
_FIT_ROUNDS = 3
_FIT_RESIDUAL = 1.5  # cells from the fit beyond which a match does not count
_FIT_MATCHES = 12  # matches below which there is no fit
_FIT_SPREAD = 2.0  # deviation of the matches in cells below which there is no fit


@dataclass(frozen=True)
class Matches:
    """Mutual matches of two photos, and which of them are inliers."""

    ours: np.ndarray  # query patch of each match, ascending
    theirs: np.ndarray  # candidate patch of each match
    distinct: np.ndarray  # similarity minus that of the query patch's second-best match
    consistent: np.ndarray  # bool: inliers
    weight: float = 1.0  # weight of a vote in the strongest window

    @property
    def count(self) -> int:
        return int(self.consistent.sum())

    @property
    def evidence(self) -> float:
        """M: the weighted sum of the inliers' votes."""
        return self.weight * float(self.distinct[self.consistent].sum())


def find_nearest(similarities: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the best column of each row of (n, m), its similarity, and the second-best similarity.

    Ties go to the first column. The last array is the best similarity of each column. `similarities` is overwritten.
    """
    every = np.arange(len(similarities))
    best = similarities.argmax(axis=1)
    highest, columns = similarities[every, best], similarities.max(axis=0)
    if similarities.shape[1] < 2:  # nothing to compare it with
        return best, highest, highest, columns
    similarities[every, best] = -np.inf
    return best, highest, similarities.max(axis=1), columns


def find_mutual(best: np.ndarray, highest: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return candidate and row of each mutual match, from `find_nearest` arrays (c, n), (c, n) and (c, m).

    A row matches if it has the highest similarity in its best column; ties go to the first row.
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
    """Return the displacement of each match between the two patch grids: rows and columns, in cells."""
    (y, x), (v, u) = np.divmod(ours, grid[1]), np.divmod(theirs, other[1])
    return v - y, u - x


def find_strongest_windows(
    candidate: np.ndarray,
    moved: tuple[np.ndarray, np.ndarray],
    votes: np.ndarray,
    reach: tuple[int, int],
    count: int,
    windows: Windows = BY_EVIDENCE,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the center (down, right) of each candidate's strongest displacement window, and the window's index.

    Ties go to the first window, then to the first center. Displacements are at most `reach`; there are `count`
    candidates.
    """
    height, width = 2 * reach[0] + 1, 2 * reach[1] + 1
    # Zero padding gives windows at the edge their full size; one more row and column serve the prefix sums.
    pad = max(side for side, _ in windows) // 2
    rows, columns = height + 2 * pad + 1, width + 2 * pad + 1
    down, right = moved[0] + reach[0] + pad + 1, moved[1] + reach[1] + pad + 1
    cells = np.bincount((candidate * rows + down) * columns + right, votes, minlength=count * rows * columns)
    total = cells.reshape(count, rows, columns)
    total.cumsum(axis=1, out=total).cumsum(axis=2, out=total)  # prefix sums
    strongest, at = np.empty((2, len(windows), count))
    for index, (side, weight) in enumerate(windows):
        low = pad - side // 2
        tall = total[:, low + side : low + side + height] - total[:, low : low + height]
        sums = tall[:, :, low + side : low + side + width] - tall[:, :, low : low + width]
        flat = sums.reshape(count, height * width)
        at[index] = flat.argmax(axis=1)
        strongest[index] = weight * flat.max(axis=1)
    index = strongest.argmax(axis=0)
    center = np.take_along_axis(at, index[None], axis=0)[0].astype(np.int64)
    return center // width - reach[0], center % width - reach[1], index


def find_matches(
    query: np.ndarray,
    candidates: np.ndarray,
    grid: tuple[int, int],
    other: tuple[int, int],
    windows: Windows = BY_EVIDENCE,
) -> list[Matches]:
    """Match compact patches (n, r) of a photo with those of candidates (c, m, r); one result per candidate."""
    count = len(candidates)
    if not count:
        return []
    similarities = np.empty((len(query), candidates.shape[1]), np.float32)
    found = []
    for candidate in candidates:  # one at a time, so that its similarities stay in the cache
        np.matmul(query, candidate.T, out=similarities)
        found.append(find_nearest(similarities))
    best, highest, second, columns = map(np.stack, zip(*found, strict=True))
    candidate, ours = find_mutual(best, highest, columns)
    theirs = best[candidate, ours]
    # Rounded to 2⁻²⁰, votes sum exactly in any order, so ties stay ties.
    distinct = np.rint((highest - second)[candidate, ours].astype(np.float64) * _UNITS) / _UNITS
    down, right = compute_displacements(ours, theirs, grid, other)
    reach = (max(grid[0], other[0]) - 1, max(grid[1], other[1]) - 1)
    *middle, index = find_strongest_windows(candidate, (down, right), distinct, reach, count, windows)
    half = np.array([side // 2 for side, _ in windows])[index][candidate]
    alike = (np.abs(down - middle[0][candidate]) <= half) & (np.abs(right - middle[1][candidate]) <= half)
    parts = [slice(start, stop) for start, stop in pairwise(np.searchsorted(candidate, np.arange(count + 1)))]
    return [
        Matches(ours[part], theirs[part], distinct[part], alike[part], windows[which][1])
        for part, which in zip(parts, index.tolist(), strict=True)
    ]


def fit_similarity(matches: Matches, grid: tuple[int, int], other: tuple[int, int]) -> tuple[float, float] | None:
    """Fit one shift and scale to the inliers, with new inliers in each round: q = scale (m − m̄) + q̄ for cells q and m.

    Returns:
        How far right of the candidate's center the query's center lies, as a share of the width, and how much larger
        the query shows the scene. None if there are too few matches, or they are too close together.
    """
    ours = np.stack(np.divmod(matches.ours, grid[1]), axis=1) + 0.5
    theirs = (np.stack(np.divmod(matches.theirs, other[1]), axis=1) + 0.5) * np.divide(grid, other)
    used, fit = matches.consistent, None
    for _ in range(_FIT_ROUNDS):
        if used.sum() < _FIT_MATCHES:
            return None
        (center, spread), (center_other, spread_other) = (
            (cells.mean(axis=0), float(np.sqrt(cells.var(axis=0).sum()))) for cells in (ours[used], theirs[used])
        )
        if min(spread, spread_other) < _FIT_SPREAD:
            return None
        scale = spread / spread_other  # the same if the photos are swapped, unlike a regression
        used = np.abs(center + scale * (theirs - center_other) - ours).max(axis=1) <= _FIT_RESIDUAL
        fit = (center_other[1] + (grid[1] / 2 - center[1]) / scale) / grid[1] - 0.5, scale
    return fit


def measure_evidence(
    query: np.ndarray,
    candidates: np.ndarray,
    grid: tuple[int, int],
    other: tuple[int, int],
    windows: Windows = BY_EVIDENCE,
) -> np.ndarray:
    """Return M of each candidate, (c,), from compact patches (n, r) and (c, m, r)."""
    return np.array([found.evidence for found in find_matches(query, candidates, grid, other, windows)], np.float64)
