"""Read photo positions from CSV files, GPX tracks and `@utm_east@utm_north@…` names, and convert UTM coordinates."""

from __future__ import annotations

import csv as csv_module
import io
import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from tfa.core.files import parse_xml, read_bounded, read_text
from tfa.errors import BadPositions, MissingExtra
from tfa.types import POSITION_EXTRAS, POSITION_KINDS, POSITION_LIMITS, Position


def read_positions_csv(path: Path) -> dict[str, Position]:
    """Read rows of `file,lat,lon` or `file,x,y`, keyed by the file as a normalized posix path.

    Columns `alt` and `heading` are optional; their cells may be empty.
    """
    positions: dict[str, Position] = {}
    line_of: dict[str, int] = {}
    rows = _rows(path)
    line, header = next(rows, (1, []))
    names = [cell.strip().lower() for cell in header]
    pair = next((pair for pair in POSITION_KINDS if {"file", *pair} <= set(names)), None)
    if pair is None:
        raise BadPositions(
            f"{path}, line {line}: the header is {','.join(names)[:200] or 'nothing'!r}; it must have the columns "
            "file,lat,lon or file,x,y, separated by commas (other columns are ignored)"
        )
    wanted = (*pair, *(name for name in POSITION_EXTRAS if name in names))
    columns = [names.index(name) for name in ("file", *wanted)]
    for line, row in rows:
        name, *cells = (row[column].strip() if column < len(row) else "" for column in columns)
        file = _key(name)
        try:
            if not name:
                raise BadPositions("no file name")
            if file in positions:
                raise BadPositions(f"{name} is already listed in line {line_of[file]}; keep one row")
            positions[file] = _position(dict(zip(wanted, cells, strict=True)))
        except BadPositions as error:
            raise BadPositions(f"{path}, line {line}: {error}") from None
        line_of[file] = line
    if not positions:
        raise BadPositions(f"{path} has a header but no rows; add one row per photo")
    return positions


def _position(cells: Mapping[str, str]) -> Position:
    numbers = {name: parse_number(text) for name, text in cells.items() if text or name not in POSITION_EXTRAS}
    for name, number in numbers.items():
        if number is None:
            raise BadPositions(f"{name} is {cells[name][:80]!r}, must be a number")
    return Position(**numbers)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield rows that are not blank, with the line number at which each ends."""
    try:
        reader = csv_module.reader(io.StringIO(read_text(path), newline=""), skipinitialspace=True)
        for row in reader:
            if any(cell.strip() for cell in row):
                yield reader.line_num, row
    except csv_module.Error as error:
        raise BadPositions(f"{path}, line {reader.line_num}: {error}; save it as CSV in UTF-8") from None
    except OSError as error:
        raise BadPositions(f"cannot read the positions file {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise BadPositions(f"cannot read the positions file {path}: {error}; save it as CSV in UTF-8") from None


def match_positions(paths: Sequence[Path], root: Path | None, csv: Path) -> tuple[dict[int, Position], list[str]]:
    """Return positions of photos named in the CSV, by index, and notes for the user."""
    rows = read_positions_csv(csv)
    names, relative = PhotoNames(paths), dict[str, int]()
    for index, path in enumerate(paths):
        below = path.relative_to(root) if root is not None and path.is_relative_to(root) else path
        relative[_key(below.as_posix())] = index
    named: dict[int, str] = {}  # CSV row by photo
    unmatched: list[str] = []
    # Full paths first: an ending must not take a photo that another row names in full.
    for file in sorted(rows, key=lambda file: file not in relative):
        ends = [relative[file]] if file in relative else names.find(file)
        if len(ends) > 1:
            raise BadPositions(
                f"{csv}: {file} is ambiguous, matching {paths[ends[0]]} and {paths[ends[1]]}; write paths relative to "
                "the photo folder"
            )
        if not ends or named.get(ends[0]) in relative:
            unmatched.append(file)
        elif ends[0] in named:
            raise BadPositions(f"{csv}: {named[ends[0]]} and {file} both name {paths[ends[0]]}; keep one row")
        else:
            named[ends[0]] = file
    if not named:
        example = f"the first photo is {next(iter(relative))}" if paths else "there are no photos"
        raise BadPositions(
            f"{csv}: none of its {len(rows)} rows matches a photo (first row: {unmatched[0]}; {example}); write paths "
            "relative to the photo folder"
        )
    notes = []
    if unmatched:
        verb = "matches" if len(unmatched) == 1 else "match"
        notes.append(f"{pluralize(len(unmatched), 'row')} of {csv.name} {verb} no image (first: {unmatched[0]})")
    return {index: rows[file] for index, file in named.items()}, notes


class PhotoNames:
    """Photos by any ending of their paths, such as `a.jpg`."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.parts = [normalize_path(path.absolute()).parts for path in paths]
        self._by_name: dict[str, list[int]] = defaultdict(list)
        for number, parts in enumerate(self.parts):
            self._by_name[parts[-1]].append(number)

    def find(self, name: str) -> list[int]:
        """Return the numbers of the photos whose paths end in that name."""
        ending = normalize_path(name).parts
        alike = self._by_name.get(ending[-1], []) if ending else []
        return [number for number in alike if self.parts[number][-len(ending) :] == ending]


