"""Average precision of rankings, and means over entries that may be nan."""

from __future__ import annotations

import numpy as np

from tfa.evaluate.metrics import Positives, matches


def average_precision(ranked: np.ndarray, positives: Positives, nothing: int) -> np.ndarray:
    """Return the sum over hits of the precision at their rank, divided by the number of positives.

    Positives beyond the end of `ranked` (q, …, n) count as missed. Without positives it is 0.
    """
    found = matches(ranked, positives, nothing)
    precision = np.cumsum(found, axis=-1) / np.arange(1, found.shape[-1] + 1)
    wanted = np.array([max(len(right), 1) for right in positives], np.float64)
    wanted = wanted.reshape(-1, *[1] * (found.ndim - 2))
    return (precision * found).sum(axis=-1) / wanted


def nan_mean(values: np.ndarray, axis: int | tuple[int, ...] = 0) -> np.ndarray:
    """Return the mean of the entries that are not nan; nan if all are."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def mean_and_deviation(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and sample deviation (n - 1) over axis 0, without nan; the deviation of a single entry is 0."""
    mean = nan_mean(values)
    known = (~np.isnan(values)).sum(axis=0)
    squares = np.nansum((values - mean) ** 2, axis=0)
    return mean, np.sqrt(squares / np.maximum(known - 1, 1))
