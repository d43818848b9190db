"""Export answers as CSV, GeoJSON, GPX or MCAP, and loops as CSV, JSON, g2o or pairs, chosen by the file name."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from tfa.core.files import write_json, write_text
from tfa.core.text import make_printable
from tfa.errors import BadPositions, BadSpec
from tfa.exports.answers.record import (
    ANSWER_COLUMNS,
    ExportContext,
    Times,
    called,
    degrees_of,
    flatten_answer,
    iso_time,
    positions_of,
    print_bool,
    sure_place,
    times_of,
)
from tfa.exports.answers.recording import check_installed, write_loop_mcap, write_mcap
from tfa.exports.hloc import PhotoPair, find_photo_root, name_pairs, write_pairs
from tfa.types import Answer, LoopsResult, Position
from tfa.version import __version__


def write_csv(path: Path, answers: Sequence[Answer], times: Times, context: ExportContext) -> int:
    """Write a row per photo; return the number of photos with an answer."""
    written = io.StringIO(newline="")
    table = csv.writer(written, lineterminator="\r\n")
    table.writerow(ANSWER_COLUMNS)
    degrees = degrees_of(answers, context.utm)
    for answer, time in zip(answers, times, strict=True):
        table.writerow([_cell(value) for value in flatten_answer(answer, time, degrees).values()])
    write_text(path, written.getvalue())
    return sum(bool(answer.hits) for answer in answers)


def _cell(value: Any) -> Any:
    """Return a cell; a spreadsheet would run a text that begins as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(tuple("=+-@\t\r")) else print_bool(value)


def write_geojson(path: Path, answers: Sequence[Answer], times: Times, context: ExportContext) -> int:
    """Write all answers; return the number of those with a point.

    The point is the position estimate, else the position of the best image; `located_by` says which. An answer without
    either has a null geometry. Altitude is a property: GeoJSON's is above the ellipsoid, ours above sea level.
    """
    degrees, features = degrees_of(answers, context.utm), []
    for answer, time in zip(answers, times, strict=True):
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


NAMESPACE = "http://www.topografix.com/GPX/1/1"


