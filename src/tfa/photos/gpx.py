"""A GPX track, and where it was at the time a photo was taken."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from tfa.base.reading import parse_xml, read_bounded
from tfa.errors import BadPositions
from tfa.photos.positions import POSITION_LIMITS, parse_number
from tfa.photos.track import Track

TRACK_BYTES = 64_000_000  # a point a second for five days


def read_gpx(path: Path) -> Track:
    """The track of a GPX file: every point of it that has a time. Two zeros are no fix, and are left out."""
    try:
        root = parse_xml(read_bounded(path, TRACK_BYTES))
        if root.tag != "gpx":
            raise ValueError(f"it is a file of <{root.tag[:80]}>")
        rows = [
            (*row, number)
            for number, segment in enumerate(root.iter("trkseg"))
            for row in (_row(point) for point in segment.iter("trkpt"))
            if row is not None
        ]
    except OSError as error:
        raise BadPositions(f"cannot read the track {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise BadPositions(f"cannot read the track {path}: {error}; give a GPX file with a <trk>") from None
    if not rows:
        raise BadPositions(
            f"{path} has no track point with a time (<trkpt><time>…); record a track: routes and "
            "waypoints have no times"
        )
    # Of points with one time the first counts: a pause may be written twice.
    table = np.array(sorted(rows, key=lambda row: row[0]), np.float64)
    _, first = np.unique(table[:, 0], return_index=True)
    points = np.column_stack([table[first, 1:4], np.full(len(first), np.nan)])  # a track says no heading
    return Track(table[first, 0], points, table[first, 4].astype(np.int64))


def _row(point: Element) -> tuple[float, float, float, float] | None:
    """Time, latitude, longitude and altitude of a point; None if it has no time or no fix."""
    given = point.findtext("time")
    lat, lon = (_degrees(point, name) for name in ("lat", "lon"))
    if given is None or (lat == 0 and lon == 0):
        return None
    try:
        time = datetime.fromisoformat(given.strip())
    except ValueError:
        raise ValueError(f"the time {given[:80]!r} of a point is none, such as 2025-06-01T12:00:00Z") from None
    altitude = parse_number((point.findtext("ele") or "").strip())
    if altitude is None or abs(altitude) > POSITION_LIMITS["alt"][0]:
        altitude = math.nan
    # GPX times are UTC, also where the Z is missing.
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp(), lat, lon, altitude


def _degrees(point: Element, name: str) -> float:
    given = point.get(name, "")
    number = parse_number(given.strip())
    if number is None or abs(number) > POSITION_LIMITS[name][0]:
        raise ValueError(f"the {name} of a point is {given[:80]!r}, must be degrees")
    return number
