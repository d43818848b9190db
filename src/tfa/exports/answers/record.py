"""The fields of an exported answer, and optional metadata written with answers; every field may be missing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tfa.core.text import make_printable
from tfa.photos.images import Photo
from tfa.photos.metadata import read_photo_time
from tfa.photos.positions import to_degrees
from tfa.types import Answer, Place, Position

# --- export context -------------------------------------------------------------------------------

SECOND = 1_000_000_000  # nanoseconds
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class ExportContext:
    """Optional metadata written with answers; every field may be missing."""

    times: Sequence[int | None] | None = None  # nanoseconds since 1970, one for each answer; see `times_of`
    photos: Iterable[Photo | None] | None = None  # one for each answer; None: the files that answers name
    images: bool = True  # may photos be copied into a recording?
    utm: str | None = None  # x and y are metres in this UTM zone, such as 33N
    map_name: str = ""
    calibration: str = ""  # that answered; empty: none
    milliseconds: float | None = None  # that an answer took, in the mean


def called(answer: Answer) -> str:
    """What the photo is called: a frame of a recording has another name than the file it was read from."""
    return make_printable(answer.name)  # what is no valid text would make a file none


def times_of(answers: Sequence[Answer]) -> list[int | None]:
    """When each photo was taken: as its answer says (frames of a recording), else as the file says that it names."""
    return [_time_of(answer) for answer in answers]


def _time_of(answer: Answer) -> int | None:
    known = answer.time_ns
    if known is not None or answer.error is not None or not os.path.isfile(answer.query):
        return known
    taken = read_photo_time(Path(answer.query))
    # A float holds microseconds of such times, and no more.
    return None if taken is None else round(taken.utc * 1_000_000) * 1000


def with_times(context: ExportContext, answers: Sequence[Answer]) -> ExportContext:
    """With times looked up, if none were given."""
    return context if context.times is not None else replace(context, times=times_of(answers))


def spaced(times: Sequence[int | None]) -> list[int]:
    """A time for every photo: one without stands a second after the photo before it.

    Those before the first known one stand a second before each other; if none is known they start at 0.
    """
    first = next((row for row, time in enumerate(times) if time is not None), None)
    last = -SECOND if first is None else _require_time(times, first) - (first + 1) * SECOND
    found = []
    for time in times:
        last = last + SECOND if time is None else time
        found.append(max(last, 0))
    return found


def _require_time(times: Sequence[int | None], row: int) -> int:
    time = times[row]
    assert time is not None
    return time


def iso_time(time_ns: int | None) -> str | None:
    """As 2025-06-01T12:00:00.25Z; None where it is not known, or not in a year from 1 to 9999."""
    if time_ns is None:
        return None
    seconds, fraction = divmod(time_ns, SECOND)
    try:
        whole = (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]  # strftime would write the year 800 as 800
    except OverflowError:
        return None
    parts = f"{fraction:09d}".rstrip("0")
    return f"{whole}.{parts}Z" if parts else f"{whole}Z"


def degrees_of(answers: Sequence[Answer], zone: str | None) -> Mapping[Position, Position]:
    """Positions of answers as degrees, where they are or can be made such."""
    found = list(dict.fromkeys(positions_of(answers)))
    turned = found if zone is None else to_degrees(found, zone)
    return {one: other for one, other in zip(found, turned, strict=True) if other is not None and other.is_global}


def positions_of(answers: Sequence[Answer]) -> Iterator[Position]:
    for answer in answers:
        if answer.place is not None:
            yield answer.place.position
        yield from (hit.position for hit in answer.hits if hit.position is not None)


# --- record ---------------------------------------------------------------------------------------

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
