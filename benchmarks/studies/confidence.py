"""Evaluate confidence and expected recall on datasets they were not fitted on, and sure frames of drives.

The constants of `tfa.maps.confidence` are refitted with each dataset left out, then applied to it: photos queried
alone, as a stream, and after calibration with 64 photos, reranked and not. Photos outside a map are queries of all
other datasets.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize

from studies.options import (
    format_markdown,
    load_datasets,
    make_parser,
    open_encoder,
    open_progress,
    print_table,
    read_study,
    run_script,
)
from tfa.cli.console import delivered, print_text, say
from tfa.core.arrays import backend_for
from tfa.core.progress import Progress
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec
from tfa.maps.confidence import (
    ALTERNATIVES,
    PROBABLE_CONFIDENCE,
    SURE_FRAME,
    UNVERIFIED_CONSTANTS,
    VERIFIED_CONSTANTS,
    Constants,
    DatabaseScores,
    DomainShiftMonitor,
    Features,
    compute_features,
    estimate_recall,
    measure_excess,
    stand_out,
)
from tfa.method.described_queries import DescribedQueries
from tfa.method.scorer import Scorer
from tfa.method.second_order_head import (
    DATABASE_CARRIER,
    TARGET_CARRIER,
    FittedSpaces,
    SecondOrderHead,
    assemble_second_order,
    fit_spaces,
)
from tfa.online.adaptation import AdaptedScorer
from tfa.online.sequence_filter import OrderMotion, SequenceSpec
from tfa.search.gallery import QueryVectors
from tfa.types import AUTO, HeadSpec
from tfa.verification.patches import PhotoPairs
from tfa.verification.reranking import Comparison, Reranked, count_candidates, rerank
from tfa.verification.usual_evidence import measure_on_database, measure_usual_evidence
from tfa_bench.heads.judge import make_unjudged_evidence
from tfa_bench.heads.tfa_heads import PatchPairs, require_grid
from tfa_bench.records import Record, find_records, truth_of
from tfa_bench.run import Bench, prepare
from tfa_bench.streams import describe_photos, follow_scores

WAYS = ("alone", "online", "c64")
BUDGET = 64
SPLITS, _MORE_SPLITS, FEW = 2, 10, 150  # number of calibration splits; more if there are fewer queries
_IN_A_ROW = 64  # photos compared together with the map images
LIMITS = tuple(range(40, 95, 5))  # confidence limits in percent that *probable* was chosen from
_BESIDE = 1  # images next to a right one whose frames are counted separately: labels often end there


@dataclass(frozen=True)
class Probable:
    """Answers of at least some confidence that are not sure; shares."""

    share: float
    right: float | None  # None without such answers
    outside: float | None  # share of photos outside the map; None without such photos


Levels = Mapping[str, Probable]  # by limit in percent


def measure_levels(
    confidence: np.ndarray,
    sure: np.ndarray,
    right: np.ndarray,
    outside: np.ndarray | None,
    outside_sure: np.ndarray | None,
) -> Levels:
    """Measure answers `(n,)` above each of `LIMITS`, and answers to photos outside the map."""
    levels = {}
    for limit in LIMITS:
        some = (confidence >= limit / 100) & ~sure
        strange = None
        if outside is not None and outside_sure is not None:
            strange = float(((outside >= limit / 100) & ~outside_sure).mean())
        levels[str(limit)] = Probable(float(some.mean()), float(right[some].mean()) if some.any() else None, strange)
    return levels


def _read_levels(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {"levels": {limit: Probable(**one) for limit, one in facts["levels"].items()}}


@dataclass(frozen=True)
class Sample:
    """Best answers to photos `(n,)`, all rounds concatenated."""

    features: Features  # (n,) each
    right: np.ndarray  # (n,), bool; False for photos outside the map
    rounds: np.ndarray  # (n,): index of construction and split

    @classmethod
    def joined(cls, samples: Sequence[Sample]) -> Sample:
        columns = {f.name: np.concatenate([getattr(one.features, f.name) for one in samples]) for f in fields(Features)}
        right, rounds = (np.concatenate([getattr(one, name) for one in samples]) for name in ("right", "rounds"))
        return cls(Features(**columns), right, rounds)


@dataclass(frozen=True)
class Looks:
    """Difference of photos from the map images, measured for every 64 consecutive photos."""

    common: list[float | None]
    evidence: list[float | None]
    noticed: list[bool]
    outside: list[bool]  # whether the photos are taken for photos outside the map


@dataclass(frozen=True)
class Frames:
    """Frames of a drive, and frames of other datasets followed in the same map; shares."""

    recall: float
    sure: float
    sure_right: float | None  # None without sure frames
    sure_beside: float | None  # right, or next to a right image
    outside_sure: float
    levels: Levels  # right, or next to a right image


@dataclass(frozen=True)
class Samples:
    """Samples of one dataset by (way, verified): its queries and photos outside the map; and their looks."""

    within_map: Mapping[tuple[str, bool], Sample]
    foreign: Mapping[tuple[str, bool], Sample]
    looks: Mapping[str, Looks]
    frames: Frames | None = None  # None if the dataset is not a drive


@dataclass(frozen=True)
class _Photos:
    """Query photos, described once and compared once with the database."""

    tokens: DescribedQueries
    comparison: Comparison
    positives: Sequence[np.ndarray] | None  # None: they show nothing of the map

    def select(self, rows: np.ndarray, pairs: PatchPairs) -> _Photos:
        tokens = self.tokens.select(rows)
        return _Photos(tokens, pairs.of(tokens), self.positives and [self.positives[row] for row in rows])


def collect(
    database: Tokens,
    queries: DescribedQueries,
    positives: Sequence[np.ndarray],
    strangers: Sequence[Tokens],
    spec: HeadSpec,
    device: str,
    progress: Progress,
    *,
    drive: bool = False,
) -> Samples:
    """Collect the samples of a dataset; `strangers` are photos of other datasets."""
    pairs, backend = PatchPairs(database, cells=True), backend_for(device)
    evaluated = np.array([row for row, within_map in enumerate(positives) if len(within_map)])
    photos = _Photos(queries, pairs.of(queries), positives)
    others = [_Photos(one, pairs.of(one), None) for one in map(DescribedQueries, strangers)]
    spaces = fit_spaces(database, spec, backend, "float32", progress, 1)  # one construction, as in maps
    alone, adapting = (
        assemble_second_order(spaces, made, make_unjudged_evidence(spaces, made)).scorer(0)
        for made in (spaces.decisions(DATABASE_CARRIER), spaces.decisions(TARGET_CARRIER))
    )
    within_map: dict[tuple[str, bool], list[Sample]] = {}
    foreign: dict[tuple[str, bool], list[Sample]] = {}
    usual = measure_on_database(alone, pairs.evidence_between, pairs.spec.max_pseudo, progress)["usual_evidence"]
    looks: dict[str, Looks] = {}
    with progress.task("confidence", 1 + len(others), "datasets") as task:
        for number, one in enumerate([photos, *others]):
            samples, counted = (foreign, None) if number else (within_map, evaluated)
            stream, centered = _follow_stream(adapting, one, pairs)
            _add(samples, "alone", alone, alone.scores(one.tokens), one, 0, counted)
            _add(samples, "online", adapting, stream, centered, 0, counted)
            outside = f"outside {number}, " if number else ""
            looks[f"{outside}alone"] = looked(alone, alone.scores(one.tokens), one, usual)
            looks[f"{outside}online"] = looked(adapting, stream, centered, None, centred=True)
            task.advance()
    for split, (target, rest) in enumerate(_splits(len(queries))):
        scorer = _calibrated(spaces, queries.select(target)).scorer(0)
        held_out, mine = photos.select(rest, pairs), np.flatnonzero(np.isin(rest, evaluated))
        _add(within_map, "c64", scorer, scorer.scores(held_out.tokens), held_out, split, mine)
        for one in others if not split else ():
            _add(foreign, "c64", scorer, scorer.scores(one.tokens), one, split)
        if not split:
            usual = _usual_of_target(scorer, photos, target)
            looks["c64"] = looked(scorer, scorer.scores(held_out.tokens), held_out, usual, centred=True)
    frames = _follow_drives(adapting, photos, others, pairs) if drive else None
    joined = [{key: Sample.joined(parts) for key, parts in kind.items()} for kind in (within_map, foreign)]
    return Samples(joined[0], joined[1], looks, frames)


class _Centered(PhotoPairs):
    """Photos of a stream, centered on the stream's cell means; unit patches (n, r) by photo."""

    def __init__(self, pairs: PatchPairs, tokens: Tokens, centered: Mapping[int, np.ndarray]) -> None:
        super().__init__(pairs.store, tokens, require_grid(tokens), np.arange(len(pairs.store)))
        self._centered = centered

    def patches(self, row: int) -> np.ndarray:
        return self._centered[row]


