"""`tfa bench confidence`: what a head's confidence is worth, with labels and with photos from nowhere.

Answers are accepted if their confidence is at least t. Of photos from nowhere, queries of another dataset, every
accepted one is wrong.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tfa.base.progress import Progress, as_progress
from tfa.bench.heads.contract import HeadCard, Photos, Shared
from tfa.bench.rank import QUERIES_AT_ONCE, ranked, scored
from tfa.bench.run import Bench, calibrated

THRESHOLDS = (0.5, 0.75, 0.9, 0.95)
PRECISIONS = (0.95, 0.99)


@dataclass(frozen=True)
class ConfidenceStudy:
    """Answers of a head's first split, all replicas one after the other, and of photos from nowhere."""

    dataset: str
    head: str
    nowhere: str  # the dataset those photos are of; "" if there are none
    sure: np.ndarray  # confidence of each answer
    right: np.ndarray  # bool
    nowhere_sure: np.ndarray

    def accepted(self, threshold: float) -> dict[str, float | None]:
        """Precision of the accepted answers, share of queries answered, share of photos from nowhere accepted."""
        taken, wrongly = self.sure >= threshold, self.nowhere_sure >= threshold
        return {
            "threshold": threshold,
            "precision": float(self.right[taken].mean()) if taken.any() else None,
            "answered": float(taken.mean()),
            "nowhere": float(wrongly.mean()) if len(wrongly) else None,
        }

    def answered_at(self, precision: float, *, nowhere: bool = False) -> float:
        """The largest share of queries answered at a precision; with `nowhere`, its photos are asked too."""
        strangers = self.nowhere_sure if nowhere else self.nowhere_sure[:0]
        sure = np.concatenate([self.sure, strangers])
        right = np.concatenate([self.right, np.zeros(len(strangers), bool)])
        own = np.arange(len(sure)) < len(self.sure)
        order = np.argsort(-sure, kind="stable")
        sure, right, own = sure[order], right[order], own[order]
        last = np.append(sure[1:] < sure[:-1], True)  # equal confidences are accepted together
        good = last & (np.cumsum(right) >= precision * np.arange(1, len(sure) + 1))
        return float(np.cumsum(own)[good].max(initial=0) / max(len(self.sure), 1))

    def to_dict(self) -> dict[str, Any]:
        known = {k: v for k, v in asdict(self).items() if k not in ("sure", "right", "nowhere_sure")}
        return {
            **known,
            "recall": float(self.right.mean()),
            "answers": len(self.right),
            "photos_from_nowhere": len(self.nowhere_sure),
            "accepted": [self.accepted(threshold) for threshold in THRESHOLDS],
            "answered_at": {str(p): self.answered_at(p) for p in PRECISIONS},
            "answered_at_with_nowhere": {
                str(p): self.answered_at(p, nowhere=True) if len(self.nowhere_sure) else None for p in PRECISIONS
            },
        }


def study_confidence(
    bench: Bench,
    card: HeadCard,
    nowhere: Bench | None = None,
    *,
    shared: Shared | None = None,
    progress: bool | Progress | None = None,
) -> ConfidenceStudy:
    """Ask the first split's queries, and the queries of another dataset, of one head."""
    bars = as_progress(progress)
    split = card.plan.splits(len(bench.queries), bench.truth.conditions)[0]
    fitted = card.fit(bench.database, shared or Shared(spec=bench.spec, progress=bars))
    sure, right, strange = [], [], []
    strangers = None if nowhere is None else nowhere.queries
    total = len(split.evaluated) + (0 if strangers is None else len(strangers) * len(split.folds))
    with bars.task(f"{bench.truth.name}: asking", total * len(fitted.replicas), "photos") as task:
        for fold in split.folds:
            head = calibrated(fitted, bench.queries, fold.calibration)
            for replica in head.replicas:
                for start in range(0, len(fold.evaluated), QUERIES_AT_ONCE):
                    rows = fold.evaluated[start : start + QUERIES_AT_ONCE]
                    best, trust = _asked(head, bench.queries.select(rows), replica)
                    sure.append(trust)
                    right.append([b in bench.truth.positives[row] for b, row in zip(best, rows, strict=True)])
                    task.advance(len(rows))
                for start in range(0, 0 if strangers is None else len(strangers), QUERIES_AT_ONCE):
                    assert strangers is not None
                    some = strangers.select(slice(start, start + QUERIES_AT_ONCE))
                    strange.append(_asked(head, some, replica)[1])
                    task.advance(len(some))
    return ConfidenceStudy(
        dataset=bench.truth.name,
        head=card.name,
        nowhere="" if nowhere is None else nowhere.truth.name,
        sure=np.concatenate(sure).astype(np.float64),
        right=np.concatenate(right).astype(bool),
        nowhere_sure=np.concatenate(strange).astype(np.float64) if strange else np.empty(0),
    )


def _asked(head: Any, photos: Photos, replica: str) -> tuple[np.ndarray, np.ndarray]:
    """The best image of each photo, and how sure the head is of it."""
    scores, trust = scored(head, photos, replica)
    first, peak = ranked(scores, 1, np.dtype(np.int64))
    return first[:, 0], peak if trust is None else trust
