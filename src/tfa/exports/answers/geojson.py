"""Answers as points: GeoJSON by RFC 7946, which knows longitude and latitude alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfa.base.files import write_json
from tfa.exports.answers.export_context import ExportContext, degrees_of
from tfa.exports.answers.record import flatten_answer
from tfa.maps import Answer
from tfa.photos.positions import Position


def write_geojson(path: Path, answers: Sequence[Answer], context: ExportContext) -> int:
    """All answers; how many of them are somewhere.

    The point is the place of all verified images, else the position of the best image; `located_by` says which. An
    answer without either has a null geometry. Altitude is a property: that of GeoJSON is above the ellipsoid, ours
    above the sea.
    """
    assert context.times is not None
    degrees, features = degrees_of(answers, context.utm), []
    for answer, time in zip(answers, context.times, strict=True):
        position, what = _located(answer, degrees)
        point = None if position is None else {"type": "Point", "coordinates": [position.lon, position.lat]}
        properties: dict[str, Any] = {**flatten_answer(answer, time, degrees), "located_by": what}
        features.append({"type": "Feature", "geometry": point, "properties": properties})
    write_json(path, {"type": "FeatureCollection", "features": features})
    return sum(feature["geometry"] is not None for feature in features)


def _located(answer: Answer, degrees: Mapping[Position, Position]) -> tuple[Position | None, str | None]:
    if answer.place is not None and answer.place.position in degrees:
        return degrees[answer.place.position], "place"
    best = answer.hits[0].position if answer.hits else None
    return (degrees[best], "image") if best is not None and best in degrees else (None, None)
