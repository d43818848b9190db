"""Judge answers: which are right, how many, how confidently, how far away, and which mistakes to look at.

Every answer carries its verdict, so that judgements of two maps can stand side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from tfa.core.plain import Value, opt, req
from tfa.evaluate.metrics import AcceptanceCurve, Curve, Interval, Paired, interval, paired_difference, precision_recall
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


class JudgedPlace(Value, kw_only=False):
    """The position that all verified images together gave, and how far it is from the truth, in metres."""

    position: Position = req("Estimated position.")
    radius: float = req("Radius in meters.", ge=0)
    distance: float | None = req("Meters from the query; null if its position is not known.", ge=0)
    share: float = req("Share of the evidence that supports this position.", ge=0, le=1)


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


class JudgedQuery(Value, kw_only=False):
    """A photo whose place is known."""

    number: int = req("Number among all photos.", ge=0)
    query: str = req("The photo.")
    in_map: bool = req("Whether a map image shows its place.")
    position: Position | None = opt(None, "Where it was taken; null if that is not known.")
    true_image: str | None = opt(None, "A map image of its place: the nearest, or the middle one of a list.")
    condition: str = opt("", "Condition of a benchmark; empty without one.")


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


class Spread(Value, kw_only=False):
    """Median and spread of distances in meters."""

    median: float = req("Median in meters.", ge=0)
    ninety: float = req("Meters that 90 % are within.", ge=0)

    @classmethod
    def of(cls, metres: np.ndarray) -> Spread:
        return cls(float(np.median(metres)), float(np.quantile(metres, 0.9)))


class Metres(Value, kw_only=False):
    """Distances of queries whose true position and whose best answer's position are known.

    `fused` and `best` cover the same queries: those that have a place."""

    queries: int = req("Queries whose position is known.", ge=0)
    placed: int = req("Queries with a position estimate.", ge=0)
    fused: Spread | None = req("Distances of the position estimates.")
    within_radius: float | None = req("Share of estimates whose radius holds the true position.", ge=0, le=1)
    agreed: int = req("Estimates that at least 0.9 of the evidence supports.", ge=0)
    fused_agreed: Spread | None = req("Distances of those estimates.")
    best: Spread | None = req("Distances of the best hit, of queries with an estimate.")
    best_of_all: Spread = req("Distances of the best hit, of all queries.")


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


class Mistake(Value):
    """A wrong answer."""

    number: int = req("Number of the query among all photos.", ge=0)
    query: str = req("The photo.")
    image: str = req("The wrong best hit.")
    confidence: float | None = req("Confidence of the answer.")
    sure: bool = req("Whether it was called sure.")
    distance: float | None = req("Meters from the query; null if positions are not known.", ge=0)
    inliers: int | None = req("Patches that match in one spatial arrangement; null without reranking.", ge=0)
    first_right: int | None = req("Rank of the first right hit; null if there is none.", ge=1)
    in_map: bool = req("Whether a map image shows its place.")
    true_image: str | None = req("A map image of its place.")


class Hub(Value, kw_only=False):
    """An image that is the best answer to several queries whose place it does not show."""

    image: str = req("The map image.")
    wrong: int = req("Queries that it answers wrongly.", ge=2)
    right: int = req("Queries that it answers rightly.", ge=0)


class RunAcceptance(Value):
    """Precision against recall if best answers are accepted by their confidence."""

    area: float = req("Area under precision against recall.", ge=0)
    recall_at_99: float = req("Largest recall at 99 % precision.", ge=0, le=1)
    recall_at_100: float = req("Largest recall at 100 % precision.", ge=0, le=1)
    curve: AcceptanceCurve = req("Points of the curve.")


class SureAnswers(Value):
    """Answers that were called sure."""

    answers: int = req("Sure answers.", ge=0)
    right: int = req("Sure answers that are right.", ge=0)


class CheckedRecall(ExpectedRecall):
    """Recall that was expected without labels, and the true one."""

    true: float = req("R@1.", ge=0, le=1)
    holds: bool = req("Whether the interval holds it.")


class EvaluatedHead(Value):
    """One head of a map on labeled photos."""

    name: str = req("none, or the name of a calibration.")
    title: str = req("Name for display.")
    active: bool = req("Whether it answers if a query names none.")
    confidence: str = req("What confidence is.", pattern=f"^({PROBABILITY}|{Z_SCORE})$")
    k: int = req("Hits kept for each query.", ge=1)
    evaluated: int = req("Queries that count.", ge=1)
    recalls: dict[str, float] = req("Share of queries with a right image among the first k, by k.")
    interval: Interval = req("95 % interval of R@1.")
    acceptance: RunAcceptance = req("Precision against recall.")
    sure: SureAnswers = req("Answers that were called sure.")
    metres: Metres | None = req("How far answers are; null if positions are not known.")
    expected_recall: CheckedRecall | None = req("Recall expected without labels; null if confidence is a z-score.")
    mistakes: list[Mistake] = req("Wrong answers, the most confident first.")
    hubs: list[Hub] = req("Images that are often the wrong answer.")


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

    def result(self, run: Run, worst: int, *, active: bool) -> EvaluatedHead:
        """Return what is printed of a run, with its `worst` mistakes."""
        curve, checked = self.curve, None
        if self.expected is not None and self.expectation_holds is not None:
            checked = CheckedRecall(**vars(self.expected), true=self.recalls[1], holds=self.expectation_holds)
        return EvaluatedHead(
            name=run.name,
            title=run.title,
            active=active,
            confidence=run.kind,
            k=run.depth,
            evaluated=self.evaluated,
            recalls={str(k): recall for k, recall in self.recalls.items()},
            interval=self.interval,
            acceptance=RunAcceptance(
                area=curve.area,
                recall_at_99=curve.recall_at_precision(0.99),
                recall_at_100=curve.recall_at_precision(1.0),
                curve=AcceptanceCurve(**curve.drawn()),
            ),
            sure=SureAnswers(answers=self.sure, right=self.sure_and_right),
            metres=self.metres,
            expected_recall=checked,
            mistakes=list(self.mistakes[:worst]),
            hubs=list(self.hubs),
        )


class RunChange(Value, kw_only=False):
    """One head against another, on the queries that both were asked."""

    head: str = req("Head of this evaluation.")
    against: str = req("Head of the earlier evaluation.")
    won: int = req("Queries that only the first answers rightly.", ge=0)
    lost: int = req("Queries that only the other answers rightly.", ge=0)
    difference: Paired = req("Difference of R@1.")


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
    wrong = [
        Mistake(
            **{name: getattr(query, name) for name in ("number", "query", "in_map", "true_image")},
            **{name: getattr(answer, name) for name in ("confidence", "sure", "first_right")},
            **{name: getattr(answer.hits[0], name) for name in ("image", "distance", "inliers")},
        )
        for query, answer in zip(judgement.queries, run.answers, strict=True)
        if answer and answer.hits and not answer.right
    ]
    return tuple(sorted(wrong, key=lambda one: (-(one.confidence or 0.0), one.number)))


def _hubs(answers: Sequence[JudgedAnswer]) -> tuple[Hub, ...]:
    best = [answer.hits[0] for answer in answers if answer.hits]
    wrong = Counter(hit.image for hit in best if not hit.right)
    right = Counter(hit.image for hit in best if hit.right)
    hubs = [Hub(image, count, right[image]) for image, count in wrong.items() if count >= _HUB_FROM]
    return tuple(sorted(hubs, key=lambda hub: (-hub.wrong, hub.image)))
