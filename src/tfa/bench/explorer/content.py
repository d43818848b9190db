"""What the page is given: a judgement in short lists, names once, places in metres on a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfa.bench.evaluation.distances import kinds_of
from tfa.bench.evaluation.judgement import JudgedAnswer, JudgedHit, Judgement, Run
from tfa.bench.evaluation.numbers import numbers_of
from tfa.bench.evaluation.summary import short_names
from tfa.bench.records import PROBABILITY
from tfa.maps.confidence import SURE_CONFIDENCE
from tfa.types import Position

GLOBE, PLANE, ORDER = "globe", "plane", "order"
EARTH = 6_371_008.8  # metres: mean radius
APART = 0.6  # of the route's length: between the rows of queries and images that are drawn in their order


def page_content(judgement: Judgement, shown: int = 0) -> dict[str, Any]:
    """All but the pictures; `shown` is the run that the page opens with."""
    images = list(judgement.images)
    row_of = {name: row for row, name in enumerate(images)}
    kind, places, of_queries = _plan(list(judgement.images.values()), [query.position for query in judgement.queries])
    queries = [
        {
            "number": query.number,
            "place": place,
            "degrees": _pair(query.position),
            "true": row_of.get(query.true_image or "", -1),
            "inMap": query.in_map,
            "condition": query.condition,
        }
        for query, place in zip(judgement.queries, of_queries, strict=True)
    ]
    return {
        "title": judgement.title,
        "plan": kind,
        "shown": shown,
        "beside": 1 - shown if len(judgement.runs) == 2 else -1,
        "images": {
            "names": short_names(images),
            "places": places,
            "degrees": [_pair(position) for position in judgement.images.values()],
        },
        "queryNames": short_names([query.query for query in judgement.queries]),
        "queries": queries,
        "runs": [_run(judgement, run, row_of) for run in judgement.runs],
    }


def _run(judgement: Judgement, run: Run, row_of: Mapping[str, int]) -> dict[str, Any]:
    numbers = numbers_of(judgement, run)
    return {
        "name": run.name,
        "title": run.title,
        "kind": run.kind,
        "grid": run.grid,
        "threshold": _threshold(run),
        "hubs": [[row_of[hub.image], hub.wrong, hub.right] for hub in numbers.hubs],
        "answers": [_answer(answer, row_of) for answer in run.answers],
    }


def _answer(answer: JudgedAnswer | None, row_of: Mapping[str, int]) -> list[Any] | None:
    """Confidence of the best, whether it is sure, and the hits."""
    if answer is None:
        return None
    return [answer.confidence, int(answer.sure), [_hit(hit, row_of) for hit in answer.hits]]


def _hit(hit: JudgedHit, row_of: Mapping[str, int]) -> list[Any]:
    """Image, right, confidence, inliers, metres, lines; what is unknown at the end is left out."""
    rounded = [None if value is None else round(value, 4) for value in (hit.confidence, hit.inliers, hit.distance)]
    values = [row_of[hit.image], int(hit.right), *rounded, list(hit.lines) or None]
    while values[-1] is None:
        values.pop()
    return values


def _threshold(run: Run) -> float:
    """Where the page begins: what is called sure of probabilities, else the median confidence."""
    if run.kind == PROBABILITY:
        return SURE_CONFIDENCE
    known = [answer.confidence for answer in run.given if answer.confidence is not None]
    return float(np.median(known)) if known else 0.0


def _pair(position: Position | None) -> list[float] | None:
    """Longitude and latitude, or x and y."""
    if position is None:
        return None
    first, second = position.pair
    return [second, first] if position.is_global else [first, second]


def _plan(images: Sequence[Position | None], queries: Sequence[Position | None]) -> tuple[str, list[Any], list[Any]]:
    """Of which kind the plan is, and points in metres, east and north; None where there is none.

    Where images or queries have no positions, they stand in two rows in the order of their files.
    """
    kinds = kinds_of([*images, *queries])
    if len(kinds) != 1 or not any(images) or not any(queries):
        step = max(len(images) - 1, 1) / max(len(queries) - 1, 1)
        below = [[round(at * step, 2), -APART * max(len(images), 2)] for at in range(len(queries))]
        return ORDER, [[at, 0] for at in range(len(images))], below
    pairs = [_pair(position) for position in (*images, *queries)]
    known = np.array([pair for pair in pairs if pair is not None], np.float64)
    origin = known[0]
    kind = GLOBE if True in kinds else PLANE
    # Equirectangular around the mean latitude: a town looks as it does on any map.
    scale = np.ones(2)
    if kind == GLOBE:
        scale = np.radians(1) * EARTH * np.array([np.cos(np.radians(known[:, 1].mean())), 1.0])
    placed = [None if pair is None else _metres(np.array(pair) - origin, scale, kind) for pair in pairs]
    return kind, placed[: len(images)], placed[len(images) :]


def _metres(offset: np.ndarray, scale: np.ndarray, kind: str) -> list[float]:
    if kind == GLOBE:  # the shorter way round: a town across the 180th meridian stays one town
        offset = np.array([(offset[0] + 180) % 360 - 180, offset[1]])
    return [round(float(value), 2) for value in offset * scale]
