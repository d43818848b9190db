"""One answer as a flat record: the columns of a table, the properties of a point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfa.base.printable import make_printable
from tfa.exports.answers.export_context import called, iso_time
from tfa.maps import Answer
from tfa.maps.records import Place
from tfa.photos.positions import Position

# What lat, lon, x, y and radius are of: the place of all verified images together. Those of `image_` are of the best
# image alone, and so are its altitude and heading.
ANSWER_COLUMNS = (
    "query", "time", "image", "score", "confidence", "sure", "reranked", "inliers", "lost",
    "lat", "lon", "x", "y", "radius",
    "image_lat", "image_lon", "image_x", "image_y", "image_alt", "image_heading",
    "place_missing", "error",
)  # fmt: skip


def flatten_answer(answer: Answer, time_ns: int | None, degrees: Mapping[Position, Position]) -> dict[str, Any]:
    """All of `COLUMNS`; None where something is not known."""
    best, place = (answer.hits[0] if answer.hits else None), answer.place
    known: dict[str, Any] = {
        "query": called(answer),
        "time": iso_time(time_ns),
        "confidence": answer.confidence,
        "sure": answer.sure,
        "reranked": answer.reranked,
        "lost": getattr(answer, "lost", None),
        "place_missing": answer.place_missing,
        "error": None if answer.error is None else make_printable(answer.error),
    }
    if best is not None:
        known |= {"image": make_printable(best.image), "score": best.score, "inliers": best.inliers}
        known |= {f"image_{name}": value for name, value in _numbers(best.position, degrees).items()}
    if place is not None:
        known |= {"radius": place.radius, **_numbers(place.position, degrees)}
    return {name: known.get(name) for name in ANSWER_COLUMNS}


def _numbers(position: Position | None, degrees: Mapping[Position, Position]) -> dict[str, float]:
    """What is known of a position: both pairs where metres have a zone."""
    if position is None:
        return {}
    return {**position.to_dict(), **(degrees[position].to_dict() if position in degrees else {})}


def sure_place(answer: Answer) -> Place | None:
    """Where a sure answer says that its photo was taken; None if it is not sure, was not given or does not say."""
    return answer.place if answer.sure and answer.hits else None
