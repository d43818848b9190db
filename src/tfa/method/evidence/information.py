"""Hub-corrected information: how well a head's top-1 answers distinguish the queries."""

from __future__ import annotations

import numpy as np

from tfa.method.evidence.rows import NO_ANSWER, ROW_EPSILON

_RESAMPLES = 1000  # ours: the paper does not state how many


def measure_information(tops: np.ndarray, images: int) -> np.ndarray:
    """I(q) of each query: Σ_j p(j|q) log( p(j|q) / (p(j) + ε) ) / log min(N_q, N), from top-1 answers `s q`.

    p(j|q) is the share of constructions that answer j; p(j) its mean over queries. A retriever that always
    answers the same has p(j|q) = p(j) and no information, however well its constructions agree.
    """
    tops = tops[:, (tops != NO_ANSWER).all(axis=0)]  # a query with no answer counts in no statistic
    constructions, queries = tops.shape
    scale = np.log(min(queries, images)) if min(queries, images) > 1 else 0.0
    if scale == 0.0:
        return np.zeros(queries)
    occupancy = np.bincount(tops.ravel(), minlength=images) / (constructions * queries)
    total = np.zeros(queries)
    for s in range(constructions):
        # Each construction adds its 1/S share of p(j|q) log(…) for its own j: summed, Σ_j p(j|q) log(…).
        share = (tops == tops[s]).mean(axis=0)
        total += np.log(share / (occupancy[tops[s]] + ROW_EPSILON)) / constructions
    return total / scale


def bootstrap_interval(
    soft: np.ndarray, hard: np.ndarray, soft_reference: float, hard_reference: float
) -> tuple[float, float]:
    """95 % interval of log(C_S / C_H), with C_a = mean I_a / (reference_a + ε), by paired resampling of queries."""
    rng = np.random.default_rng(0)
    count = len(soft)
    drawn = np.stack([rng.integers(0, count, count) for _ in range(_RESAMPLES)])
    ratio = [
        values[drawn].mean(axis=1).clip(min=0) / (reference + ROW_EPSILON)
        for values, reference in ((soft, soft_reference), (hard, hard_reference))
    ]
    return middle_interval(np.log((ratio[0] + ROW_EPSILON) / (ratio[1] + ROW_EPSILON)))


def middle_interval(values: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of resampled values."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def extreme_support(tops: np.ndarray, images: int) -> float:
    """H = √( (O/M) / (p_max · M) ) of pooled top-1 answers: punishes unused gallery and a dominant hub alike."""
    pooled = tops[tops != NO_ANSWER]
    most = min(tops.shape[1], images)
    if not len(pooled):
        return 0.0
    counts = np.bincount(pooled)
    occupied, largest = int((counts > 0).sum()), counts.max() / len(pooled)
    return float(np.clip(np.sqrt(occupied / most / (largest * most)), 0, 1))
