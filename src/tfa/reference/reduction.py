"""Scores of reduced vectors in plain float64 numpy: only the leading directions count.

The rotation is omitted, because it does not change inner products.
"""

from __future__ import annotations

import numpy as np


def reduced_scores(queries: np.ndarray, images: np.ndarray, bias: np.ndarray, dims: int) -> np.ndarray:
    """Return ⟨EᵀΨ(q), EᵀΨ(d)⟩ + b_d, (q, m); E: eigenvectors of Σ Ψ(d) Ψ(d)ᵀ with the dims − 1 largest eigenvalues."""
    queries, images = np.asarray(queries, np.float64), np.asarray(images, np.float64)
    leading = np.linalg.eigh(images.T @ images)[1][:, ::-1][:, : dims - 1]
    return (queries @ leading) @ (images @ leading).T + bias


def row_mean_and_spread(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and population standard deviation of every row of scores (q, m)."""
    mean = scores.sum(axis=1) / scores.shape[1]
    return mean, np.sqrt(((scores - mean[:, None]) ** 2).sum(axis=1) / scores.shape[1])
