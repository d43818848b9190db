"""What the confidence of answers is made of, beside whether they are right: a dataset's queries, and photos outside it.

Asked in three ways, with the second-order heads that maps use:

    alone    each photo by the database-only head (carrier `tempered`)
    online   in the order of the files, adapted by the photos before (`partial`)
    c64      centred and scores calibrated by 64 photos (`partial`); the others are asked
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from tfa.bench.studies.patch_pairs import PatchPairs
from tfa.core.arrays import backend_for
from tfa.core.progress import Progress
from tfa.core.tokens import Tokens
from tfa.maps.confidence import ALTERNATIVES, Features, compute_features
from tfa.maps.database_scores import DatabaseScores
from tfa.maps.shift import DomainShiftMonitor
from tfa.method.described_queries import DescribedQueries
from tfa.method.judged import INCUMBENT, TARGET_INCUMBENT
from tfa.method.scorer import Scorer
from tfa.method.second_order_head import FittedSpaces, SecondOrderHead, assemble_second_order, fit_spaces
from tfa.method.vocabulary import CONSTRUCTIONS
from tfa.online.adaptation import DescribedPhoto, describe_photos
from tfa.online.follow import follow_scores
from tfa.search.exact import QueryVectors
from tfa.types import AUTO, HeadSpec
from tfa.verification.admission import judge_admission_on_database, judge_admission_on_target
from tfa.verification.judge import make_unjudged_evidence
from tfa.verification.reranking import Comparison, Reranked, count_candidates, rerank

WAYS = ("alone", "online", "c64")
BUDGET = 64
SPLITS, MORE_SPLITS, FEW = 2, 10, 150  # of the calibration; more where there are fewer queries
IN_A_ROW = 64  # photos that are looked at together to say whether they are unlike the map's
EVERY = 3  # own photos of a stream before one from outside the map


@dataclass(frozen=True)
class Sample:
    """The best answers to photos `n`, all rounds one after the other."""

    features: Features  # n each
    right: np.ndarray  # n, bool; none is, of photos outside the map
    rounds: np.ndarray  # n: which construction and split

    @classmethod
    def joined(cls, samples: Sequence[Sample]) -> Sample:
        columns = {f.name: np.concatenate([getattr(one.features, f.name) for one in samples]) for f in fields(Features)}
        right, rounds = (np.concatenate([getattr(one, name) for one in samples]) for name in ("right", "rounds"))
        return cls(Features(**columns), right, rounds)


@dataclass(frozen=True)
class Looks:
    """How unlike the map's photos some are: of every 64 in a row, what is noticed."""

    common: list[float | None]
    evidence: list[float | None]
    noticed: list[bool]


@dataclass(frozen=True)
class Samples:
    """Of one dataset: by (way, verified), own queries and photos outside the map; and what is noticed."""

    own: Mapping[tuple[str, bool], Sample]
    foreign: Mapping[tuple[str, bool], Sample]
    looks: Mapping[str, Looks]


@dataclass(frozen=True)
class _Photos:
    """Photos that are asked: described once, and compared once with the database."""

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
) -> Samples:
    """Of a dataset; `strangers` are photos of other datasets."""
    pairs, backend = PatchPairs(database), backend_for(device)
    known = np.array([row for row, own in enumerate(positives) if len(own)])
    photos = _Photos(queries, pairs.of(queries), positives)
    others = [_Photos(one, pairs.of(one), None) for one in map(DescribedQueries, strangers)]
    spaces = fit_spaces(database, spec, backend, "float32", progress)
    alone, adapting = (
        assemble_second_order(spaces, made, make_unjudged_evidence(spaces, made))
        for made in (spaces.decisions(INCUMBENT), spaces.decisions(TARGET_INCUMBENT))
    )
    own: dict[tuple[str, bool], list[Sample]] = {}
    foreign: dict[tuple[str, bool], list[Sample]] = {}
    usual = judge_admission_on_database(alone, pairs.evidence_between, pairs.spec, backend, progress).usual_evidence
    looks = {"alone": looked(alone.scorer(0), photos, usual)}
    looks |= {f"outside {number}": looked(alone.scorer(0), one, usual) for number, one in enumerate(others, 1)}
    with progress.task("confidence", 2 * len(CONSTRUCTIONS), "constructions") as task:
        for s in CONSTRUCTIONS:
            _add(own, "alone", alone.scorer(s), alone.scorer(s).scores(queries), photos, s, known)
            for one in others:
                _add(foreign, "alone", alone.scorer(s), alone.scorer(s).scores(one.tokens), one, s)
            task.advance()
            _add_streams(own, foreign, adapting.scorer(s), photos, others, s, known)
            task.advance()
    for split, (target, rest) in enumerate(_splits(len(queries))):
        head = _calibrated(spaces, queries.select(target))
        asked, mine = photos.select(rest, pairs), np.flatnonzero(np.isin(rest, known))
        for s in CONSTRUCTIONS:
            number = s * MORE_SPLITS + split
            _add(own, "c64", head.scorer(s), head.scorer(s).scores(asked.tokens), asked, number, mine)
            for one in others if not split else ():
                _add(foreign, "c64", head.scorer(s), head.scorer(s).scores(one.tokens), one, number)
        if not split:
            looks["c64"] = looked(head.scorer(0), asked, _usual_of_target(head, photos, target), centred=True)
    joined = [{key: Sample.joined(parts) for key, parts in kind.items()} for kind in (own, foreign)]
    return Samples(joined[0], joined[1], looks)


