"""Query a map with labeled photos, with each of its heads, and save the evaluation as JSON.

A saved evaluation holds every answer, so that later evaluations can be compared with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tfa.core.files import require_format
from tfa.core.plain import Value, from_plain, opt, req
from tfa.core.progress import Progress
from tfa.core.tokens import Tokens
from tfa.errors import BadPositions
from tfa.evaluate.ground_truth import GroundTruth, find_nearest_true
from tfa.evaluate.judgement import (
    PROBABILITY,
    EvaluatedHead,
    EvaluatedHit,
    JudgedAnswer,
    JudgedPlace,
    JudgedQuery,
    Judgement,
    Run,
    RunChange,
    compare_runs,
    score_run,
)
from tfa.evaluate.positives import BadEvaluation, measure_lengths, position_kinds, to_points
from tfa.maps import PlaceMap
from tfa.maps.state import DATABASE
from tfa.maps.tracker import query_sequence
from tfa.photos.token_cache import EncodedPhoto
from tfa.types import Answer, Answers, Hit, ImageRecord, Position, SkippedFile, StreamOptions
from tfa.verification.matching import Matches
from tfa.version import __version__

INDEPENDENT = StreamOptions()
_MOST_LINES = 150  # maximum lines between two photos; more are unreadable


@dataclass(frozen=True)
class MapEvaluation:
    """The evaluation of a map, and the photos it leaves out."""

    judgement: Judgement
    truth: GroundTruth
    active: str  # the default head
    without_truth: tuple[str, ...]
    unreadable: tuple[tuple[str, str], ...]  # photo, reason
    skipped_unanswerable: int = 0
    stream: StreamOptions = INDEPENDENT


def choose_heads(place_map: PlaceMap, names: Sequence[str] = ()) -> list[str]:
    """List the heads to evaluate: the map's own and each calibration, or those in `names`; a store has one."""
    there = [DATABASE, *place_map.calibrations] if place_map.storage.has_all_rows else [place_map.state.active]
    for name in names:
        place_map.storage.snapshot().check_head(name)  # the error for an unknown name lists all
    return [name for name in there if name in names] if names else there


def evaluate_map(
    place_map: PlaceMap,
    photos: Sequence[Path],
    truth: GroundTruth,
    *,
    heads: Sequence[str] = (),
    k: int = 20,
    lines: bool = False,
    stream: StreamOptions = INDEPENDENT,
    progress: bool | Progress | None = None,
) -> MapEvaluation:
    """Query a map with labeled photos and judge the answers.

    Photos are encoded once, through the token cache; unreadable ones are left out and listed. A stream contains all
    photos, also those that are not judged. With `lines`, answers keep their matching patches for drawing.
    """
    names = choose_heads(place_map, heads)
    known = [number for number in truth.labeled if not truth.skip_unanswerable or len(_rows(truth, number))]
    if not known:
        raise BadEvaluation("no query shows a place of the map; without --skip-unanswerable they count as missed")
    queried = range(len(photos)) if stream.online or stream.sequence else known
    paths = [photos[number] for number in queried]
    encoded = place_map.encode_photos(paths, True, progress)
    several = dict(zip(queried, encoded.as_photos(paths), strict=True))
    numbers = [number for number in known if several[number].error is None]
    records = place_map.images
    nearest, where = find_nearest_true(truth, records), truth.positions
    queries = tuple(
        JudgedQuery(number, str(photos[number]), bool(len(_rows(truth, number))), where[number], nearest[number])
        for number in numbers
    )
    judge, depth = _Judge(place_map, records, truth, numbers), min(k, len(records))
    given: list[Any] = list(several.values())
    runs = []
    for name in names:
        if stream.sequence or (stream.online and len(given) > 1):
            answers = query_sequence(place_map, given, progress, k=depth, calibration=name, **vars(stream))
        else:
            answers = place_map.query_many(given, depth, progress, calibration=name)
        runs.append(judge.run(name, depth, several, answers, lines=lines))
    images = {image.path: image.position for image in records}
    files = {name: Path(name) for name in [*images, *(query.query for query in queries)]}
    flags = stream.flags if stream != INDEPENDENT else ""
    judgement = Judgement(Path(place_map.called).name, truth.rule, images, queries, tuple(runs), files, flags)
    bare = tuple(str(photos[number]) for number, rows in enumerate(truth.right) if rows is None)
    unread = tuple((str(path), reason) for path, reason in encoded.skipped)
    left_out = len(truth.labeled) - len(known)
    return MapEvaluation(judgement, truth, place_map.state.active, bare, unread, left_out, stream)


def _rows(truth: GroundTruth, number: int) -> np.ndarray:
    rows = truth.right[number]
    return np.empty(0, np.int64) if rows is None else rows


