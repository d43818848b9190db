"""Geometric verification in plain float64 numpy: cell means, compact patches, matches, votes and evidence."""

from __future__ import annotations

import numpy as np

MAP_PSEUDO_COUNT, SHIFT_PSEUDO_COUNT, CELL_PSEUDO_COUNT = 2, 2, 8
CELL_DECAY, SHIFT_DECAY = 1 - 1 / 256, 1 - 1 / 32
SIDES, SCALE = (3, 5, 7, 9, 13), 4.0


def cell_means(images: np.ndarray) -> np.ndarray:
    """Return μ_cell (n, d) of unit patches (m, n, d), with 2 pseudo-counts at the mean of all patches."""
    mean = images.mean(axis=(0, 1))
    return (images.sum(axis=0) + MAP_PSEUDO_COUNT * mean) / (len(images) + MAP_PSEUDO_COUNT)


def projection(images: np.ndarray, dimensions: int) -> np.ndarray:
    """Return U λ^(−1/4), (d, r), of the patches (m, n, d) centered on their cells."""
    x = (images - cell_means(images)).reshape(-1, images.shape[-1])
    variance, directions = np.linalg.eigh(x.T @ x / len(x))
    return (directions * variance**-0.25)[:, ::-1][:, :dimensions]


def stream_means(stream: np.ndarray, cells: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return μ_cell (n, d) for the photo after those of a stream (t, n, d); `cells` and `mean` are the map's."""
    ages = np.arange(len(stream))[::-1]
    weights = SHIFT_DECAY**ages
    shift = weights @ (stream.mean(axis=1) - mean) / (weights.sum() + SHIFT_PSEUDO_COUNT)
    weights = CELL_DECAY**ages
    total = np.tensordot(weights, stream, axes=1) + CELL_PSEUDO_COUNT * (cells + shift)
    return total / (weights.sum() + CELL_PSEUDO_COUNT)


def matches(ours: np.ndarray, theirs: np.ndarray) -> list[tuple[int, int, float]]:
    """Return mutual matches (i, j) of unit rows (n, r) and (m, r), with their distinctiveness."""
    s = ours @ theirs.T
    found = []
    for i, row in enumerate(s):
        j = int(row.argmax())
        if int(s[:, j].argmax()) == i:
            found.append((i, j, float(row[j] - np.delete(row, j).max())))
    return found


def evidence(ours: np.ndarray, theirs: np.ndarray, grid: tuple[int, int], other: tuple[int, int]) -> float:
    """Return M = s · max over windows of (votes in the window) / side."""
    moves = [(j // other[1] - i // grid[1], j % other[1] - i % grid[1], v) for i, j, v in matches(ours, theirs)]
    reach = max(*grid, *other)
    best = 0.0
    for side in SIDES:
        for down in range(-reach, reach + 1):
            for right in range(-reach, reach + 1):
                inside = [v for y, x, v in moves if max(abs(y - down), abs(x - right)) <= side // 2]
                best = max(best, SCALE * sum(inside) / side)
    return best
