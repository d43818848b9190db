"""Sure answers as GPX 1.1: a waypoint for each, and a track of those whose time is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from tfa.base.files import write_text
from tfa.base.printable import make_printable
from tfa.exports.answers.export_context import ExportContext, called, degrees_of, iso_time
from tfa.exports.answers.record import sure_place
from tfa.maps import Answer
from tfa.photos.positions import Position
from tfa.version import __version__

NAMESPACE = "http://www.topografix.com/GPX/1/1"


def write_gpx(path: Path, answers: Sequence[Answer], context: ExportContext) -> int:
    """Sure answers with a place, in degrees; how many they are."""
    assert context.times is not None
    degrees = degrees_of(answers, context.utm)
    found = [
        (answer, place, degrees[place.position], time)
        for answer, time in zip(answers, context.times, strict=True)
        if (place := sure_place(answer)) is not None and place.position in degrees
    ]
    root = Element("gpx", {"version": "1.1", "creator": f"tfa {__version__}", "xmlns": NAMESPACE})
    for answer, place, position, time in found:
        point = _point(root, "wpt", answer, position, time)
        SubElement(point, "name").text = called(answer)
        best = make_printable(answer.hits[0].image)
        SubElement(point, "desc").text = f"confidence {answer.confidence:.2f}, ± {place.radius:.0f} m, as in {best}"
    timed = [one for one in found if iso_time(one[-1]) is not None]
    if len(timed) > 1:
        segment = SubElement(SubElement(root, "trk"), "trkseg")
        for answer, _, position, time in sorted(timed, key=lambda one: one[-1] or 0):
            _point(segment, "trkpt", answer, position, time)
    indent(root, " ")
    write_text(path, '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, "unicode") + "\n")
    return len(found)


def _point(parent: Element, tag: str, answer: Answer, position: Position, time: int | None) -> Element:
    """With altitude and time where they are known, in the order that the format prescribes."""
    point = SubElement(parent, tag, {"lat": repr(position.lat), "lon": repr(position.lon)})
    own = answer.hits[0].position  # the best image's: a place of several has no altitude
    if own is not None and own.alt is not None:
        SubElement(point, "ele").text = repr(own.alt)
    when = iso_time(time)
    if when is not None:
        SubElement(point, "time").text = when
    return point