class _Judge:
    """Verdicts and distances of the hits of each query."""

    def __init__(self, place_map: PlaceMap, images: list[ImageRecord], truth: GroundTruth, numbers: list[int]) -> None:
        self.numbers = numbers
        self.right = [{images[row].id for row in _rows(truth, number)} for number in numbers]
        self.where = [truth.positions[number] for number in numbers]
        ids = [image.id for image in images]  # by which patches in a store are read
        self.row_of = dict(zip(ids, place_map.rows.tolist() if place_map.storage.has_all_rows else ids, strict=True))
        self.compact = place_map.storage.snapshot().patches
        self.comparable = len(position_kinds([*self.where, *(image.position for image in images)])) == 1

    def run(self, name: str, k: int, photos: Mapping[int, EncodedPhoto], answers: Answers, *, lines: bool) -> Run:
        """Judge the answers of one head to `photos`; only those with ground truth count."""
        by_number, judged = dict(zip(photos, answers, strict=True)), []
        for at, number in enumerate(self.numbers):
            hits, photo = by_number[number], photos[number]
            drawn = self.lines(at, hits.hits, photo.tokens.select([photo.row])) if lines else {}
            judged.append(self.judged(at, hits, drawn))
        title = "without calibration" if name == DATABASE else f"calibration {name}"
        return Run(name, title, PROBABILITY, k, tuple(judged), None if self.compact is None else self.compact.grid)

    def judged(self, at: int, hits: Answer, lines: Mapping[str, tuple[int, ...]]) -> JudgedAnswer:
        away = self._distances(self.where[at], [hit.position for hit in hits])
        judged = [
            EvaluatedHit(hit.image, hit.id in self.right[at], hit.confidence, hit.inliers, metres, hit.position)
            for hit, metres in zip(hits, away, strict=True)
        ]
        confidence = hits[0].confidence if hits else None
        return JudgedAnswer(tuple(judged), confidence, hits.sure, hits.reranked, self._place(at, hits), lines)

    def _place(self, at: int, hits: Answer) -> JudgedPlace | None:
        if hits.place is None:
            return None
        [distance] = self._distances(self.where[at], [hits.place.position])
        if distance is None:
            return None
        return JudgedPlace(hits.place.position, hits.place.radius, distance, hits.place.share)

    def lines(self, at: int, hits: Sequence[Hit], photo: Tokens) -> dict[str, tuple[int, ...]]:
        """List the matching patches of query and image, in turn, for the best hit and the first right one, by image."""
        right = [hit for hit in hits if hit.id in self.right[at]]
        shown = {hit.id: hit.image for hit in [*hits[:1], *right[:1]] if hit.inliers is not None}
        if self.compact is None or not shown:
            return {}
        rows = np.array([self.row_of[number] for number in shown])
        [found] = self.compact.match_each([self.compact.query(photo)[0]], self.compact.grid, [rows])
        return {image: _drawn(matches) for image, matches in zip(shown.values(), found, strict=True)}

    def _distances(self, where: Position | None, others: Sequence[Position | None]) -> list[float | None]:
        if where is None or not self.comparable:
            return [None] * len(others)
        points = to_points([where, *others])
        return measure_lengths(points[1:], points[:1])


def _drawn(matches: Matches) -> tuple[int, ...]:
    """Return the inliers, at most `_MOST_LINES`."""
    inliers = np.flatnonzero(matches.consistent)
    kept = inliers[np.unique(np.linspace(0, len(inliers) - 1, min(len(inliers), _MOST_LINES)).astype(np.int64))]
    return tuple(np.stack([matches.ours[kept], matches.theirs[kept]], axis=-1).reshape(-1).tolist())


_FORMAT: Literal["tfa-evaluation"] = "tfa-evaluation"
_VERSION: Literal[1] = 1


class EvaluationRule(Value):
    """Condition for a right answer."""

    rule: str = req("The rule in a sentence.")
    fingerprint: str = req("Fingerprint of file and radius.")


class EvaluatedAnswer(Value):
    """The answer of one head to one query."""

    right: bool = req("Whether the best hit is right.")
    confidence: float | None = req("Confidence of the best hit; null without hits.")
    sure: bool = req("Whether the best hit is sure.")
    reranked: bool = req("Whether the best hit was reranked.")
    first_right: int | None = req("Rank of the first right hit; null if there is none.", ge=1)
    place: JudgedPlace | None = req("Position estimate; null if there is none.")
    hits: list[EvaluatedHit] = req("Best first.")


class EvaluatedQuery(JudgedQuery):
    """A labeled photo and its answers."""

    answers: dict[str, EvaluatedAnswer | None] = req("Answer of each head; null if it was not evaluated.")