def _follow_stream(scorer: Scorer, photos: _Photos, pairs: PatchPairs) -> tuple[np.ndarray, _Photos]:
    """Return the scores (q, m) of photos as a stream, and the photos as maps rerank them."""
    adapted, rows, patches = AdaptedScorer(scorer), list[np.ndarray](), dict[int, np.ndarray]()
    for row, photo in enumerate(describe_photos(scorer, photos.tokens, pairs.store)):
        centered = adapted.center_patches(photo)
        assert centered is not None
        patches[row] = centered
        rows.append(adapted.step(photo))
    return np.stack(rows), replace(photos, comparison=_Centered(pairs, photos.tokens, patches))


def _follow_drives(scorer: Scorer, photos: _Photos, others: Sequence[_Photos], pairs: PatchPairs) -> Frames:
    """Follow the queries as frames of one drive, and those of each other dataset."""
    assert photos.positives is not None
    answers, confidence, sure = _follow_drive(scorer, photos, pairs)
    away = np.array(
        [min(abs(own - answer), default=np.inf) for own, answer in zip(photos.positives, answers, strict=True)]
    )
    followed = [_follow_drive(scorer, one, pairs) for one in others]
    lost, strange = (np.concatenate([one[column] for one in followed]) for column in (1, 2))
    right, beside = ((away[sure] <= most).mean() if sure.any() else None for most in (0, _BESIDE))
    levels = measure_levels(confidence, sure, away <= _BESIDE, lost, strange)
    return Frames(float((away == 0).mean()), float(sure.mean()), right, beside, float(strange.mean()), levels)


