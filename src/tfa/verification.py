"""Verification (ours, beyond the paper): do two photos hold the same patches in the same arrangement?

    compact    y = L2( λ^(−1/4) Uᵀ(p̃ − μ) )        PCA of the map's unit patches, partial whitening, 128 of d
    match      (i, j) is a match if j is the most similar patch to i and i the most similar to j
    vote       each match votes for its displacement (row_j − row_i, column_j − column_i), in cells of the patch grid,
               with its distinctiveness: how much more similar i is to j than to any other patch
    evidence   M, the most votes in a window of 7 × 7 displacements
    order      z + 4 √M                               z: the candidate's z-score in the query's row of scores

Photos of one place move most of their patches alike; of two places, the matches scatter, and what lines up all the
same (sky above road) is like many patches and so has little weight. Arrays in, arrays out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfa.arrays import l2

WINDOW = 3  # displacements to each side of the strongest that are consistent with it
RANK_FLOOR = 1e-9  # directions with a smaller share of the largest variance are rounding
LEVELS = 127  # of int8
WEIGHT = 4.0  # of √M beside a z-score


@dataclass(frozen=True)
class Compaction:
    """How patches of a map are kept small."""

    mean: np.ndarray  # d
    projection: np.ndarray  # d r: directions scaled by λ^(−1/4)

    @property
    def dimensions(self) -> int:
        return int(self.projection.shape[1])

    def compact(self, patches: np.ndarray) -> np.ndarray:
        """Patches `… n d` → unit rows `… n r` in float32."""
        return l2((l2(patches.astype(np.float32)) - self.mean) @ self.projection)


def fit_compaction(patches: np.ndarray, dimensions: int) -> Compaction:
    """From unit patches `t d` of the map."""
    rows = patches.astype(np.float64)
    mean = rows.mean(axis=0)
    covariance = (rows - mean).T @ (rows - mean) / len(rows)
    variance, directions = np.linalg.eigh(covariance)
    variance, directions = variance[::-1], directions[:, ::-1]
    kept = variance[:dimensions] > RANK_FLOOR * max(float(variance[0]), 0.0)
    kept[0] = True  # patches that are all alike have no direction; one keeps the shapes
    variance, directions = variance[:dimensions][kept], directions[:, :dimensions][:, kept]
    scale = np.where(variance > 0, variance, 1.0) ** -0.25
    return Compaction(mean.astype(np.float32), (directions * scale).astype(np.float32))


def quantised(rows: np.ndarray) -> np.ndarray:
    """Unit rows `… r` as int8, each scaled by its own largest entry: `restored` makes it unit again."""
    largest = np.abs(rows).max(axis=-1, keepdims=True)
    return np.rint(rows * (LEVELS / np.where(largest > 0, largest, 1.0))).astype(np.int8)


def restored(levels: np.ndarray) -> np.ndarray:
    return l2(levels.astype(np.float32))


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


def mutual(similarities: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs (i, j) of `n m` that are each other's best (of equals the first), and their distinctiveness.

    `similarities` is overwritten.
    """
    every = np.arange(len(similarities))
    best = similarities.argmax(axis=1)
    highest = similarities[every, best]
    # i is the best of column j if nothing in the column is higher; of several rows as high, the first.
    rows = np.flatnonzero(highest == similarities.max(axis=0)[best])
    _, first = np.unique(best[rows], return_index=True)
    rows = rows[np.sort(first)]
    if similarities.shape[1] < 2:  # nothing to tell it from
        return rows, best[rows], np.zeros(len(rows), similarities.dtype)
    similarities[rows, best[rows]] = -np.inf
    return rows, best[rows], highest[rows] - similarities[rows].max(axis=1)


def displacements(
    ours: np.ndarray, theirs: np.ndarray, grid: tuple[int, int], other: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns, in cells, by which each match moves from one patch grid to the other."""
    (y, x), (v, u) = np.divmod(ours, grid[1]), np.divmod(theirs, other[1])
    return v - y, u - x


def strongest_window(down: np.ndarray, right: np.ndarray, votes: np.ndarray, reach: tuple[int, int]) -> tuple[int, int]:
    """The displacement in the middle of the window with the most votes; of equals the first.

    `reach` is the largest displacement down and right that there can be.
    """
    height, width = 2 * reach[0] + 1, 2 * reach[1] + 1
    cells = np.bincount((down + reach[0]) * width + right + reach[1], votes, minlength=height * width)
    padded = np.pad(cells.reshape(height, width), WINDOW)
    total = np.pad(padded.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))  # sums of all rectangles at the origin
    side = 2 * WINDOW + 1
    sums = total[side:, side:] - total[:-side, side:] - total[side:, :-side] + total[:-side, :-side]
    # Sums of the same votes in another order differ in their last digits: what is equal must stay equal.
    at = int(np.round(sums, 9).argmax())
    return at // width - reach[0], at % width - reach[1]


def match(query: np.ndarray, candidate: np.ndarray, grid: tuple[int, int], other: tuple[int, int]) -> Matches:
    """Compact patches `n r` and `m r` of two photos → their matches."""
    ours, theirs, distinct = mutual(query @ candidate.T)
    down, right = displacements(ours, theirs, grid, other)
    reach = (max(grid[0], other[0]) - 1, max(grid[1], other[1]) - 1)
    middle_down, middle_right = strongest_window(down, right, distinct, reach)
    consistent = (np.abs(down - middle_down) <= WINDOW) & (np.abs(right - middle_right) <= WINDOW)
    return Matches(ours, theirs, distinct, consistent)


def evidence(query: np.ndarray, candidates: np.ndarray, grid: tuple[int, int], other: tuple[int, int]) -> np.ndarray:
    """M of each candidate: compact patches `n r` against `c m r` → `c`."""
    # One at a time: its similarities stay in the cache.
    return np.array([match(query, candidate, grid, other).evidence for candidate in candidates], np.float64)


def fused(standardised: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """The score that candidates are ordered by: their z-scores in the query's row `c` and their evidence `c`."""
    return standardised + WEIGHT * np.sqrt(evidence)


def verified_confidence(percentile: np.ndarray, evidence: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """Confidence of answers from their percentile (see `maps.records.confidences`) and their evidence.

    `chance` is sorted: the best evidence that each of the map's own photos finds among as many photos that do
    not show its place. An answer is at most as sure as chance rarely reaches its evidence; how clearly the head
    itself prefers it moves that by up to a half: beyond · (1 + percentile) / 2.
    """
    beyond = np.searchsorted(chance, evidence, side="left") / max(len(chance), 1)
    return beyond * (1 + percentile) / 2
