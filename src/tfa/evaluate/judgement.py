"""Judge answers: which are right, how many, how confidently, how far away, and which mistakes to look at.

Every answer carries its verdict, so that judgements of two maps can stand side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tfa.evaluate.metrics import Curve, Interval, Paired, interval, paired_difference, precision_recall
from tfa.maps.confidence import estimate_recall
from tfa.types import ExpectedRecall, Position

Z_SCORE, PROBABILITY = "z-score", "probability"  # kinds of confidence


@dataclass(frozen=True)
class JudgedHit:
    """An image that a head gave, and whether it shows the place of the query."""

    image: str
    right: bool
    confidence: float | None = None  # None where only that of the best is recorded
    inliers: int | None = None  # patches that match in one arrangement; None if it was not verified
    distance: float | None = None  # metres from the query; None where positions are not known
    lines: tuple[int, ...] = field(default=(), repr=False)  # patches of query and image in turn, to draw; not saved


@dataclass(frozen=True)
class JudgedPlace:
    """The position that all verified images together gave, and how far it is from the truth, in metres."""

    position: Position
    radius: float
    distance: float
    share: float  # of the answers' shares that lie there


@dataclass(frozen=True)
class JudgedAnswer:
    """What one head gave for one query, best first."""

    hits: tuple[JudgedHit, ...]
    confidence: float | None  # of the best; None where there is none
    sure: bool = False
    reranked: bool = False
    place: JudgedPlace | None = None  # None where there is none, or no distance can be told

    @property
    def right(self) -> bool:
        return bool(self.hits) and self.hits[0].right

    @property
    def first_right(self) -> int | None:
        """Rank of the first right image, from 1; None if none was given."""
        return next((rank for rank, hit in enumerate(self.hits, 1) if hit.right), None)


@dataclass(frozen=True)
class JudgedQuery:
    """A photo whose place is known."""

    number: int  # among all photos that were given
    query: str
    in_map: bool  # does any image of the map show its place?
    position: Position | None = None
    true_image: str | None = None  # an image of its place: the nearest, or the middle one of those listed
    condition: str = ""


@dataclass(frozen=True)
class Run:
    """One head: its answers in the order of the queries, None where a query was not evaluated."""

    name: str
    title: str
    kind: str  # of its confidences: PROBABILITY or Z_SCORE
    depth: int
    answers: tuple[JudgedAnswer | None, ...]
    grid: tuple[int, int] | None = None  # of the patches that lines join

    @cached_property
    def evaluated(self) -> np.ndarray:
        """Queries that have an answer, by their place in the list."""
        return np.array([at for at, answer in enumerate(self.answers) if answer is not None], np.int64)

    @property
    def evaluated_answers(self) -> list[JudgedAnswer]:
        """The answers of evaluated queries."""
        return [answer for answer in self.answers if answer is not None]


@dataclass(frozen=True)
class Judgement:
    """All that is known of an evaluation."""

    title: str
    rule: str  # what makes an answer right, in words
    images: Mapping[str, Position | None]  # every image that may answer, by name, in the order of the map
    queries: tuple[JudgedQuery, ...]
    runs: tuple[Run, ...]
    files: Mapping[str, Path] = field(default_factory=dict)  # name of a query or an image → its photo

    @property
    def not_in_map(self) -> int:
        return sum(not query.in_map for query in self.queries)


_AGREED = 0.9  # of the shares: from there on answers agree, as confidence is enough for a sure answer from there on


@dataclass(frozen=True)
class Spread:
    """Median and spread of distances in meters."""

    median: float
    ninety: float  # 90 % are at most so far

    @classmethod
    def of(cls, metres: np.ndarray) -> Spread:
        return cls(float(np.median(metres)), float(np.quantile(metres, 0.9)))


@dataclass(frozen=True)
class Metres:
    """Distances of queries whose true position and whose best answer's position are known.

    `fused` and `best` cover the same queries: those that have a place."""

    queries: int
    placed: int  # of them those that have a place
    fused: Spread | None
    within_radius: float | None  # share of the places whose radius holds the truth
    agreed: int  # of the placed those whose place has nine tenths of the shares
    fused_agreed: Spread | None
    best: Spread | None
    best_of_all: Spread  # also of queries that have no place

    def to_dict(self) -> dict[str, Any]:
        return {name: vars(value) if isinstance(value, Spread) else value for name, value in vars(self).items()}


def measure_distances(run: Run) -> Metres | None:
    """Measure the distances of one run; None if they are not known."""
    known = [answer for answer in run.evaluated_answers if answer.hits and answer.hits[0].distance is not None]
    if not known:
        return None
    own = np.array([answer.hits[0].distance for answer in known], np.float64)
    away = np.array([np.nan if one.place is None else one.place.distance for one in known], np.float64)
    radius = np.array([np.nan if one.place is None else one.place.radius for one in known], np.float64)
    placed = np.isfinite(away)
    if not placed.any():
        return Metres(len(known), 0, None, None, 0, None, None, Spread.of(own))
    within = float((away[placed] <= radius[placed]).mean())
    fused, best = Spread.of(away[placed]), Spread.of(own[placed])
    agreed = np.array([one.place is not None and one.place.share >= _AGREED for one in known])
    sharp = Spread.of(away[agreed]) if agreed.any() else None
    return Metres(len(known), int(placed.sum()), fused, within, int(agreed.sum()), sharp, best, Spread.of(own))


KS = (1, 5, 10, 20)
_HUB_FROM = 2  # wrong answers from which on an image is a hub


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
class RunScores:
    """Shares are of the evaluated queries; those whose place the map does not have are misses."""

    evaluated: int
    right_within: dict[int, int]  # k → queries with a right image among the first k
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
        return {k: count / self.evaluated for k, count in self.right_within.items()}

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
class RunChange:
    """One head against another, on the queries that both were asked."""

    head: str
    against: str
    won: int  # queries that the head alone answers rightly
    lost: int  # queries that the other alone answers rightly
    difference: Paired  # of recall at 1, with its 95 % interval

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "difference": self.difference.to_dict()}


def compare_runs(run: Run, other: Run) -> RunChange:
    """What a run gains and loses against another; they must share a query."""
    right, others = (
        np.array([np.nan if answer is None else float(answer.right) for answer in one.answers]) for one in (run, other)
    )
    return RunChange(
        run.name,
        other.name,
        int(((right == 1) & (others == 0)).sum()),
        int(((right == 0) & (others == 1)).sum()),
        paired_difference(right, others),
    )


def score_run(judgement: Judgement, run: Run, ks: Sequence[int] = KS) -> RunScores:
    """Score one run of a judgement: recall at each k that its answers are deep enough for."""
    answers = run.evaluated_answers
    right = np.array([answer.right for answer in answers], bool)
    confidence = np.array([np.nan if one.confidence is None else one.confidence for one in answers], np.float64)
    first = np.array([answer.first_right or np.inf for answer in answers])
    sure = np.array([answer.sure for answer in answers], bool)
    verified = 2 * sum(answer.reranked for answer in answers) >= len(answers)
    expected = estimate_recall(confidence, sure, verified=verified) if run.kind == PROBABILITY else None
    return RunScores(
        len(answers),
        {k: int((first <= k).sum()) for k in ks if k <= run.depth},
        interval(right.astype(np.float64)),
        precision_recall(right, confidence),
        int(sure.sum()),
        int((sure & right).sum()),
        expected,
        _mistakes(judgement, run),
        _hubs(answers),
        measure_distances(run),
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
    hubs = [Hub(image, count, right[image]) for image, count in wrong.items() if count >= _HUB_FROM]
    return tuple(sorted(hubs, key=lambda hub: (-hub.wrong, hub.image)))
