"""Measure answers: precision against recall, and bootstrap intervals.

Intervals resample queries with replacement, 1,000 times with a fixed seed. If the statistic is an average over
conditions, each condition is resampled separately and keeps its weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfa.core.plain import Value, req
from tfa.errors import BadSpec


@dataclass(frozen=True, eq=False)
class Curve:
    """Precision and recall by confidence threshold: one point per occurring confidence, highest first."""

    threshold: np.ndarray
    precision: np.ndarray  # share of accepted answers that are right
    recall: np.ndarray  # share of queries that are accepted and right
    answered: np.ndarray  # share of queries that are accepted

    @property
    def area(self) -> float:
        """Area Σ (R_i - R_{i-1}) P_i, without interpolation."""
        return float((np.diff(self.recall, prepend=0.0) * self.precision).sum())

    def recall_at_precision(self, level: float) -> float:
        """Return the largest recall at a precision of at least `level`; 0 if no threshold reaches it."""
        # Division rounds correctly: 99 / 100 and 198 / 200 equal 0.99.
        return float(self.recall[self.precision >= level].max(initial=0.0))

    def drawn(self, points: int = 100) -> dict[str, list[float]]:
        """Return at most `points` evenly spaced points of the curve, including both ends."""
        last = len(self.threshold) - 1
        kept = np.unique(np.linspace(0, last, points).round().astype(np.int64)) if last >= points else slice(None)
        return {name: getattr(self, name)[kept].tolist() for name in ("precision", "recall", "answered")}


def precision_recall(correct: np.ndarray, confidence: np.ndarray) -> Curve:
    """Compute precision and recall if best hits are accepted from each confidence on; nan is never accepted."""
    correct, confidence = np.asarray(correct, bool), np.asarray(confidence, np.float64)
    known = ~np.isnan(confidence)
    order = np.argsort(-confidence[known], kind="stable")
    sorted_confidence, right = confidence[known][order], np.cumsum(correct[known][order])
    # Equal confidences are accepted together, so only the last of each group is a point.
    ends = np.flatnonzero(np.append(sorted_confidence[1:] != sorted_confidence[:-1], True)[: len(order)])
    accepted, right = ends + 1, right[ends]
    return Curve(sorted_confidence[ends], right / accepted, right / len(correct), accepted / len(correct))


RESAMPLES = 1000
_PERCENTILES = (2.5, 97.5)
BLOCK = 1 << 20  # draws in memory at a time


class Interval(Value, kw_only=False):
    """A mean of per-query values and its 95 % interval."""

    mean: float = req("Mean over queries.")
    low: float = req("Lower end of the 95 % interval.")
    high: float = req("Upper end of the 95 % interval.")


class Paired(Interval, kw_only=False):
    """The mean difference of two heads over their common queries."""

    mean: float = req("Mean difference.")
    above: float = req("Share of resamples above 0.", ge=0, le=1)
    queries: int = req("Queries that both were evaluated on.", ge=0)


class AcceptanceCurve(Value):
    """Precision against recall if best answers are accepted by their confidence, at most 100 points."""

    precision: list[float] = req("Share of accepted answers that are right.")
    recall: list[float] = req("Share of all queries answered rightly.")
    answered: list[float] = req("Share of queries whose answer is accepted.")


def interval(values: np.ndarray, strata: Sequence[np.ndarray] = ()) -> Interval:
    """Bootstrap the mean of per-query `values` (q,), nan: not evaluated; `strata` are the queries of each condition."""
    return _bootstrap(_drop_nan(values, strata))[0]


def paired_difference(one: np.ndarray, other: np.ndarray, strata: Sequence[np.ndarray] = ()) -> Paired:
    """Bootstrap `one` minus `other`: per-query values of two heads, nan if a query was not evaluated."""
    if len(one) != len(other):
        raise BadSpec(f"heads of {len(one)} and {len(other)} queries cannot be paired; compare heads of one dataset")
    groups = _drop_nan(np.asarray(one, np.float64) - np.asarray(other, np.float64), strata)
    estimate, means = _bootstrap(groups)
    return Paired(**vars(estimate), above=float((means > 0).mean()), queries=sum(map(len, groups)))


def _drop_nan(values: np.ndarray, strata: Sequence[np.ndarray]) -> list[np.ndarray]:
    values = np.asarray(values, np.float64)
    groups = [values[own] for own in strata] if len(strata) else [values]
    known = [group[~np.isnan(group)] for group in groups]
    known = [group for group in known if len(group)]
    if not known:
        raise BadSpec(
            "no query has a value, so there is nothing to resample; compare heads evaluated on the same queries"
        )
    return known


def _bootstrap(groups: Sequence[np.ndarray]) -> tuple[Interval, np.ndarray]:
    """Return the mean over groups and its interval, and the means of `RESAMPLES` draws of each with replacement."""
    rng = np.random.default_rng(0)
    total = np.zeros(RESAMPLES)
    for group in groups:
        rows = max(1, BLOCK // len(group))
        for start in range(0, RESAMPLES, rows):
            block = slice(start, min(start + rows, RESAMPLES))
            drawn = rng.integers(len(group), size=(block.stop - start, len(group)))
            total[block] += group[drawn].mean(axis=1)
    means = total / len(groups)
    low, high = np.percentile(means, _PERCENTILES)
    return Interval(float(np.mean([group.mean() for group in groups])), float(low), float(high)), means
