"""What a run comes to: recall, precision against recall, expected against true recall, confident mistakes, hubs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.bench.evaluation.judgement import JudgedAnswer, JudgedQuery, Judgement, Run
from tfa.bench.evaluation.metres import Metres, metres_of
from tfa.bench.metrics.measures import Curve, precision_recall
from tfa.bench.metrics.resampling import Interval, Paired, interval, paired_difference
from tfa.bench.records import PROBABILITY
from tfa.maps.expected_recall import estimate_recall
from tfa.types import ExpectedRecall

KS = (1, 5, 10, 20)
HUB_FROM = 2  # wrong answers from which on an image is a hub


@dataclass(frozen=True)
class Mistake:
    """A query whose best answer is wrong."""

    query: JudgedQuery
    answer: JudgedAnswer

    def to_dict(self) -> dict[str, Any]:
        best = self.answer.hits[0]
        return {
            "number": self.query.number,
            "query": self.query.query,
            "image": best.image,
            "confidence": self.answer.confidence,
            "sure": self.answer.sure,
            "distance": best.distance,
            "inliers": best.inliers,
            "first_right": self.answer.first_right,
            "in_map": self.query.in_map,
            "true_image": self.query.true_image,
        }


@dataclass(frozen=True)
class Hub:
    """An image that is the best answer to several queries whose place it does not show."""

    image: str
    wrong: int
    right: int

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True, eq=False)
class RunNumbers:
    """Shares are of the evaluated queries; those whose place the map does not have are misses."""

    evaluated: int
    found: dict[int, int]  # k → queries with a right image among the first k
    interval: Interval  # of recall at 1, 95 %
    curve: Curve
    sure: int  # best answers that were called sure
    sure_and_right: int
    expected: ExpectedRecall | None  # None where confidence is no probability
    mistakes: tuple[Mistake, ...]  # the most confident first
    hubs: tuple[Hub, ...]  # the most often wrong first
    metres: Metres | None = None  # None where positions are not known

    @property
    def recalls(self) -> dict[int, float]:
        return {k: count / self.evaluated for k, count in self.found.items()}

    @property
    def expectation_holds(self) -> bool | None:
        """Does the recall lie in the interval that was expected without labels?"""
        return None if self.expected is None else self.expected.low <= self.recalls[1] <= self.expected.high

    def to_dict(self, worst: int) -> dict[str, Any]:
        curve = self.curve
        expected = self.expected
        return {
            "evaluated": self.evaluated,
            "recalls": {str(k): recall for k, recall in self.recalls.items()},
            "interval": self.interval.to_dict(),
            "acceptance": {
                "area": curve.area,
                "recall_at_99": curve.recall_at_precision(0.99),
                "recall_at_100": curve.recall_at_precision(1.0),
                "curve": curve.drawn(),
            },
            "sure": {"answers": self.sure, "right": self.sure_and_right},
            "metres": None if self.metres is None else self.metres.to_dict(),
            "expected_recall": None
            if expected is None
            else {**expected.to_dict(), "true": self.recalls[1], "holds": self.expectation_holds},
            "mistakes": [mistake.to_dict() for mistake in self.mistakes[:worst]],
            "hubs": [hub.to_dict() for hub in self.hubs],
        }


@dataclass(frozen=True)
class Change:
    """One head against another, on the queries that both were asked."""

    head: str
    against: str
    won: int  # queries that the head alone answers rightly
    lost: int  # queries that the other alone answers rightly
    difference: Paired  # of recall at 1, with its 95 % interval

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "difference": self.difference.to_dict()}


def change_of(run: Run, other: Run) -> Change:
    """What a run gains and loses against another; they must share a query."""
    right, others = (
        np.array([np.nan if answer is None else float(answer.right) for answer in one.answers]) for one in (run, other)
    )
    return Change(
        run.name,
        other.name,
        int(((right == 1) & (others == 0)).sum()),
        int(((right == 0) & (others == 1)).sum()),
        paired_difference(right, others),
    )


def numbers_of(judgement: Judgement, run: Run, ks: Sequence[int] = KS) -> RunNumbers:
    """Of one run of a judgement; recall at each k that its answers are deep enough for."""
    answers = run.given
    right = np.array([answer.right for answer in answers], bool)
    confidence = np.array([np.nan if one.confidence is None else one.confidence for one in answers], np.float64)
    first = np.array([answer.first_right or np.inf for answer in answers])
    sure = np.array([answer.sure for answer in answers], bool)
    verified = 2 * sum(answer.reranked for answer in answers) >= len(answers)
    expected = estimate_recall(confidence, sure, verified=verified) if run.kind == PROBABILITY else None
    return RunNumbers(
        len(answers),
        {k: int((first <= k).sum()) for k in ks if k <= run.depth},
        interval(right.astype(np.float64)),
        precision_recall(right, confidence),
        int(sure.sum()),
        int((sure & right).sum()),
        expected,
        _mistakes(judgement, run),
        _hubs(answers),
        metres_of(run),
    )


def _mistakes(judgement: Judgement, run: Run) -> tuple[Mistake, ...]:
    pairs = zip(judgement.queries, run.answers, strict=True)
    wrong = [Mistake(query, answer) for query, answer in pairs if answer and answer.hits and not answer.right]
    wrong.sort(key=lambda one: (-(one.answer.confidence or 0.0), one.query.number))
    return tuple(wrong)


def _hubs(answers: Sequence[JudgedAnswer]) -> tuple[Hub, ...]:
    best = [answer.hits[0] for answer in answers if answer.hits]
    wrong = Counter(hit.image for hit in best if not hit.right)
    right = Counter(hit.image for hit in best if hit.right)
    hubs = [Hub(image, count, right[image]) for image, count in wrong.items() if count >= HUB_FROM]
    return tuple(sorted(hubs, key=lambda hub: (-hub.wrong, hub.image)))
