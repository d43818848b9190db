"""Recall and average precision of rankings, and means over entries that may be nan.

A ranking lists database indices, best first. An entry that does not name an image never matches, so a row without
images (a scorer that gave every image the same score) has a recall of 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Positives = Sequence[Sequence[int]] | Sequence[np.ndarray]


def matches(ranked: np.ndarray, positives: Positives, nothing: int | None = None) -> np.ndarray:
    """Mark the entries of `ranked` (q, …, n) that are positives of their query."""
    ranked = np.asarray(ranked).astype(np.int64)  # records hold unsigned integers, which have no -1
    rights = [np.asarray(right, np.int64) for right in positives]
    end = 1 + int(np.concatenate(rights).max(initial=-1)) if rights else 0
    table = np.zeros(end + 1, bool)  # the last slot stays False, for entries beyond the positives
    slots = np.clip(ranked, -1, end)
    if nothing is not None:
        slots[ranked == nothing] = end
    hits = np.zeros(ranked.shape, bool)
    for query, (row, own) in enumerate(zip(slots, rights, strict=True)):
        table[own] = True
        hits[query] = table[row]
        table[own] = False
    return hits


def first_right(ranked: np.ndarray, positives: Positives) -> np.ndarray:
    """Return the rank (0 is best) of each query's first positive in `ranked` (q, …, n); inf without one."""
    hits = matches(ranked, positives)
    if hits.shape[-1] == 0:  # argmax rejects empty rows
        return np.full(hits.shape[:-1], np.inf)
    return np.where(hits.any(axis=-1), hits.argmax(axis=-1), np.inf)


def recall_at(ranked: np.ndarray, positives: Positives, ks: Sequence[int]) -> list[float]:
    """Return the share of queries with a positive in the top k of `ranked` (q, n); one without positives is missed."""
    first = first_right(ranked, positives)
    return [float((first < k).mean()) if len(first) else 0.0 for k in ks]


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
