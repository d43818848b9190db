"""The resampling of a position table a second time: numpy, float64, one tap after the other."""

from __future__ import annotations

import math

import numpy as np

from tests.benchmarks.heads.trained.plain_layers import cubic

A = -0.75  # of the cubic without antialias


def taps(side: int, patches: int, offset: float) -> np.ndarray:
    """Weights `patches side` of samples at (i + 0.5) side/(patches + offset) − 0.5, borders repeated."""
    found = np.zeros((patches, side))
    for i in range(patches):
        at = (i + 0.5) * side / (patches + offset) - 0.5
        for j in range(math.floor(at) - 1, math.floor(at) + 3):
            found[i, min(max(j, 0), side - 1)] += cubic(at - j, A)
    return found


def plain_positions(table: np.ndarray, grid: tuple[int, int], offset: float = 0.1) -> np.ndarray:
    """`1 1+p² d` → `1+rows·columns d`; an offset of 0 is transformers' rule."""
    cls, square = table[0, :1].astype(np.float64), table[0, 1:].astype(np.float64)
    side = math.isqrt(len(square))
    if grid == (side, side):
        return table[0].astype(np.float64)
    rows, columns = (taps(side, patches, offset) for patches in grid)
    found = np.einsum("ri,cj,ijd->rcd", rows, columns, square.reshape(side, side, -1))
    return np.concatenate([cls, found.reshape(grid[0] * grid[1], -1)])
