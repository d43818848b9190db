"""Judge answers: recall, confidence, position errors and mistakes.

Every answer holds its verdict, so that evaluations of two maps can be compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tfa.core.plain import Value, opt, req
from tfa.evaluate.metrics import AcceptanceCurve, Interval, Paired, interval, paired_difference, precision_recall
from tfa.maps.confidence import estimate_recall
from tfa.types import ExpectedRecall, Position

Z_SCORE, PROBABILITY = "z-score", "probability"  # kinds of confidence


class EvaluatedHit(Value, kw_only=False):
    """A hit of a head, and whether it shows the place of the query."""

    image: str = req("The map image.")
    right: bool = req("Whether it shows the place of the query.")
    confidence: float | None = req("Its confidence; null if only that of the best hit is recorded.")
    inliers: int | None = req("Patches that match in one spatial arrangement; null without reranking.", ge=0)
    distance: float | None = req("Meters from the query; null if positions are not known.", ge=0)
    position: Position | None = req("Where the map image was taken.")


class JudgedPlace(Value, kw_only=False):
    """The position estimated from all reranked images, and its distance from the ground truth."""

    position: Position = req("Estimated position.")
    radius: float = req("Radius in meters.", ge=0)
    distance: float | None = req("Meters from the query; null if its position is not known.", ge=0)
    share: float = req("Share of the evidence that supports this position.", ge=0, le=1)


@dataclass(frozen=True)
class JudgedAnswer:
    """The hits of one head for one query, best first."""

    hits: tuple[EvaluatedHit, ...]
    confidence: float | None  # of the best hit; None without hits
    sure: bool = False
    reranked: bool = False
    place: JudgedPlace | None = None  # None without an estimate or a known distance
    # Matching patches of query and image in turn, by image; not saved.
    lines: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False)

    @property
    def right(self) -> bool:
        return bool(self.hits) and self.hits[0].right

    @property
    def first_right(self) -> int | None:
        """Rank of the first right hit, from 1; None without one."""
        return next((rank for rank, hit in enumerate(self.hits, 1) if hit.right), None)


class JudgedQuery(Value, kw_only=False):
    """A labeled photo."""

    number: int = req("Number among all photos.", ge=0)
    query: str = req("The photo.")
    in_map: bool = req("Whether a map image shows its place.")
    position: Position | None = opt(None, "Where it was taken; null if that is not known.")
    true_image: str | None = opt(None, "A map image of its place: the nearest, or the middle one of a list.")
    condition: str = opt("", "Condition of a benchmark; empty without one.")


@dataclass(frozen=True)
class Run:
    """The answers of one head in the order of the queries; None for a query that was not evaluated."""

    name: str
    title: str
    kind: str  # kind of its confidences: PROBABILITY or Z_SCORE
    depth: int
    answers: tuple[JudgedAnswer | None, ...]
    grid: tuple[int, int] | None = None  # rows and columns of the patches that lines join

    @property
    def evaluated_answers(self) -> list[JudgedAnswer]:
        """Answers of the evaluated queries."""
        return [answer for answer in self.answers if answer is not None]


@dataclass(frozen=True)
class Judgement:
    """Queries, map images and the answers of each head."""

    title: str
    rule: str  # condition for a right answer, in words
    images: Mapping[str, Position | None]  # every map image by name, in the order of the map
    queries: tuple[JudgedQuery, ...]
    runs: tuple[Run, ...]
    files: Mapping[str, Path] = field(default_factory=dict)  # name of a query or an image → its photo
    flags: str = ""  # options of `tfa query` that answers correspond to; empty if queries are independent

    @property
    def not_in_map(self) -> int:
        return sum(not query.in_map for query in self.queries)


_AGREED = 0.9  # minimum agreement


class Spread(Value, kw_only=False):
    """Median and spread of distances in meters."""

    median: float = req("Median in meters.", ge=0)
    ninety: float = req("Meters that 90 % are within.", ge=0)

    @classmethod
    def of(cls, metres: np.ndarray) -> Spread:
        return cls(float(np.median(metres)), float(np.quantile(metres, 0.9)))


class Metres(Value, kw_only=False):
    """Position errors of queries for which the ground truth and the position of the best hit are known.

    `fused` and `best` cover the same queries: those with a position estimate."""

    queries: int = req("Queries whose position is known.", ge=0)
    placed: int = req("Queries with a position estimate.", ge=0)
    fused: Spread | None = req("Distances of the position estimates.")
    within_radius: float | None = req("Share of estimates whose radius holds the true position.", ge=0, le=1)
    agreed: int = req("Estimates that at least 0.9 of the evidence supports.", ge=0)
    fused_agreed: Spread | None = req("Distances of those estimates.")
    best: Spread | None = req("Distances of the best hit, of queries with an estimate.")
    best_of_all: Spread = req("Distances of the best hit, of all queries.")


def measure_distances(run: Run) -> Metres | None:
    """Measure the position errors of one run; None if positions are unknown."""
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
_HUB_FROM = 2  # minimum number of wrong answers of a hub


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
    """A map image that is the wrong best hit of several queries."""

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
    unanswered: int = opt(0, "Queries without hits, such as frames at which the camera is lost.", ge=0)
    metres: Metres | None = req("How far answers are; null if positions are not known.")
    expected_recall: CheckedRecall | None = req("Recall expected without labels; null if confidence is a z-score.")
    mistakes: list[Mistake] = req("Wrong answers, the most confident first.")
    hubs: list[Hub] = req("Images that are often the wrong answer.")


class RunChange(Value, kw_only=False):
    """One head against another, on the queries of both."""

    head: str = req("Head of this evaluation.")
    against: str = req("Head of the earlier evaluation.")
    won: int = req("Queries that only the first answers rightly.", ge=0)
    lost: int = req("Queries that only the other answers rightly.", ge=0)
    difference: Paired = req("Difference of R@1.")


def compare_runs(run: Run, other: Run) -> RunChange:
    """Compare a run with another that shares queries with it."""
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


def score_run(judgement: Judgement, run: Run, active: str = "") -> EvaluatedHead:
    """Score one run, with recall at each k up to its depth, and all mistakes; `active` names the default head.

    A query whose place is not in the map counts as missed.
    """
    answers = run.evaluated_answers
    right = np.array([answer.right for answer in answers], bool)
    confidence = np.array([np.nan if one.confidence is None else one.confidence for one in answers], np.float64)
    first = np.array([answer.first_right or np.inf for answer in answers])
    sure = np.array([answer.sure for answer in answers], bool)
    reranked = 2 * sum(answer.reranked for answer in answers) >= len(answers)
    trust = np.nan_to_num(confidence)  # a query without hits is not recognized
    expected = estimate_recall(trust, sure, verified=reranked) if run.kind == PROBABILITY else None
    of_first, curve = interval(right.astype(np.float64)), precision_recall(right, confidence)
    recalls = {k: int((first <= k).sum()) / len(answers) for k in KS if k <= run.depth}
    checked = None
    if expected is not None:
        holds = expected.low <= recalls[1] <= expected.high
        checked = CheckedRecall(**vars(expected), true=recalls[1], holds=holds)
    return EvaluatedHead(
        name=run.name,
        title=run.title,
        active=run.name == active,
        confidence=run.kind,
        k=run.depth,
        evaluated=len(answers),
        recalls={str(k): recall for k, recall in recalls.items()},
        interval=of_first,
        acceptance=RunAcceptance(
            area=curve.area,
            recall_at_99=curve.recall_at_precision(0.99),
            recall_at_100=curve.recall_at_precision(1.0),
            curve=AcceptanceCurve(**curve.drawn()),
        ),
        sure=SureAnswers(answers=int(sure.sum()), right=int((sure & right).sum())),
        unanswered=sum(not answer.hits for answer in answers),
        metres=measure_distances(run),
        expected_recall=checked,
        mistakes=_mistakes(judgement, run),
        hubs=list_hubs(answers),
    )


def _mistakes(judgement: Judgement, run: Run) -> list[Mistake]:
    wrong = [
        Mistake(
            **{name: getattr(query, name) for name in ("number", "query", "in_map", "true_image")},
            **{name: getattr(answer, name) for name in ("confidence", "sure", "first_right")},
            **{name: getattr(answer.hits[0], name) for name in ("image", "distance", "inliers")},
        )
        for query, answer in zip(judgement.queries, run.answers, strict=True)
        if answer and answer.hits and not answer.right
    ]
    return sorted(wrong, key=lambda one: (-(one.confidence or 0.0), one.number))


def list_hubs(answers: Sequence[JudgedAnswer]) -> list[Hub]:
    """List the images that are the wrong best hit of several queries, most often wrong first."""
    best = [answer.hits[0] for answer in answers if answer.hits]
    wrong = Counter(hit.image for hit in best if not hit.right)
    right = Counter(hit.image for hit in best if hit.right)
    hubs = [Hub(image, count, right[image]) for image, count in wrong.items() if count >= _HUB_FROM]
    return sorted(hubs, key=lambda hub: (-hub.wrong, hub.image))
