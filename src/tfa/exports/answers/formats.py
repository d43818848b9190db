"""The formats of answers by the endings of their files, and what each can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path

from tfa.errors import BadPositions, BadSpec
from tfa.exports.answers.csv_table import write_csv
from tfa.exports.answers.export_context import ExportContext, positions_of, with_times
from tfa.exports.answers.geojson import write_geojson
from tfa.exports.answers.gpx_points import write_gpx
from tfa.exports.answers.recording import check_installed, write_mcap
from tfa.maps import Answer
from tfa.photos.positions import Position

Write = Callable[[Path, Sequence[Answer], ExportContext], int]


@dataclass(frozen=True)
class AnswerFormat:
    """A way to write answers; `write` says how many of them are in the file as what the format is for."""

    name: str
    write: Write
    holds: str  # what `write` counts
    degrees: bool = False  # does it know no other positions?
    positions: bool = False  # is it nothing without them?
    images: bool = False  # does it hold photos?
    check: Callable[[], None] = lambda: None  # that what it needs is installed


ANSWER_FORMATS = {
    ".mcap": AnswerFormat("MCAP", write_mcap, "answers", images=True, check=check_installed),
    ".geojson": AnswerFormat("GeoJSON", write_geojson, "answers with a position", degrees=True),
    ".gpx": AnswerFormat("GPX", write_gpx, "sure answers with a place", degrees=True, positions=True),
    ".csv": AnswerFormat("CSV", write_csv, "answers"),
}


def format_of(path: str | Path) -> AnswerFormat:
    """The format that the ending of a file names."""
    ending = Path(path).suffix.lower()
    if ending not in ANSWER_FORMATS:
        raise BadSpec(f"{path} must end in one of {' '.join(ANSWER_FORMATS)}, which says how answers are written")
    return ANSWER_FORMATS[ending]


def check_positions(path: str | Path, positions: Iterable[Position | None], utm: str | None) -> None:
    """Refuse a file that could hold none of a map's positions."""
    wanted, known = format_of(path), [one for one in positions if one is not None]
    if wanted.positions and not known:
        raise BadPositions(
            f"{path} would be empty: no image of the map has a position; build it with --positions, or write .csv"
        )
    if wanted.degrees and utm is None and known and not any(one.is_global for one in known):
        raise BadPositions(
            f"{path} cannot hold positions in metres, such as {known[0]}: {wanted.name} knows degrees alone; if they "
            "are UTM, give the zone, such as --utm 33N, else write .csv or .mcap"
        )


def write_answers(path: str | Path, answers: Sequence[Answer], context: ExportContext | None = None) -> int:
    """Write answers in the format that the ending of `path` names; how many are in it as what the format is for.

    Without `context` times are those of the files that the answers name (EXIF).
    """
    wanted, context = format_of(path), context or ExportContext()
    wanted.check()
    for name, given in (("times", context.times), ("photos", context.photos)):
        if isinstance(given, Sized) and len(given) != len(answers):
            raise BadSpec(f"{len(given):,} {name} were given for {len(answers):,} answers; give one for each, or none")
    positions = list(positions_of(answers))
    if positions:  # without any, a map may still have some
        check_positions(path, positions, context.utm)
    return wanted.write(Path(path), answers, with_times(context, answers))