def pluralize(number: int, noun: str) -> str:
    """Format a count with its noun, such as `2 photos`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def normalize_path(path: Path | str) -> PurePosixPath:
    """Return a path in posix form with composed accents."""
    text = path.as_posix() if isinstance(path, Path) else path.replace("\\", "/")
    # macOS decomposes é in file names, most editors write one character.
    return PurePosixPath(unicodedata.normalize("NFC", text))


def _key(file: str) -> str:
    return str(normalize_path(file))  # PurePosixPath drops "./" and doubled slashes


def parse_number(text: str) -> float | None:
    """Parse a finite number; None if the text is not one."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None  # float() accepts "1_000"


def position_from_name(name: str) -> Position | None:
    """Read a position from a name like `@utm_east@utm_north@…`, as in common place recognition datasets."""
    fields = name.split("@")
    if len(fields) < 4 or fields[0]:
        return None
    x, y = parse_number(fields[1]), parse_number(fields[2])
    if x is None or y is None or max(abs(x), abs(y)) > POSITION_LIMITS["x"][0]:
        return None  # numbers, but not a position
    return Position(x=x, y=y)


ZONE = re.compile(r"(0?[1-9]|[1-5][0-9]|60)([NS])")
_OUTSIDE = "are outside UTM zone {zone}; use their zone, with N or S for the hemisphere"


def utm_code(zone: str) -> int:
    """Return the EPSG code of a UTM zone such as 33N."""
    given = ZONE.fullmatch(zone.strip().upper())
    if given is None:
        raise BadPositions(
            f"{zone[:20]!r} is not a UTM zone; write a number from 1 to 60 and N or S for the hemisphere, such as 33N "
            "(not an MGRS band letter, where S is north of the equator)"
        )
    return (32600 if given[2] == "N" else 32700) + int(given[1])


def to_degrees(positions: Sequence[Position | None], zone: str) -> list[Position | None]:
    """Convert positions in meters of a UTM zone to degrees; positions in degrees are unchanged."""
    return _turned(positions, zone, to_globe=True)


def to_meters(positions: Sequence[Position | None], zone: str) -> list[Position | None]:
    """Convert positions in degrees to meters of a UTM zone; positions in meters are unchanged."""
    return _turned(positions, zone, to_globe=False)


def _turned(positions: Sequence[Position | None], zone: str, *, to_globe: bool) -> list[Position | None]:
    code, found = utm_code(zone), list(positions)
    others = {row: one for row, one in enumerate(positions) if one is not None and one.is_global != to_globe}
    if not others:
        return found
    transformer = _transformer(code, to_globe=to_globe)
    pairs = np.array([one.pair for one in others.values()])
    # pyproj uses x before y: longitude before latitude.
    first, second = transformer.transform(*(pairs.T if to_globe else pairs.T[::-1]))
    back = transformer.transform(first, second, direction="INVERSE")
    given = pairs if to_globe else pairs[:, ::-1]
    apart = np.abs(np.stack(back, axis=1) - given).max(axis=1) if np.isfinite(back).all() else np.array([np.inf])
    if not (np.isfinite(first) & np.isfinite(second)).all() or (apart > (1.0 if to_globe else 1e-5)).any():
        raise BadPositions(f"positions such as {next(iter(others.values()))} {_OUTSIDE.format(zone=zone)}")
    for (row, own), one, other in zip(others.items(), first.tolist(), second.tolist(), strict=True):
        pair: dict[str, Any] = {"lat": other, "lon": one} if to_globe else {"x": one, "y": other}
        found[row] = replace(own, **{**dict.fromkeys(("lat", "lon", "x", "y")), **pair})
    return found


def _transformer(code: int, *, to_globe: bool) -> Any:
    try:
        from pyproj import Transformer
    except ImportError:
        raise MissingExtra("UTM positions need pyproj; install with: pip install 'tfa-vpr[geo]'") from None
    plane, globe = f"EPSG:{code}", "EPSG:4326"
    return Transformer.from_crs(*((plane, globe) if to_globe else (globe, plane)), always_xy=True)


