"""Fields of an exported answer, and optional metadata written with answers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tfa.core.plain import hints
from tfa.core.text import make_printable
from tfa.photos.images import Photo
from tfa.photos.metadata import read_photo_time
from tfa.photos.positions import to_degrees
from tfa.types import POSITION_EXTRAS, Answer, Hit, Place, Position

SECOND = 1_000_000_000  # nanoseconds
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Times = Sequence[int | None]  # nanoseconds since 1970; None if unknown


@dataclass(frozen=True, kw_only=True)
class ExportContext:
    """Optional metadata written with answers."""

    times: Times | None = None  # one per answer; None: see `times_of`
    photos: Iterable[Photo | None] | None = None  # one per answer; None: the files that answers name
    images: bool = True  # whether photos are copied into a recording
    utm: str | None = None  # UTM zone of x and y, such as 33N
    map_name: str = ""
    calibration: str = ""  # empty: none
    milliseconds: float | None = None  # mean time of an answer


def called(answer: Answer) -> str:
    """Return the photo's name; a frame of a recording has another name than its file."""
    return make_printable(answer.name)  # a name that is not valid text would make the file invalid


def times_of(answers: Sequence[Answer]) -> Times:
    """Return the time of each photo, from its answer (frames of a recording) or from its file."""
    return [_time_of(answer) for answer in answers]


def _time_of(answer: Answer) -> int | None:
    known = answer.time_ns
    if known is not None or answer.error is not None or not os.path.isfile(answer.query):
        return known
    taken = read_photo_time(Path(answer.query))
    # A float holds such times only to microseconds.
    return None if taken is None else round(taken.utc * 1_000_000) * 1000


def spaced(times: Times) -> list[int]:
    """Return a time for every photo: one without is a second after the photo before it.

    Photos before the first known time are a second apart; if no time is known they start at 0.
    """
    starts = (time - (row + 1) * SECOND for row, time in enumerate(times) if time is not None)
    last, found = next(starts, -SECOND), []
    for time in times:
        last = last + SECOND if time is None else time
        found.append(max(last, 0))
    return found


def iso_time(time_ns: int | None) -> str | None:
    """Format a time as 2025-06-01T12:00:00.25Z; None if it is unknown or outside the years 1 to 9999."""
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
    """Return the positions of answers in degrees, if they are or can be converted."""
    found = list(dict.fromkeys(positions_of(answers)))
    turned = found if zone is None else to_degrees(found, zone)
    return {one: other for one, other in zip(found, turned, strict=True) if other is not None and other.is_global}


def positions_of(answers: Sequence[Answer]) -> Iterator[Position]:
    for answer in answers:
        if answer.place is not None:
            yield answer.place.position
        yield from (hit.position for hit in answer.hits if hit.position is not None)


# Fields that a row omits: they describe the request, repeat another field, or need a service.
_LEFT_OUT = {"id", "image_url", "share", "images", "calibration", "camera", "adaptation_photos", "seconds", "frame"}
_LEFT_OUT |= {"loop", "node"}


def _list_columns() -> tuple[str, ...]:
    """List the fields of an answer, with the fields of its best hit and position estimate in place of these two.

    `lat`, `lon`, `x` and `y` are the estimate; fields of the best image start with `image_`.
    """
    coordinates = tuple(hints(Position))
    inner = {
        "hits": (*(name for name in hints(Hit) if name not in hints(Answer)), *map("image_{}".format, coordinates)),
        # An estimate from several images has no altitude and no heading.
        "place": (*(name for name in coordinates if name not in POSITION_EXTRAS), *hints(Place)),
        "time_ns": ("time",),
    }
    names = [name for field in hints(Answer) for name in inner.get(field, (field,))]
    return tuple(name for name in names if name not in _LEFT_OUT and name != "position")


ANSWER_COLUMNS = _list_columns()


def flatten_answer(answer: Answer, time_ns: int | None, degrees: Mapping[Position, Position]) -> dict[str, Any]:
    """Return the value of each of `ANSWER_COLUMNS`; None if unknown."""
    values: dict[str, Any] = {}
    if answer.hits:
        best = answer.hits[0]
        coordinates = list_coordinates(best.position, degrees)
        values |= {f"image_{name}": value for name, value in coordinates.items()} | vars(best)
    if answer.place is not None:
        values |= list_coordinates(answer.place.position, degrees) | vars(answer.place)
    values |= {**vars(answer), "query": answer.name, "time": iso_time(time_ns)}
    row = {name: values.get(name) for name in ANSWER_COLUMNS}
    return {name: make_printable(value) if isinstance(value, str) else value for name, value in row.items()}


def list_coordinates(position: Position | None, degrees: Mapping[Position, Position]) -> dict[str, float]:
    """Return the coordinates of a position, in meters and in degrees if both are known."""
    if position is None:
        return {}
    return {**position.to_dict(), **(degrees[position].to_dict() if position in degrees else {})}


def print_bool(value: Any) -> Any:
    """Write booleans in lower case, as other programs do; return other values unchanged."""
    return str(value).lower() if isinstance(value, bool) else value


def sure_place(answer: Answer) -> Place | None:
    """Return the position estimate of a sure answer, else None."""
    return answer.place if answer.sure and answer.hits else None
