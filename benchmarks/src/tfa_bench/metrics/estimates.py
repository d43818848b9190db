"""What a record comes to, as values: means with deviations, intervals, and how answers fare by confidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.evaluate.metrics import Interval

UNANSWERABLE = {
    "miss": "queries without positives count as misses",
    "skip": "queries without positives left out",
}


@dataclass(frozen=True)
class Estimate:
    """Mean and sample deviation over the splits."""

    mean: float
    sd: float

    def to_dict(self) -> dict[str, float]:
        return {"mean": self.mean, "sd": self.sd}


@dataclass(frozen=True)
class Acceptance:
    """Precision against recall when answers are accepted by confidence, all queries together."""

    area: Estimate
    recall_at_99: Estimate
    recall_at_100: Estimate
    curve: Mapping[str, list[float]]  # of the first split and replica: precision, recall, answered

    def to_dict(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name).to_dict() for name in ("area", "recall_at_99", "recall_at_100")}
        return {**numbers, "curve": dict(self.curve)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored:
    """What one record comes to. `per_query` and `strata` stay out of JSON; they pair it with another."""

    dataset: str
    dataset_title: str
    truth: str  # fingerprint
    database: int  # images
    queries: int
    encoder: str
    head: str
    title: str
    sees: str
    note: str
    plan: str
    seeds: tuple[int | None, ...]
    replicas: tuple[str, ...]
    depth: int
    ks: tuple[int, ...]
    unanswerable: str  # "miss" | "skip"
    evaluated: int  # queries that count in at least one split
    without_positives: int  # of the queries evaluated
    recalls: Mapping[int, Estimate]  # k → recall
    splits: tuple[tuple[float, ...], ...]  # recall at each k of each split
    conditions: Mapping[str, Mapping[int, Estimate]]
    interval: Interval  # of recall at 1, over queries
    mean_average_precision: Estimate | None
    refused: str | None  # why there is no mean average precision
    acceptance: Acceptance
    decisions: tuple[tuple[Mapping[str, Any], ...], ...]  # of each fold of each split
    timings: Mapping[str, float]
    algorithm: Mapping[str, int]  # stage → revision; {} where none was recorded
    confidence_kinds: tuple[str, ...]  # "z-score", "probability" or both
    per_query: np.ndarray  # hit at 1 over replicas and splits; nan if never evaluated
    strata: tuple[np.ndarray, ...]  # queries of each condition

    def to_dict(self) -> dict[str, Any]:
        plain = (
            "dataset", "dataset_title", "truth", "database", "queries", "encoder", "head", "title", "sees", "note",
            "plan", "depth", "evaluated", "without_positives",
        )  # fmt: skip
        precision = self.mean_average_precision
        return {
            **{name: getattr(self, name) for name in plain},
            "seeds": list(self.seeds),
            "ks": list(self.ks),
            "replicas": list(self.replicas),
            "unanswerable": UNANSWERABLE[self.unanswerable],
            "recalls": _by_k(self.recalls),
            # JSON has no nan: a split none of whose queries counts
            "splits": [[None if np.isnan(recall) else recall for recall in recalls] for recalls in self.splits],
            "conditions": {name: _by_k(recalls) for name, recalls in self.conditions.items()},
            "interval": self.interval.to_dict(),
            "mean_average_precision": None if precision is None else precision.to_dict(),
            "refused": self.refused,
            "acceptance": self.acceptance.to_dict(),
            "decisions": [[dict(fold) for fold in folds] for folds in self.decisions],
            "timings": dict(self.timings),
            "algorithm": dict(self.algorithm),
            "confidence_kinds": list(self.confidence_kinds),
        }


def _by_k(recalls: Mapping[int, Estimate]) -> dict[str, dict[str, float]]:
    return {str(k): recall.to_dict() for k, recall in recalls.items()}