class EvaluationResult(Value):
    """How well a map recognizes labeled photos."""

    format: Literal["tfa-evaluation"] = req("Format of the file.")
    version: Literal[1] = req("Version of the format.")
    tfa: str = req("Release that wrote it.")
    map: str = req("Name of the map.")
    images: int = req("Images of the map.", ge=0)
    stream: StreamOptions = opt(INDEPENDENT, "How queries were answered.")
    ground_truth: EvaluationRule = req("Condition for a right answer.")
    not_in_map: int = req("Queries whose place the map does not have, counted as missed.", ge=0)
    unanswerable_left_out: int = req("Such queries that were left out.", ge=0)
    without_ground_truth: list[str] = req("Photos without a label, left out.")
    unreadable: list[SkippedFile] = req("Photos that cannot be read, left out.")
    notes: list[str] = req("Notes for the user.")
    heads: list[EvaluatedHead] = req("The head without calibration and each calibration.", min_length=1)
    changes: list[RunChange] = req("Differences from an earlier evaluation, with --against.")
    queries: list[EvaluatedQuery] = req("Queries and their answers.", min_length=1)


def make_result(evaluation: MapEvaluation, worst: int, earlier: Sequence[Run] = ()) -> EvaluationResult:
    """Return the result of an evaluation, with `worst` mistakes of each head and its changes from `earlier` runs."""
    judgement = evaluation.judgement
    heads = [score_run(judgement, run, evaluation.active) for run in judgement.runs]
    return EvaluationResult(
        format=_FORMAT,
        version=_VERSION,
        tfa=__version__,
        map=judgement.title,
        images=len(judgement.images),
        stream=evaluation.stream,
        ground_truth=EvaluationRule(rule=judgement.rule, fingerprint=evaluation.truth.fingerprint),
        not_in_map=judgement.not_in_map,
        unanswerable_left_out=evaluation.skipped_unanswerable,
        without_ground_truth=list(evaluation.without_truth),
        unreadable=[SkippedFile(file=file, reason=reason) for file, reason in evaluation.unreadable],
        notes=list(evaluation.truth.notes),
        heads=[replace(head, mistakes=head.mistakes[:worst]) for head in heads],
        changes=[compare_runs(run, other) for run in judgement.runs for other in earlier],
        queries=[
            EvaluatedQuery(**vars(query), answers={run.name: _make_answer(run.answers[at]) for run in judgement.runs})
            for at, query in enumerate(judgement.queries)
        ],
    )


def _make_answer(answer: JudgedAnswer | None) -> EvaluatedAnswer | None:
    if answer is None:
        return None
    plain = {key: value for key, value in vars(answer).items() if key not in ("hits", "lines")}
    hits = list(answer.hits)
    return EvaluatedAnswer(**plain, hits=hits, right=answer.right, first_right=answer.first_right)


def compare_with_file(evaluation: MapEvaluation, file: Path) -> Judgement:
    """Append the runs of a saved evaluation, on the queries of both."""
    values = require_format(file, _FORMAT, _VERSION, BadEvaluation, "; write it with tfa evaluate --out FILE.json")
    judgement = evaluation.judgement
    try:
        saved: EvaluationResult = from_plain(EvaluationResult, values, "it")
        if saved.ground_truth.fingerprint != evaluation.truth.fingerprint:
            raise BadEvaluation(
                f"{file} has another ground truth ({saved.ground_truth.rule}; here {judgement.rule}); evaluate both "
                "maps with the same file and radius",
                file,
            )
        theirs = {entry.query: entry for entry in saved.queries}
        common = [query.query in theirs for query in judgement.queries]
        if not any(common):
            raise BadEvaluation(f"{file} has none of these queries; evaluate the same photos in both", file)
        images: dict[str, Position | None] = {**judgement.images}
        same = f" of {saved.map}" if saved.stream == evaluation.stream else f" of {saved.map} {saved.stream.flags}"
        runs = [
            Run(
                f"{head.name}{same}",
                f"{head.title}{same} ({file.name})",
                head.confidence,
                head.k,
                tuple(_answer(theirs.get(query.query), head.name, images) for query in judgement.queries),
            )
            for head in saved.heads
        ]
        queries = tuple(_in_either(query, theirs.get(query.query)) for query in judgement.queries)
    except (KeyError, ValueError, BadPositions) as error:  # a missing head, or an invalid value
        raise BadEvaluation(f"{file} is damaged: {error}; write it again with tfa evaluate --out", file) from None
    files = {**judgement.files, **{name: Path(name) for name in images if name not in judgement.images}}
    return replace(judgement, images=images, queries=queries, runs=(*judgement.runs, *runs), files=files)


def _in_either(query: JudgedQuery, other: EvaluatedQuery | None) -> JudgedQuery:
    """Return the query, with the other map's positive if this map has none."""
    if query.in_map or other is None or not other.in_map:
        return query
    return replace(query, in_map=True, true_image=other.true_image)


def _answer(entry: EvaluatedQuery | None, head: str, images: dict[str, Position | None]) -> JudgedAnswer | None:
    """Return a saved head's answer to a query; add new images to `images`."""
    answer = None if entry is None else entry.answers[head]
    if answer is None:
        return None
    for hit in answer.hits:
        images.setdefault(hit.image, hit.position)
    return JudgedAnswer(tuple(answer.hits), answer.confidence, answer.sure, answer.reranked)