def _follow_drive(scorer: Scorer, photos: _Photos, pairs: PatchPairs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return answers (q,) to frames, their confidence (0 if lost or not standing out), and which are sure."""
    motion, excess = OrderMotion(len(pairs.store), SequenceSpec().reach), list[float]()
    described = describe_photos(scorer, photos.tokens, pairs.store)
    answers, confidence, sure = [], [], []
    for frame in follow_scores(scorer, described, pairs.in_order(photos.tokens), candidates=AUTO, motion=motion):
        excess += measure_excess(frame.ranked)[1]
        belief = frame.belief
        assert belief is not None
        answers.append(belief.best)
        confidence.append(belief.confidence if not belief.is_lost and stand_out(excess) else 0.0)
        sure.append(confidence[-1] >= SURE_FRAME)
    return np.array(answers), np.array(confidence), np.array(sure)


def _calibrated(spaces: FittedSpaces, target: Tokens) -> SecondOrderHead:
    made = spaces.decisions(TARGET_CARRIER, centring=True, score=True)
    return assemble_second_order(spaces, made, make_unjudged_evidence(spaces, made), target)


def _usual_of_target(scorer: Scorer, photos: _Photos, target: np.ndarray) -> float | None:
    def evidence(row: int, images: np.ndarray) -> np.ndarray:
        return photos.comparison.with_queries([int(target[row])], [images])[0].evidence

    usual: float | None = measure_usual_evidence(scorer.scores(photos.tokens.select(target)), evidence)[
        "usual_evidence"
    ]
    return usual


def _splits(queries: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return calibration photos and the others, in file order; empty with too few photos."""
    if queries <= BUDGET:
        return []
    seeds = range(SPLITS if queries >= FEW else _MORE_SPLITS)
    orders = [np.random.default_rng(seed).permutation(queries) for seed in seeds]
    return [(np.sort(order[:BUDGET]), np.sort(order[BUDGET:])) for order in orders]


def _add(
    samples: dict[tuple[str, bool], list[Sample]],
    way: str,
    scorer: Scorer,
    scores: np.ndarray,
    photos: _Photos,
    number: int,
    counted: np.ndarray | None = None,
) -> None:
    """Add the answers by scores `(q, m)`, reranked and not; only `counted` photos count."""
    within_map = DatabaseScores(scorer)
    rows = np.arange(len(scores)) if counted is None else counted
    for verified in (True, False):
        found = _rerank_all(scores, photos.comparison if verified else None)
        features = compute_features(found, within_map, 1)
        best = Features(*(getattr(features, field.name)[rows, 0] for field in fields(Features)))
        positives = photos.positives
        right = [positives is not None and found.indices[row, 0] in positives[row] for row in rows.tolist()]
        samples.setdefault((way, verified), []).append(Sample(best, np.array(right, bool), np.full(len(rows), number)))


def _rerank_all(scores: np.ndarray, comparison: Comparison | None) -> Reranked:
    return (
        rerank(scores, ALTERNATIVES)
        if comparison is None
        else rerank(scores, max(ALTERNATIVES, count_candidates(AUTO)), AUTO, comparison)
    )


def looked(scorer: Scorer, scores: np.ndarray, photos: _Photos, usual: float | None, *, centred: bool = False) -> Looks:
    """Measure every 64 consecutive photos (all, if fewer), with half-overlapping windows."""
    count = len(photos.tokens)
    found, vectors = _rerank_all(scores, photos.comparison), scorer.query_vectors(photos.tokens)
    common, evidence, noticed, outside = [], [], [], []
    for start in range(0, max(count - _IN_A_ROW, 0) + 1, _IN_A_ROW // 2):
        part = slice(start, start + _IN_A_ROW)
        shift_monitor = DomainShiftMonitor(usual, centered=centred)
        some = Reranked(*(getattr(found, field.name)[part] for field in fields(Reranked)))
        shift_monitor.observe(
            scorer,
            [QueryVectors(tuple(term[part] for term in vectors.terms), vectors.weights)],
            some,
            np.arange(scores.shape[1]),
        )
        common.append(shift_monitor.common)
        evidence.append(shift_monitor.evidence)
        noticed.append(shift_monitor.warning() is not None)
        outside.append(shift_monitor.is_outside)
    return Looks(common, evidence, noticed, outside)


OUTSIDE = 0.08  # weight of all photos outside a map relative to all others
_OF_MEANS, RIDGE = 4.0, 0.02


def fit_constants(within_map: Sequence[Sample], foreign: Sequence[Sample], temperature: float) -> Constants:
    """Fit on groups of answers, and of answers to photos outside the map, with features at this temperature."""
    every = [*within_map, *foreign]
    features = np.concatenate([one.features.columns() for one in every])
    right = np.concatenate([one.right for one in every]).astype(np.float64)
    shares = [*np.full(len(within_map), 1 / len(within_map)), *np.full(len(foreign), OUTSIDE / max(len(foreign), 1))]
    counts = [len(one.right) for one in every]
    weight = np.repeat(np.array(shares) / counts, counts)
    group = np.repeat(np.arange(len(within_map)), counts[: len(within_map)])
    centre = weight @ features / weight.sum()
    spread = np.sqrt(weight @ (features - centre) ** 2 / weight.sum())
    spread = np.where(spread > 1e-6, spread, np.inf)  # a feature that is constant up to rounding has no factor
    standard, inside = (features - centre) / spread, len(group)
    sizes = np.bincount(group).astype(np.float64)
    recall = np.bincount(group, right[:inside]) / sizes

    def loss(b: np.ndarray) -> tuple[float, np.ndarray]:
        logit = b[0] + standard @ b[1:]
        confidence = 1 / (1 + np.exp(-logit))
        error = np.bincount(group, confidence[:inside]) / sizes - recall
        value = (
            weight @ (np.logaddexp(0, logit) - right * logit)
            + _OF_MEANS * (error**2).mean()
            + RIDGE * b[1:] @ b[1:] / 2
        )
        slope = weight * (confidence - right)
        slope[:inside] += (confidence * (1 - confidence))[:inside] * (2 * _OF_MEANS * error / len(error) / sizes)[group]
        return float(value), np.array([slope.sum(), *(standard.T @ slope + RIDGE * b[1:])])

    bounds = [(None, None), *[(0, None)] * len(spread)]
    found = scipy.optimize.minimize(loss, np.zeros(len(bounds)), jac=True, bounds=bounds, method="L-BFGS-B").x
    factors = found[1:] / spread
    return Constants(temperature, float(found[0] - factors @ centre), *map(float, factors))


_STRANGERS = 40  # photos of each other dataset, queried in a map that does not contain them
_IN_USE = {True: VERIFIED_CONSTANTS, False: UNVERIFIED_CONSTANTS}
KINDS = {"verified": True, "unverified": False}
COLUMNS = (
    "dataset", "way", "true R@1", "expected", "difference", "interval", "holds it", "sure", "of sure right",
    "outside sure", "outside expected",
)  # fmt: skip
SURE_WAYS = {"alone": "single", "online": "stream", "c64": "calibrated"}
SURE_COLUMNS = (
    "dataset", *(f"{words}: {share}" for words in SURE_WAYS.values() for share in ("R@1", "sure", "right")),
    "outside the map: sure",
)  # fmt: skip
LOOK_COLUMNS = ("dataset", "photos", "rows of 64", "common", "evidence", "noticed", "outside")
PROBABLE_COLUMNS = (
    "dataset", *(f"{words}: {share}" for words in SURE_WAYS.values() for share in ("probable", "right")),
    "frames: probable", "frames: right or next to it", "outside the map: probable",
)  # fmt: skip
LIMIT_COLUMNS = ("limit", "answers", "right", "lowest right of a dataset", "photos outside the map")
FRAME_COLUMNS = ("dataset", "R@1", "sure", "right", "right or next to it", "outside the map: sure")


@dataclass(frozen=True)
class LeftOut:
    """Results of one dataset and way, with constants fitted on the other datasets; fractions."""

    dataset: str
    way: str
    verified: bool
    recall: float
    expected: float
    low: float
    high: float
    sure: float
    sure_right: float | None  # None without sure answers
    outside_sure: float | None  # None without photos outside the map
    outside_expected: float | None
    levels: Levels

    @property
    def holds(self) -> bool:
        return self.low <= self.recall <= self.high


@dataclass(frozen=True)
class ConfidenceStudy:
    """Results of all datasets."""

    encoder: str
    rows: list[LeftOut]
    fitted: dict[bool, Constants]  # fitted on all datasets, for reranked answers and others
    looks: dict[str, Mapping[str, Looks]]  # by dataset
    frames: dict[str, Frames]  # by dataset, of drives

    def count_outside(self, way: str) -> tuple[int, int]:
        """Return how many pairs of a map and another dataset are taken for photos outside the map, and all pairs."""
        pairs = [
            2 * sum(one.outside) > len(one.outside)
            for looks in self.looks.values()
            for kind, one in looks.items()
            if kind.startswith("outside") and kind.endswith(way)
        ]
        return sum(pairs), len(pairs)

    def summary(self, verified: bool) -> dict[str, float]:
        """Return how much expected and true R@1 differ, over datasets and ways."""
        rows = [row for row in self.rows if row.verified == verified]
        apart = np.array([row.expected - row.recall for row in rows])
        return {
            "mean_apart": float(np.abs(apart).mean()),
            "most_apart": float(np.abs(apart).max()),
            "root_mean_square": float(np.sqrt((apart**2).mean())),
            "intervals_that_hold": float(np.mean([row.holds for row in rows])),
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "encoder": self.encoder,
            "left_out": [{**asdict(row), "holds": row.holds} for row in self.rows],
            "summary": {name: self.summary(kind) for name, kind in KINDS.items()},
            "fitted": {name: asdict(self.fitted[kind]) for name, kind in KINDS.items()},
            "in_use": {name: asdict(_IN_USE[kind]) for name, kind in KINDS.items()},
            "unlike": {name: {kind: asdict(one) for kind, one in looks.items()} for name, looks in self.looks.items()},
            "frames": {name: asdict(one) for name, one in self.frames.items()},
        }

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> ConfidenceStudy:
        """The inverse."""
        rows = [
            LeftOut(**{key: value for key, value in row.items() if key != "holds"} | _read_levels(row))
            for row in facts["left_out"]
        ]
        fitted = {kind: Constants(**facts["fitted"][name]) for name, kind in KINDS.items()}
        looks: dict[str, Mapping[str, Looks]] = {
            name: {kind: Looks(**one) for kind, one in within_map.items()}
            for name, within_map in facts["unlike"].items()
        }
        frames = {name: Frames(**one | _read_levels(one)) for name, one in facts["frames"].items()}
        return cls(facts["encoder"], rows, fitted, looks, frames)


def study_confidence(benches: Sequence[Bench], device: str, progress: Progress) -> ConfidenceStudy:
    """Fit and evaluate with each dataset left out; photos outside a map come from the other datasets."""
    if len(benches) < 2:
        raise BadSpec("confidence is fitted on datasets and evaluated on one left out; pass --dataset at least twice")
    samples = {}
    for bench in benches:
        strangers = [one.queries.tokens.select(_evenly(len(one.queries))) for one in benches if one is not bench]
        queries = bench.queries.tokens
        assert isinstance(queries, DescribedQueries)
        samples[bench.truth.name] = collect(
            bench.database.tokens, queries, bench.truth.positives, strangers, bench.spec, device, progress,
            drive=bench.dataset is not None and bench.dataset.card.ordered,
        )  # fmt: skip
    return studied(samples, benches[0].encoder.id)


def studied(samples: Mapping[str, Samples], encoder: str) -> ConfidenceStudy:
    """Evaluate every dataset with constants of the others."""
    rows = []
    for verified in (True, False):
        for name, one in samples.items():
            constants = _fitted([other for key, other in samples.items() if key != name], verified)
            for way in WAYS:
                if (way, verified) in one.within_map:
                    foreign = one.foreign.get((way, verified))
                    rows.append(left_out(name, way, verified, one.within_map[way, verified], foreign, constants))
    fitted = {verified: _fitted(list(samples.values()), verified) for verified in (True, False)}
    frames = {name: one.frames for name, one in samples.items() if one.frames is not None}
    return ConfidenceStudy(encoder, rows, fitted, {name: one.looks for name, one in samples.items()}, frames)


def left_out(
    name: str, way: str, verified: bool, within_map: Sample, foreign: Sample | None, constants: Constants
) -> LeftOut:
    """Evaluate constants on a dataset in one way; the mean over rounds."""
    confidence = within_map.features.confidence(constants, constants)
    sure = within_map.features.sure(confidence)
    rounds = [estimate_recall(confidence[k], sure[k], verified=verified) for k in _rounds(within_map)]
    evaluated = [one for one in rounds if one is not None]
    outside = None if foreign is None else foreign.features.confidence(constants, constants)
    outside_sure = None if foreign is None or outside is None else foreign.features.sure(outside)
    return LeftOut(
        dataset=name,
        way=way,
        verified=verified,
        recall=float(np.mean([within_map.right[k].mean() for k in _rounds(within_map)])),
        expected=float(np.mean([one.share for one in evaluated])),
        low=float(np.mean([one.low for one in evaluated])),
        high=float(np.mean([one.high for one in evaluated])),
        sure=float(sure.mean()),
        sure_right=float(within_map.right[sure].mean()) if sure.any() else None,
        outside_sure=None if outside_sure is None else float(outside_sure.mean()),
        outside_expected=None if outside is None else float(outside.mean()),
        levels=measure_levels(confidence, sure, within_map.right, outside, outside_sure),
    )


def _rounds(sample: Sample) -> list[np.ndarray]:
    return [sample.rounds == number for number in np.unique(sample.rounds)]


def _fitted(samples: Sequence[Samples], verified: bool) -> Constants:
    within_map, foreign = (
        [kind[way, verified] for kind in kinds for way in WAYS if (way, verified) in kind]
        for kinds in ([one.within_map for one in samples], [one.foreign for one in samples])
    )
    return fit_constants(within_map, foreign, _IN_USE[verified].temperature)


def _evenly(count: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, _STRANGERS)).round().astype(np.int64))


