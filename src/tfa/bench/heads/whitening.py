"""PCA with whitening, in the dual form: the number of samples is smaller than the number of channels.

    X_c X_cᵀ = E diag(η) Eᵀ        X_c = rows − mean, `t D`
    W = X_cᵀ E diag(√(t−1) / η)    so that (x − mean) W has unit variance in each coordinate

No D × D matrix is ever made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tfa.core.arrays import l2_normalize

CHANNELS_AT_ONCE = 2048  # in float64
ROUNDING = 1e-10  # directions with a smaller share of all the energy are rounding of the rows


@dataclass(frozen=True)
class Whitening:
    """Rows `b D` → whitened unit rows `b r`."""

    mean: np.ndarray  # D
    projection: np.ndarray | None  # D r; None where the sample has no direction to whiten

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        return l2_normalize(rows) if self.projection is None else l2_normalize((rows - self.mean) @ self.projection)


def fit_whitening(rows: np.ndarray, dimensions: int) -> Whitening:
    """From rows `t D` to at most `dimensions` coordinates, fewer if the rows span fewer."""
    count = len(rows)
    mean = rows.mean(axis=0, dtype=np.float64)
    gram = np.zeros((count, count))
    for block in _centred(rows, mean):
        gram += block @ block.T
    eta, basis = np.linalg.eigh(gram)
    eta, basis = eta[::-1][:dimensions], basis[:, ::-1][:, :dimensions]
    kept = eta > ROUNDING * (np.trace(gram) + count * (mean @ mean))  # the bracket is Σ ‖row‖²
    if not kept.any():
        return Whitening(np.zeros_like(mean, rows.dtype), None)
    weights = basis[:, kept] * (np.sqrt(count - 1) / eta[kept])
    projection = np.concatenate([(block.T @ weights).astype(rows.dtype) for block in _centred(rows, mean)])
    return Whitening(mean.astype(rows.dtype), projection)


def _centred(rows: np.ndarray, mean: np.ndarray) -> Iterator[np.ndarray]:
    """X_c, some channels at a time: small eigenvalues need float64, and all of X_c in it would fill the memory."""
    for low in range(0, rows.shape[1], CHANNELS_AT_ONCE):
        part = slice(low, low + CHANNELS_AT_ONCE)
        yield rows[:, part].astype(np.float64) - mean[part]