_EARTH = 6_371_000.0  # radius in meters


@dataclass(frozen=True)
class Track:
    """Points in order of time, linearly interpolated within a segment."""

    times: np.ndarray  # (p,), seconds since 1970
    points: np.ndarray  # (p, 4): latitude and longitude, or x and y; altitude or nan; heading or nan
    segments: np.ndarray  # (p,)
    is_global: bool = True

    def at(self, utc: float, gap: float) -> Position | None:
        """Interpolate the position at a time. None outside the track or in a gap longer than `gap` seconds."""
        after = int(np.searchsorted(self.times, utc))
        if after < len(self.times) and self.times[after] == utc:
            return self._position(self.points[after])
        if not 0 < after < len(self.times):
            return None
        start, end = self.times[after - 1 : after + 1]
        if end - start > gap or self.segments[after - 1] != self.segments[after]:
            return None
        one, other = self.points[after - 1].copy(), self.points[after]
        step = other - one
        # Take the short way across the 180th meridian and across north.
        turning = [1, 3] if self.is_global else [3]
        step[turning] = (step[turning] + 180) % 360 - 180
        there = one + step * ((utc - start) / (end - start))
        there[3] %= 360
        if self.is_global:
            there[1] = (there[1] + 180) % 360 - 180
        return self._position(there)

    def _position(self, point: np.ndarray) -> Position:
        first, second, alt, heading = (float(value) for value in point)
        more = {"alt": alt, "heading": heading}
        known = {name: value for name, value in more.items() if not math.isnan(value)}
        if self.is_global:
            return Position(lat=first, lon=second, **known)
        return Position(x=first, y=second, **known)


def meters_between(one: Position, other: Position) -> float:
    """Return the horizontal distance of two nearby positions in meters (flat-Earth approximation)."""
    (a, b), (c, d) = one.pair, other.pair
    if not one.is_global:
        return math.hypot(c - a, d - b)
    east = (d - b + 180) % 360 - 180
    return math.radians(1) * _EARTH * math.hypot(c - a, east * math.cos(math.radians((a + c) / 2)))


TRACK_BYTES = 64_000_000  # maximum size: about one point per second for five days


def read_gpx(path: Path) -> Track:
    """Read all points with a time from a GPX file; latitude and longitude 0 mean no fix and are skipped."""
    try:
        root = parse_xml(read_bounded(path, TRACK_BYTES))
        if root.tag != "gpx":
            raise ValueError(f"its root element is <{root.tag[:80]}>, not <gpx>")
        rows = [
            (*row, number)
            for number, segment in enumerate(root.iter("trkseg"))
            for row in (_row(point) for point in segment.iter("trkpt"))
            if row is not None
        ]
    except OSError as error:
        raise BadPositions(f"cannot read the track {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise BadPositions(f"cannot read the track {path}: {error}; pass a GPX file with a <trk>") from None
    if not rows:
        raise BadPositions(
            f"{path} has no track point with a time (<trkpt><time>…); pass a recorded track: routes and "
            "waypoints have no times"
        )
    # Keep the first point of each time: a pause may be written twice.
    table = np.array(sorted(rows, key=lambda row: row[0]), np.float64)
    _, first = np.unique(table[:, 0], return_index=True)
    points = np.column_stack([table[first, 1:4], np.full(len(first), np.nan)])  # GPX tracks have no heading
    return Track(table[first, 0], points, table[first, 4].astype(np.int64))


def _row(point: Element) -> tuple[float, float, float, float] | None:
    """Read time, latitude, longitude and altitude of a point; None if it has no time or no fix."""
    given = point.findtext("time")
    lat, lon = (_degrees(point, name) for name in ("lat", "lon"))
    if given is None or (lat == 0 and lon == 0):
        return None
    try:
        time = datetime.fromisoformat(given.strip())
    except ValueError:
        raise ValueError(
            f"the point time {given[:80]!r} is invalid; expected a time like 2025-06-01T12:00:00Z"
        ) from None
    altitude = parse_number((point.findtext("ele") or "").strip())
    if altitude is None or abs(altitude) > POSITION_LIMITS["alt"][0]:
        altitude = math.nan
    # GPX times are UTC even without the Z.
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp(), lat, lon, altitude


def _degrees(point: Element, name: str) -> float:
    given = point.get(name, "")
    number = parse_number(given.strip())
    if number is None or abs(number) > POSITION_LIMITS[name][0]:
        raise ValueError(f"a point has {name} {given[:80]!r}, must be degrees")
    return number