# --- tables --------------------------------------------------------------------------------------------------------


def table_rows(study: ConfidenceStudy, verified: bool) -> list[list[str]]:
    """Return a row per dataset and way, in percent (`COLUMNS`)."""
    rows = []
    for row in study.rows:
        if row.verified == verified:
            apart = f"{100 * (row.expected - row.recall):+.1f}"
            interval = f"{100 * row.low:.0f}–{100 * row.high:.0f}"
            shares = [_percent(one) for one in (row.sure, row.sure_right, row.outside_sure, row.outside_expected)]
            true, expected = _percent(row.recall), _percent(row.expected)
            rows.append([row.dataset, row.way, true, expected, apart, interval, "yes" if row.holds else "no", *shares])
    return rows


def sure_rows(study: ConfidenceStudy) -> list[list[str]]:
    """Return a row per dataset, in percent (`SURE_COLUMNS`): recall, share of sure answers, share of those right."""
    rows = []
    for name, ways in _group_ways(study).items():
        shares = [
            _percent(one) for way in SURE_WAYS for one in (ways[way].recall, ways[way].sure, ways[way].sure_right)
        ]
        outside = [row.outside_sure for row in ways.values() if row.outside_sure is not None]
        rows.append([name, *shares, _percent(max(outside, default=None))])
    return rows


