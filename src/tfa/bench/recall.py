"""Recall: is a right answer among the first k? Rankings and positives in, numbers out; no scores, no torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def recall_at(ranked: np.ndarray, positives: Sequence[Sequence[int]], ks: Sequence[int]) -> list[float]:
    """Share of queries with a positive among the first k of `ranked` `q n`; a query without positives is a miss."""
    first_right = np.full(len(ranked), np.inf)
    for query, (row, right) in enumerate(zip(ranked, positives, strict=True)):
        places = np.flatnonzero(np.isin(row, list(right)))
        if len(places):
            first_right[query] = places[0]
    return [float((first_right < k).mean()) if len(ranked) else 0.0 for k in ks]