def _calibrated(spaces: FittedSpaces, target: Tokens) -> SecondOrderHead:
    made = spaces.decisions(TARGET_INCUMBENT, centring=True, score=True)
    return assemble_second_order(spaces, made, make_unjudged_evidence(spaces, made), target)


def _usual_of_target(head: SecondOrderHead, photos: _Photos, target: np.ndarray) -> float | None:
    def evidence(row: int, images: np.ndarray) -> np.ndarray:
        return photos.comparison.with_queries([int(target[row])], [images])[0].evidence

    return judge_admission_on_target(head, photos.tokens.select(target), evidence).usual_evidence


def _splits(queries: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Photos to calibrate with and the others, in the order of their files; none if there are too few."""
    if queries <= BUDGET:
        return []
    seeds = range(SPLITS if queries >= FEW else MORE_SPLITS)
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
    """The answers by these scores `q m`, verified and not; only `counted` photos count."""
    own = DatabaseScores(scorer)
    rows = np.arange(len(scores)) if counted is None else counted
    for verified in (True, False):
        found = _found(scores, photos.comparison if verified else None)
        features = compute_features(found, own, 1)
        best = Features(*(getattr(features, field.name)[rows, 0] for field in fields(Features)))
        positives = photos.positives
        right = [positives is not None and found.indices[row, 0] in positives[row] for row in rows.tolist()]
        samples.setdefault((way, verified), []).append(Sample(best, np.array(right, bool), np.full(len(rows), number)))


def _found(scores: np.ndarray, comparison: Comparison | None) -> Reranked:
    return (
        rerank(scores, ALTERNATIVES)
        if comparison is None
        else rerank(scores, max(ALTERNATIVES, count_candidates(AUTO)), AUTO, comparison)
    )


def _add_streams(
    own: dict[tuple[str, bool], list[Sample]],
    foreign: dict[tuple[str, bool], list[Sample]],
    scorer: Scorer,
    photos: _Photos,
    others: Sequence[_Photos],
    number: int,
    known: np.ndarray,
) -> None:
    """The queries one after the other; and with a photo from outside the map after every third."""
    described = list(describe_photos(scorer, photos.tokens))
    _add(own, "online", scorer, _stream(scorer, described), photos, number, known)
    for one in others:
        strange = list(describe_photos(scorer, one.tokens))[: len(described) // EVERY]
        mixed, places = list[DescribedPhoto](), list[int]()
        for row, photo in enumerate(described):
            mixed.append(photo)
            if row % EVERY == EVERY - 1 and len(places) < len(strange):
                places.append(len(mixed))
                mixed.append(strange[len(places) - 1])
        if places:
            scores = _stream(scorer, mixed)[places]
            _add(foreign, "online", scorer, scores, one, number, np.arange(len(places)))


def _stream(scorer: Scorer, photos: Sequence[DescribedPhoto]) -> np.ndarray:
    return np.stack([frame.scores for frame in follow_scores(scorer, photos)])


def looked(scorer: Scorer, photos: _Photos, usual: float | None, *, centred: bool = False) -> Looks:
    """Every 64 photos in a row (all, if there are fewer), each next row beginning with the last's second half."""
    scores, count = scorer.scores(photos.tokens), len(photos.tokens)
    found, vectors = _found(scores, photos.comparison), scorer.query_vectors(photos.tokens)
    common, evidence, noticed = [], [], []
    for start in range(0, max(count - IN_A_ROW, 0) + 1, IN_A_ROW // 2):
        part = slice(start, start + IN_A_ROW)
        shift_monitor = DomainShiftMonitor(usual, centred=centred)
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
    return Looks(common, evidence, noticed)
