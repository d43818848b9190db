"""Products with many stored rows (floats of any kind or integers), widened to float64 a block at a time."""

from __future__ import annotations

import numpy as np

from tfa.search.gallery import Rows

_BLOCK = 128  # rows


def multiply_rows(rows: Rows, vectors: np.ndarray) -> np.ndarray:
    """`j a` products of vectors `j D` with the rows `a D`."""
    blocks = range(0, len(rows), _BLOCK)
    return np.concatenate([vectors @ np.asarray(rows[low : low + _BLOCK], np.float64).T for low in blocks], axis=1)


def weighted_rows(rows: Rows, weights: np.ndarray) -> np.ndarray:
    """Σ_a weight · row, for weights `j a` → `j D`."""
    total = np.zeros((len(weights), rows.shape[1]))
    for low in range(0, len(rows), _BLOCK):
        total += weights[:, low : low + _BLOCK] @ np.asarray(rows[low : low + _BLOCK], np.float64)
    return total
