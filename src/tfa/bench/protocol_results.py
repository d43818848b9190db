"""What a protocol measured, split by split, and what it comes to: mean and sample deviation over the splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Recalls = Mapping[str, tuple[float, ...]]  # of each replica: recall at each k


@dataclass(frozen=True)
class Fold:
    """One calibrated head: the queries it was calibrated on, the queries it was asked, what it decided."""

    calibration: tuple[int, ...]  # in the order drawn
    evaluated: tuple[int, ...]
    decisions: Mapping[str, Any]
    condition: str | None = None  # the query set the numbers belong to, where each has a head of its own

    def to_dict(self) -> dict[str, Any]:
        condition = {} if self.condition is None else {"condition": self.condition}
        return {
            **condition,
            "calibration": list(self.calibration),
            "evaluated": list(self.evaluated),
            "decisions": dict(self.decisions),
        }


@dataclass(frozen=True)
class Split:
    """One draw of calibration queries. A cross-fit has two folds in its one split, most protocols one."""

    seed: int | None
    folds: tuple[Fold, ...]
    recalls: Recalls
    conditions: Mapping[str, Recalls] = field(default_factory=dict)

    @property
    def mean(self) -> tuple[float, ...]:
        """Recall at each k, averaged over the replicas."""
        return mean_over_replicas(self.recalls)

    def to_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "seed": self.seed,
            "folds": [fold.to_dict() for fold in self.folds],
            "recalls": _listed(self.recalls),
            "mean": list(self.mean),
        }
        if self.conditions:
            told["conditions"] = {name: _listed(recalls) for name, recalls in self.conditions.items()}
        return told


@dataclass(frozen=True)
class ProtocolResult:
    protocol: str
    ks: tuple[int, ...]
    splits: tuple[Split, ...]
    saw: str

    @property
    def mean(self) -> tuple[float, ...]:
        """Recall at each k: mean over replicas (and conditions) within a split, then over the splits."""
        return _mean_and_deviation([split.mean for split in self.splits])[0]

    @property
    def sd(self) -> tuple[float, ...]:
        """Sample standard deviation over the splits; 0 for a single one."""
        return _mean_and_deviation([split.mean for split in self.splits])[1]

    @property
    def conditions(self) -> dict[str, dict[str, list[float]]]:
        """Mean and deviation of each condition."""
        told = {}
        for name in self.splits[0].conditions:
            mean, sd = _mean_and_deviation([mean_over_replicas(split.conditions[name]) for split in self.splits])
            told[name] = {"mean": list(mean), "sd": list(sd)}
        return told

    def to_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "protocol": self.protocol,
            "saw": self.saw,
            "ks": list(self.ks),
            "mean": list(self.mean),
            "sd": list(self.sd),
        }
        if self.conditions:
            told["conditions"] = self.conditions
        return {**told, "splits": [split.to_dict() for split in self.splits]}


def mean_over_replicas(recalls: Recalls) -> tuple[float, ...]:
    return tuple(np.mean(list(recalls.values()), axis=0).tolist())


def macro_average(conditions: Sequence[Recalls]) -> Recalls:
    """Recalls of each replica, averaged over conditions whatever the number of their queries."""
    return {
        replica: tuple(np.mean([recalls[replica] for recalls in conditions], axis=0).tolist())
        for replica in conditions[0]
    }


def _mean_and_deviation(rows: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    values = np.array(rows, dtype=np.float64)
    sd = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
    return tuple(values.mean(axis=0).tolist()), tuple(sd.tolist())


def _listed(recalls: Recalls) -> dict[str, list[float]]:
    return {replica: list(values) for replica, values in recalls.items()}
