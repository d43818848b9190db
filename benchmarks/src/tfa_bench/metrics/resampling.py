"""How far a mean over queries may be off: bootstrap intervals, and differences of two heads on the same queries.

Queries are drawn with replacement, 1,000 times, always the same draws. Where the statistic is an average over
conditions, each condition draws from its own queries and keeps its weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfa.errors import BadSpec

RESAMPLES = 1000
PERCENTILES = (2.5, 97.5)
BLOCK = 1 << 20  # draws held at a time


@dataclass(frozen=True)
class Interval:
    """A mean of per-query values and its 95 % interval."""

    mean: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        return {"mean": self.mean, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Paired:
    """The mean difference of two heads over the queries both were evaluated on."""

    mean: float
    low: float
    high: float
    above: float  # share of resamples above 0
    queries: int  # evaluated for both

    def to_dict(self) -> dict[str, float | int]:
        return {"mean": self.mean, "low": self.low, "high": self.high, "above": self.above, "queries": self.queries}


def interval(values: np.ndarray, strata: Sequence[np.ndarray] = (), *, seed: int = 0) -> Interval:
    """Of per-query `values` `q`, nan where a query was not evaluated; `strata` are the queries of each condition."""
    groups = _known_groups(values, strata)
    means = _resampled_means(groups, seed)
    low, high = np.percentile(means, PERCENTILES)
    return Interval(_macro(groups), float(low), float(high))


def paired_difference(
    one: np.ndarray, other: np.ndarray, strata: Sequence[np.ndarray] = (), *, seed: int = 0
) -> Paired:
    """`one` minus `other`: per-query values of two heads, nan where a query was not evaluated."""
    if len(one) != len(other):
        raise BadSpec(f"heads of {len(one)} and {len(other)} queries cannot be paired; compare heads of one dataset")
    groups = _known_groups(np.asarray(one, np.float64) - np.asarray(other, np.float64), strata)
    means = _resampled_means(groups, seed)
    low, high = np.percentile(means, PERCENTILES)
    return Paired(_macro(groups), float(low), float(high), float((means > 0).mean()), sum(map(len, groups)))


def _known_groups(values: np.ndarray, strata: Sequence[np.ndarray]) -> list[np.ndarray]:
    values = np.asarray(values, np.float64)
    groups = [values[own] for own in strata] if len(strata) else [values]
    known = [group[~np.isnan(group)] for group in groups]
    known = [group for group in known if len(group)]
    if not known:
        raise BadSpec(
            "no query has a value, so there is nothing to resample; compare heads evaluated on the same queries"
        )
    return known


def _macro(groups: Sequence[np.ndarray]) -> float:
    return float(np.mean([group.mean() for group in groups]))


def _resampled_means(groups: Sequence[np.ndarray], seed: int) -> np.ndarray:
    """Means of `RESAMPLES` draws of each group with replacement, averaged over the groups."""
    rng = np.random.default_rng(seed)
    total = np.zeros(RESAMPLES)
    for group in groups:
        rows = max(1, BLOCK // len(group))
        for start in range(0, RESAMPLES, rows):
            block = slice(start, min(start + rows, RESAMPLES))
            drawn = rng.integers(len(group), size=(block.stop - start, len(group)))
            total[block] += group[drawn].mean(axis=1)
    return total / len(groups)