def probable_rows(study: ConfidenceStudy) -> list[list[str]]:
    """Return a row per dataset, in percent (`PROBABLE_COLUMNS`): share of probable answers, share of those right."""
    limit = str(round(100 * PROBABLE_CONFIDENCE))
    rows = []
    for name, ways in _group_ways(study).items():
        levels = [ways[way].levels[limit] for way in SURE_WAYS]
        levels += [study.frames[name].levels[limit] if name in study.frames else Probable(0.0, None, None)]
        shares = [_percent(one) for level in levels for one in (level.share, level.right)]
        shares[-2:] = shares[-2:] if name in study.frames else ["–", "–"]
        rows.append([name, *shares, _percent(max(level.outside or 0.0 for level in levels))])
    return rows


def limit_rows(study: ConfidenceStudy) -> list[list[str]]:
    """Return a row per limit that *probable* may have (`LIMIT_COLUMNS`): means over datasets and ways, in percent."""
    rows = []
    for limit in map(str, LIMITS):
        levels = [row.levels[limit] for row in study.rows if row.verified]
        right = [level.right for level in levels if level.right is not None]
        outside = [level.outside for level in levels if level.outside is not None]
        means = (np.mean([level.share for level in levels]), np.mean(right), min(right), np.mean(outside))
        rows.append([f"0.{limit}", *(_percent(float(one)) for one in means)])
    return rows


