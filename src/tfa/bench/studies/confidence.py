"""`tfa bench confidence`: what a head's confidence is worth, with labels and with out-of-map queries.

Answers are accepted if their confidence is at least t. Of out-of-map queries, those of another dataset, every
accepted one is wrong.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tfa.base.progress import Progress, as_progress
from tfa.bench.heads.contract import HeadCard, Shared
from tfa.bench.rank import answered, ranked
from tfa.bench.run import Bench, calibrated

THRESHOLDS = (0.5, 0.75, 0.9, 0.95)
PRECISIONS = (0.95, 0.99)


@dataclass(frozen=True)
class ConfidenceStudy:
    """Answers of a head's first split, all replicas one after the other, and of out-of-map queries."""

    dataset: str
    head: str
    out_of_map: str  # the dataset those photos are of; "" if there are none
    sure: np.ndarray  # confidence of each answer
    right: np.ndarray  # bool
    out_of_map_sure: np.ndarray

    def accepted(self, threshold: float) -> dict[str, float | None]:
        """Precision of the accepted answers, share of queries answered, share of out-of-map queries accepted."""
        taken, wrongly = self.sure >= threshold, self.out_of_map_sure >= threshold
        return {
            "threshold": threshold,
            "precision": float(self.right[taken].mean()) if taken.any() else None,
            "answered": float(taken.mean()),
            "out_of_map": float(wrongly.mean()) if len(wrongly) else None,
        }

    def answered_at(self, precision: float, *, out_of_map: bool = False) -> float:
        """The largest share of queries answered at a precision; with `out_of_map`, those queries count too."""
        others = self.out_of_map_sure if out_of_map else self.out_of_map_sure[:0]
        sure = np.concatenate([self.sure, others])
        right = np.concatenate([self.right, np.zeros(len(others), bool)])
        own = np.arange(len(sure)) < len(self.sure)
        order = np.argsort(-sure, kind="stable")
        sure, right, own = sure[order], right[order], own[order]
        last = np.append(sure[1:] < sure[:-1], True)  # equal confidences are accepted together
        good = last & (np.cumsum(right) >= precision * np.arange(1, len(sure) + 1))
        return float(np.cumsum(own)[good].max(initial=0) / max(len(self.sure), 1))

    def to_dict(self) -> dict[str, Any]:
        known = {k: v for k, v in asdict(self).items() if k not in ("sure", "right", "out_of_map_sure")}
        return {
            **known,
            "recall": float(self.right.mean()),
            "answers": len(self.right),
            "out_of_map_queries": len(self.out_of_map_sure),
            "accepted": [self.accepted(threshold) for threshold in THRESHOLDS],
            "answered_at": {str(p): self.answered_at(p) for p in PRECISIONS},
            "answered_at_with_out_of_map": {
                str(p): self.answered_at(p, out_of_map=True) if len(self.out_of_map_sure) else None for p in PRECISIONS
            },
        }


def study_confidence(
    bench: Bench,
    card: HeadCard,
    out_of_map: Bench | None = None,
    *,
    shared: Shared | None = None,
    progress: bool | Progress | None = None,
) -> ConfidenceStudy:
    """Query one head with the first split's queries, and with those of another dataset."""
    bars = as_progress(progress)
    split = card.plan.splits(len(bench.queries), bench.truth.conditions)[0]
    fitted = card.fit(bench.database, shared or Shared(spec=bench.spec, progress=bars))
    sure, right, of_others = [], [], []
    others = None if out_of_map is None else out_of_map.queries
    total = len(split.evaluated) + (0 if others is None else len(others) * len(split.folds))
    with bars.task(f"{bench.truth.name}: querying", total * len(fitted.replicas), "photos") as task:
        for fold in split.folds:
            head = calibrated(fitted, bench.queries, fold.calibration)
            for replica in head.replicas:
                for rows, scores, own in answered(head, bench.queries, fold.evaluated, replica):
                    best, trust = _best_answers(scores, own)
                    sure.append(trust)
                    right.append([b in bench.truth.positives[row] for b, row in zip(best, rows, strict=True)])
                    task.advance(len(rows))
                if others is not None:
                    for rows, scores, own in answered(head, others, np.arange(len(others)), replica):
                        of_others.append(_best_answers(scores, own)[1])
                        task.advance(len(rows))
    return ConfidenceStudy(
        dataset=bench.truth.name,
        head=card.name,
        out_of_map="" if out_of_map is None else out_of_map.truth.name,
        sure=np.concatenate(sure).astype(np.float64),
        right=np.concatenate(right).astype(bool),
        out_of_map_sure=np.concatenate(of_others).astype(np.float64) if of_others else np.empty(0),
    )


def _best_answers(scores: np.ndarray, trust: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The best image of each photo, and how sure the head is of it."""
    first, peak = ranked(scores, 1, np.dtype(np.int64))
    return first[:, 0], peak if trust is None else trust
