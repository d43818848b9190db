"""A map asked about photos whose places are known: every query by the map alone, under each of its heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tfa.bench.evaluation.distances import kinds_of, lengths, points_of
from tfa.bench.evaluation.judgement import (
    BadEvaluation,
    JudgedAnswer,
    JudgedHit,
    JudgedPlace,
    JudgedQuery,
    Judgement,
    Run,
)
from tfa.bench.evaluation.truth import QueryTruth, nearest_true
from tfa.bench.records import PROBABILITY
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.maps import PlaceMap
from tfa.maps.state import DATABASE
from tfa.types import Answer, Hit, Position
from tfa.verification.matching import Matches

AT_ONCE = 16  # photos answered at a time
MOST_LINES = 150  # of a pair of photos; more are a blot


@dataclass(frozen=True)
class MapEvaluation:
    """A judgement of a map, and what was left out of it."""

    judgement: Judgement
    truth: QueryTruth
    active: str  # the head that answers where none is named
    without_truth: tuple[str, ...]
    unreadable: tuple[tuple[str, str], ...]  # photo, reason
    skipped_unanswerable: int = 0
    notes: tuple[str, ...] = field(default=())


def heads_of(place_map: PlaceMap, wanted: Sequence[str] = ()) -> list[str]:
    """The heads to evaluate: the map's own and each calibration, or those named."""
    there = [DATABASE, *place_map.calibrations]
    for name in wanted:
        place_map.state.chosen(name)  # an unknown name is an error that lists those there are
    return [name for name in there if name in wanted] if wanted else there


def evaluate_map(
    place_map: PlaceMap,
    photos: Sequence[Path],
    truth: QueryTruth,
    *,
    heads: Sequence[str] = (),
    k: int = 20,
    lines: bool = False,
    skip_unanswerable: bool = False,
    progress: bool | Progress | None = None,
) -> MapEvaluation:
    """Answer the photos whose place is known, and judge the answers.

    Photos are encoded once, through the token cache. One that cannot be read is left out and listed. With `lines`,
    answers keep which patches match, to be drawn.
    """
    names = heads_of(place_map, heads)
    known = [number for number in truth.known if not skip_unanswerable or len(_rows(truth, number))]
    if not known:
        raise BadEvaluation("no query has a true place in the map; without --skip-unanswerable they count as missed")
    encoded = place_map.encode_photos([photos[number] for number in known], True, progress)
    bad = {path for path, _ in encoded.skipped}
    asked = [number for number in known if photos[number] not in bad]
    queries = _queries(photos, truth, asked, nearest_true(truth, place_map.images))
    judge = _Judge(place_map, truth, asked)
    runs = [
        _run(place_map, name, encoded.tokens, judge, k=min(k, len(place_map)), lines=lines, progress=progress)
        for name in names
    ]
    images = {image.path: image.position for image in place_map.images}
    files = {name: Path(name) for name in [*images, *(query.query for query in queries)]}
    judgement = Judgement(Path(place_map.called).name, truth.rule, images, queries, tuple(runs), files)
    return MapEvaluation(
        judgement,
        truth,
        place_map.state.active,
        tuple(str(photos[number]) for number, rows in enumerate(truth.right) if rows is None),
        tuple((str(path), reason) for path, reason in encoded.skipped),
        len(truth.known) - len(known),
        truth.notes,
    )


def _queries(
    photos: Sequence[Path], truth: QueryTruth, asked: Sequence[int], nearest: Sequence[str | None]
) -> tuple[JudgedQuery, ...]:
    return tuple(
        JudgedQuery(
            number, str(photos[number]), bool(len(_rows(truth, number))), truth.positions[number], nearest[number]
        )
        for number in asked
    )


def _rows(truth: QueryTruth, number: int) -> np.ndarray:
    rows = truth.right[number]
    return np.empty(0, np.int64) if rows is None else rows


class _Judge:
    """Verdicts and distances of the hits of each query."""

    def __init__(self, place_map: PlaceMap, truth: QueryTruth, asked: Sequence[int]) -> None:
        images = place_map.images
        self.right = [{images[row].id for row in _rows(truth, number)} for number in asked]
        self.where = [truth.positions[number] for number in asked]
        self.row_of = {image.id: int(row) for image, row in zip(images, place_map.rows, strict=True)}
        self.compact = place_map.state.compact
        self.comparable = len(kinds_of([*self.where, *(image.position for image in images)])) == 1

    def judged(self, at: int, hits: Answer, lines: Mapping[int, tuple[int, ...]]) -> JudgedAnswer:
        away = self._distances(self.where[at], [hit.position for hit in hits])
        judged = [
            JudgedHit(hit.image, hit.id in self.right[at], hit.confidence, hit.inliers, metres, lines.get(hit.id, ()))
            for hit, metres in zip(hits, away, strict=True)
        ]
        best = {"sure": hits.sure, "reranked": hits.reranked}
        return JudgedAnswer(tuple(judged), hits[0].confidence if hits else None, **best, place=self._place(at, hits))

    def _place(self, at: int, hits: Answer) -> JudgedPlace | None:
        if hits.place is None:
            return None
        [distance] = self._distances(self.where[at], [hits.place.position])
        if distance is None:
            return None
        return JudgedPlace(hits.place.position, hits.place.radius, distance, hits.place.share)

    def lines(self, at: int, hits: Sequence[Hit], photo: Tokens) -> dict[int, tuple[int, ...]]:
        """Of the best hit and of the first that is right, by id: patches of query and image that match, in turn."""
        right = [hit for hit in hits if hit.id in self.right[at]]
        shown = list(dict.fromkeys(hit.id for hit in [*hits[:1], *right[:1]] if hit.inliers is not None))
        if self.compact is None or not shown:
            return {}
        rows = np.array([self.row_of[number] for number in shown])
        found = self.compact.matches(self.compact.query(photo)[0], self.compact.grid, rows)
        return {number: _drawn(matches) for number, matches in zip(shown, found, strict=True)}

    def _distances(self, where: Position | None, others: Sequence[Position | None]) -> list[float | None]:
        if where is None or not self.comparable:
            return [None] * len(others)
        points = points_of([where, *others])
        return lengths(points[1:], points[:1])


def _run(
    place_map: PlaceMap,
    name: str,
    tokens: Tokens,
    judge: _Judge,
    *,
    k: int,
    lines: bool,
    progress: bool | Progress | None,
) -> Run:
    answers = []
    with as_progress(progress).task(f"querying, {name}", len(tokens), "photos") as task:
        for start in range(0, len(tokens), AT_ONCE):
            block = tokens.select(slice(start, start + AT_ONCE))
            for at, hits in enumerate(place_map.query_tokens(block, k, calibration=name)):
                drawn = judge.lines(start + at, hits.hits, block.select([at])) if lines else {}
                answers.append(judge.judged(start + at, hits, drawn))
                task.advance()
    title = "the map's own head" if name == DATABASE else f"calibration {name}"
    return Run(name, title, PROBABILITY, k, tuple(answers), None if judge.compact is None else judge.compact.grid)


def _drawn(matches: Matches) -> tuple[int, ...]:
    """The matches that move alike, as many as can be told apart."""
    alike = np.flatnonzero(matches.consistent)
    kept = alike[np.unique(np.linspace(0, len(alike) - 1, min(len(alike), MOST_LINES)).astype(np.int64))]
    return tuple(np.stack([matches.ours[kept], matches.theirs[kept]], axis=-1).reshape(-1).tolist())