def _group_ways(study: ConfidenceStudy) -> dict[str, dict[str, LeftOut]]:
    """Return the rows of reranked answers by dataset and way."""
    by_dataset: dict[str, dict[str, LeftOut]] = {}
    for row in study.rows:
        if row.verified:
            by_dataset.setdefault(row.dataset, {})[row.way] = row
    return by_dataset


def look_rows(study: ConfidenceStudy) -> list[list[str]]:
    """Return a row per dataset and kind of photos (`LOOK_COLUMNS`): medians over windows, and how many were noticed."""
    rows = []
    for name, looks in study.looks.items():
        for kind, one in looks.items():
            noticed, outside = (f"{100 * np.mean(share):.0f} %" for share in (one.noticed, one.outside))
            medians = (_median(one.common), _median(one.evidence))
            rows.append([name, kind, str(len(one.noticed)), *medians, noticed, outside])
    return rows


def frame_rows(study: ConfidenceStudy) -> list[list[str]]:
    """Return a row per drive, in percent (`FRAME_COLUMNS`)."""
    return [
        [name, *map(_percent, (one.recall, one.sure, one.sure_right, one.sure_beside, one.outside_sure))]
        for name, one in study.frames.items()
    ]


def describe_outside(study: ConfidenceStudy) -> str:
    """Describe how many pairs of a map and another dataset are recognized as such."""
    counts = [(way, *study.count_outside(way)) for way in ("alone", "online")]
    return "photos of another dataset are noticed: " + ", ".join(f"{n} of {of} pairs {way}" for way, n, of in counts)