def write_gpx(path: Path, answers: Sequence[Answer], times: Times, context: ExportContext) -> int:
    """Write sure answers with a position estimate in degrees; return their number."""
    degrees = degrees_of(answers, context.utm)
    found = [
        (answer, place, degrees[place.position], time)
        for answer, time in zip(answers, times, strict=True)
        if (place := sure_place(answer)) is not None and place.position in degrees
    ]
    root = Element("gpx", {"version": "1.1", "creator": f"tfa {__version__}", "xmlns": NAMESPACE})
    for answer, place, position, time in found:
        point = _point(root, "wpt", answer, position, time)
        SubElement(point, "name").text = called(answer)
        best = make_printable(answer.hits[0].image)
        SubElement(point, "desc").text = f"confidence {answer.confidence:.2f}, ± {place.radius:.0f} m, matches {best}"
    timed = [one for one in found if iso_time(one[-1]) is not None]
    if len(timed) > 1:
        segment = SubElement(SubElement(root, "trk"), "trkseg")
        for answer, _, position, time in sorted(timed, key=lambda one: one[-1] or 0):
            _point(segment, "trkpt", answer, position, time)
    indent(root, " ")
    write_text(path, '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, "unicode") + "\n")
    return len(found)


def _point(parent: Element, tag: str, answer: Answer, position: Position, time: int | None) -> Element:
    """Add a point with altitude and time if known, in the order that the format prescribes."""
    point = SubElement(parent, tag, {"lat": repr(position.lat), "lon": repr(position.lon)})
    own = answer.hits[0].position  # an estimate from several images has no altitude
    if own is not None and own.alt is not None:
        SubElement(point, "ele").text = repr(own.alt)
    when = iso_time(time)
    if when is not None:
        SubElement(point, "time").text = when
    return point


Write = Callable[[Path, Sequence[Answer], Times, ExportContext], int]


@dataclass(frozen=True)
class AnswerFormat:
    """A file format of answers; `write` returns the number of written answers."""

    name: str
    write: Write
    holds: str  # the answers that `write` counts
    degrees: bool = False  # whether it supports only degrees
    positions: bool = False  # whether it is empty without positions
    check: Callable[[], None] = lambda: None  # raises if a package is missing


ANSWER_FORMATS = {
    ".mcap": AnswerFormat("MCAP", write_mcap, "answers", check=check_installed),
    ".geojson": AnswerFormat("GeoJSON", write_geojson, "answers with a position", degrees=True),
    ".gpx": AnswerFormat("GPX", write_gpx, "sure answers with a position", degrees=True, positions=True),
    ".csv": AnswerFormat("CSV", write_csv, "answers"),
}


def format_of(path: str | Path) -> AnswerFormat:
    """Return the format of a file name's ending."""
    ending = Path(path).suffix.lower()
    if ending not in ANSWER_FORMATS:
        raise BadSpec(f"{path} must end in one of {' '.join(ANSWER_FORMATS)}")
    return ANSWER_FORMATS[ending]


def check_positions(path: str | Path, positions: Iterable[Position | None], utm: str | None) -> None:
    """Reject a file whose format cannot hold the map's positions."""
    wanted, known = format_of(path), [one for one in positions if one is not None]
    if wanted.positions and not known:
        raise BadPositions(
            f"{path} would be empty: no map image has a position; build the map with --positions, or write .csv"
        )
    if wanted.degrees and utm is None and known and not any(one.is_global for one in known):
        raise BadPositions(
            f"{path} cannot hold positions in meters, such as {known[0]}: {wanted.name} needs degrees. For UTM "
            "coordinates set the zone, such as --set out.utm=33N; otherwise write .csv or .mcap"
        )


def write_answers(path: str | Path, answers: Sequence[Answer], context: ExportContext | None = None) -> int:
    """Write answers in the format of the file name's ending.

    Args:
        path: File ending in .csv, .geojson, .gpx or .mcap.
        answers: Answers of a map.
        context: Times, photos and other metadata. Without it, times are read from the photos (EXIF).

    Returns:
        Number of photos with an answer; for .geojson with a position, for .gpx with a sure one and a position.
    """
    wanted, context = format_of(path), context or ExportContext()
    wanted.check()
    for name, given in (("times", context.times), ("photos", context.photos)):
        if isinstance(given, Sized) and len(given) != len(answers):
            raise BadSpec(f"got {len(given):,} {name} for {len(answers):,} answers; pass one for each, or none")
    positions = list(positions_of(answers))
    if positions:  # the map may have positions even if the answers have none
        check_positions(path, positions, context.utm)
    return wanted.write(Path(path), answers, times_of(answers) if context.times is None else context.times, context)


LOOP_COLUMNS = ("query", "match", "query_image", "match_image", "confidence", "inliers", "heading", "scale")


def write_loop_csv(path: Path, result: LoopsResult, names: Sequence[str], times: Times) -> None:
    """Write one pair per frame, with the confidence of its loop."""
    confidences = result.confidences
    written = io.StringIO(newline="")
    table = csv.writer(written)
    table.writerow(LOOP_COLUMNS)
    for one in result.pairs:
        shown = [_cell(names[one.query]), _cell(names[one.match]), f"{confidences[one.query]:.4f}", one.inliers]
        seen = ["" if value is None else f"{value:.3f}" for value in (one.heading, one.scale)]
        table.writerow([one.query, one.match, *shown, *seen])
    write_text(path, written.getvalue())


def write_g2o(path: Path, result: LoopsResult, names: Sequence[str], times: Times) -> None:
    """Write an edge per pair, to append to a planar pose graph whose vertices are the frames.

    A loop says that two frames show one place, within about a meter, and nothing on their relative heading.
    """
    write_text(path, "".join(f"EDGE_SE2 {one.match} {one.query} 0 0 0 1 0 0 1 0 1e-06\n" for one in result.pairs))


def write_loop_pairs(path: Path, result: LoopsResult, names: Sequence[str], times: Times) -> None:
    """Write image pairs for hloc and COLMAP, relative to the common folder of the frames."""
    pairs = [PhotoPair(Path(names[one.query]), Path(names[one.match]), 1.0) for one in result.pairs]
    root = find_photo_root([Path(name) for name in names])
    write_pairs(path, name_pairs(pairs, root, root))


LOOP_FORMATS: dict[str, Callable[[Path, LoopsResult, Sequence[str], Times], object]] = {
    ".csv": write_loop_csv,
    ".json": lambda path, result, names, times: write_json(path, result.to_dict()),
    ".g2o": write_g2o,
    ".mcap": write_loop_mcap,
    ".txt": write_loop_pairs,
}
