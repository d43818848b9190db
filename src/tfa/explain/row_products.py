"""Products with many stored rows (floats of any kind or integers), widened to float64 a block at a time."""

from __future__ import annotations

import numpy as np

from tfa.search.gallery import Rows

BLOCK = 128  # rows


def products(rows: Rows, vectors: np.ndarray) -> np.ndarray:
    """`j a` products of vectors `j D` with the rows `a D`."""
    blocks = range(0, len(rows), BLOCK)
    return np.concatenate([vectors @ np.asarray(rows[low : low + BLOCK], np.float64).T for low in blocks], axis=1)


def weighted_rows(rows: Rows, weights: np.ndarray) -> np.ndarray:
    """Σ_a weight · row, for weights `j a` → `j D`."""
    total = np.zeros((len(weights), rows.shape[1]))
    for low in range(0, len(rows), BLOCK):
        total += weights[:, low : low + BLOCK] @ np.asarray(rows[low : low + BLOCK], np.float64)
    return total