def in_words(study: ConfidenceStudy, verified: bool) -> str:
    """Describe how much expected and true R@1 differ, and the constants of all datasets together."""
    facts, by = study.summary(verified), study.fitted[verified]
    return (
        f"{100 * facts['mean_apart']:.1f} points apart on average, {100 * facts['most_apart']:.1f} at most, root mean "
        f"square {100 * facts['root_mean_square']:.1f}; {100 * facts['intervals_that_hold']:.0f} % of intervals hold "
        f"the recall; fitted on all: offset {by.offset:.2f}, per place {by.per_place:.2f}, per agreement "
        f"{by.per_agreement:.2f}, per lead {by.per_lead:.2f} at T = {by.temperature}"
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def _median(values: Sequence[float | None]) -> str:
    evaluated = [value for value in values if value is not None]
    return f"{np.median(evaluated):.2f}" if evaluated else "–"


# Queries of SPED whose webcam the database holds twice. The labels count the other image as wrong.
DOUBLES = {78: 142, 202: 5, 212: 201, 284: 545}
DOUBLE_COLUMNS = ("encoder", "head", "queries", "answered at 99 % precision", "without the double webcams")


def double_rows(records: Path) -> list[tuple[str, ...]]:
    """Return rows of `DOUBLE_COLUMNS` for single photos and for photos adapted online."""
    rows = []
    for path in find_records(records / "sped"):
        record, truth = Record.read(path), truth_of(path)
        head = record.head["name"]
        if head in ("second-order-v", "second-order-online-v"):
            answers, confidence = record.rankings[:, 0, 0, 0], record.confidence[:, 0, 0]
            right = np.array([image in truth.positives[query] for query, image in enumerate(answers.tolist())])
            others = ~np.isin(np.arange(len(right)), list(DOUBLES))
            shares = [share_answered(confidence[use], right[use]) for use in (others | True, others)]
            rows.append((record.encoder["id"], head, str(len(right)), *(f"{100 * share:.1f}" for share in shares)))
    return sorted(rows)


def share_answered(confidence: np.ndarray, right: np.ndarray, precision: float = 0.99) -> float:
    """Return the largest share of queries, most confident first, whose answers have this precision."""
    order = np.argsort(-confidence, kind="stable")
    good = np.cumsum(right[order]) >= precision * np.arange(1, len(order) + 1)
    return float(np.flatnonzero(good)[-1] + 1) / len(order) if good.any() else 0.0


def main(argv: Sequence[str] | None = None) -> int:
    """Fit confidence with each dataset left out: expected and true R@1, sure answers, photos outside the map.

    For second-order heads, reranked and not, in three ways: single photos, adapted online, calibrated with 64 photos.
    """
    remark = "Two or more; photos outside a map are queries of the other datasets."
    doubles = "print answers at 99 %% precision with and without SPED's double webcams, from these records"
    parser = make_parser(main.__doc__ or "", remark, stored=True, folders={"--doubles": doubles})
    return run_script(parser, _study, argv)


def _study(arguments: Namespace) -> None:
    if arguments.doubles is not None:
        print_text(format_markdown(DOUBLE_COLUMNS, double_rows(arguments.doubles)))
        return
    if arguments.show is not None:
        print_text(format_tables(ConfidenceStudy.from_dict(read_study(arguments.show))))
        return
    loaded = load_datasets(arguments)
    if len(loaded) < 2:
        raise BadSpec("a dataset is left out of the fit; pass --dataset at least twice")
    bars, model = open_progress(arguments), open_encoder(arguments)
    study = study_confidence([prepare(data, model, progress=bars) for data in loaded], arguments.device, bars)
    if not delivered(study.to_dict(), out=arguments.out, json=arguments.json):
        show(study)


def format_tables(study: ConfidenceStudy) -> str:
    """Format the tables of sure and probable answers and all that `show` prints as Markdown."""
    parts = [format_markdown(SURE_COLUMNS, sure_rows(study)), format_markdown(FRAME_COLUMNS, frame_rows(study))]
    for verified in (True, False):
        parts.append(f"{format_markdown(COLUMNS, table_rows(study, verified), 2)}\n{in_words(study, verified)}\n")
    parts.append(format_markdown(LOOK_COLUMNS, look_rows(study), 2))
    parts += [
        format_markdown(PROBABLE_COLUMNS, probable_rows(study)),
        format_markdown(LIMIT_COLUMNS, limit_rows(study)),
    ]
    return "\n".join([*parts, describe_outside(study)])


def show(study: ConfidenceStudy) -> None:
    """Print a table of reranked answers, one of others, and one of photos that differ from the map images."""
    for verified, title in ((True, "reranked answers"), (False, "answers without reranking")):
        say(f"{title}, each dataset left out of the fit (percent); {study.encoder}", style="bold")
        print_table(COLUMNS, table_rows(study, verified))
        say(in_words(study, verified))
        say()
    say("frames of drives (percent)", style="bold")
    print_table(FRAME_COLUMNS, frame_rows(study))
    say()
    say("photos that differ from the map images", style="bold")
    print_table(LOOK_COLUMNS, look_rows(study))
    say(describe_outside(study))


if __name__ == "__main__":
    sys.exit(main())
