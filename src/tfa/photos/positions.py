"""Where photos were taken: from a CSV file, from `@utm_east@utm_north@…` names, or from EXIF GPS."""

from __future__ import annotations

import csv as csv_module
import io
import math
import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tfa.base.reading import read_text
from tfa.errors import BadPositions

# Squares of distances in a plane of this size are still numbers.
LIMITS = {"lat": (90.0, "degrees"), "lon": (180.0, "degrees"), "x": (1e12, "metres"), "y": (1e12, "metres")}
SHOWN = 200  # characters of what was given, in an error
_GPS_IFD = 0x8825
_LAT_REF, _LAT, _LON_REF, _LON = 1, 2, 3, 4  # tags inside the GPS directory


@dataclass(frozen=True, kw_only=True)
class Position:
    """A point on the globe (`lat`, `lon` in degrees) or in a metric plane (`x`, `y` in metres)."""

    lat: float | None = None
    lon: float | None = None
    x: float | None = None
    y: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if set(given) not in ({"lat", "lon"}, {"x", "y"}):
            raise BadPositions(f"a position has lat and lon, or x and y; given: {', '.join(given) or 'nothing'}")
        for name, value in given.items():
            if not math.isfinite(value):
                raise BadPositions(f"{name} is {value}, must be a finite number")
        for name, (limit, unit) in LIMITS.items():
            if name in given and abs(given[name]) > limit:
                raise BadPositions(f"{name} is {given[name]:g}, must be between -{limit:g} and {limit:g} {unit}")

    @property
    def is_global(self) -> bool:
        return self.lat is not None

    def to_dict(self) -> dict[str, float]:
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Position:
        for name, value in values.items():
            if name not in ("lat", "lon", "x", "y") or isinstance(value, bool) or not isinstance(value, int | float):
                given = repr(dict(values))
                shown = given if len(given) <= SHOWN else f"{given[:SHOWN]}…"
                raise BadPositions(f"{shown} is not a position; it must hold numbers lat and lon, or x and y")
        try:
            return cls(**{name: float(value) for name, value in values.items()})
        except OverflowError:
            raise BadPositions("a position holds a number that is too large; give metres, or degrees") from None

    def __str__(self) -> str:
        if self.lat is not None and self.lon is not None:
            return f"{abs(self.lat):.5f}° {'NS'[self.lat < 0]}, {abs(self.lon):.5f}° {'EW'[self.lon < 0]}"
        return f"x {self.x:.1f} m, y {self.y:.1f} m"


def find_positions(
    paths: Sequence[Path], root: Path | None, csv: Path | None
) -> tuple[list[Position | None], list[str]]:
    """The position of each photo, or None, and notes for the user: CSV before file name before EXIF.

    A row of the CSV names a photo by its path relative to `root`, or by any ending of its path that only one
    photo has: `a.jpg` will do when there is no second `a.jpg`.
    """
    listed, notes = ({}, []) if csv is None else match_positions(paths, root, csv)
    found = [
        listed.get(index) or position_from_name(path.name) or position_from_exif(path)
        for index, path in enumerate(paths)
    ]
    if csv is not None and None in found:
        bare = [path for path, position in zip(paths, found, strict=True) if position is None]
        notes.append(f"{_count(len(bare), 'image')} without a position (first: {bare[0]})")
    kinds = [position.is_global for position in found if position is not None]
    if any(kinds) and not all(kinds):
        notes.append(
            f"{sum(kinds)} photos are placed by lat/lon and {len(kinds) - sum(kinds)} by x/y: "
            "positions of the two kinds cannot be compared"
        )
    return found, notes


# --- from a CSV file ---


def match_positions(paths: Sequence[Path], root: Path | None, csv: Path) -> tuple[dict[int, Position], list[str]]:
    """The position of each photo that a row of the CSV names, by its index, and notes for the user."""
    return _match(read_positions_csv(csv), paths, root, csv)


def read_positions_csv(path: Path) -> dict[str, Position]:
    """Rows of `file,lat,lon` or `file,x,y`, keyed by the file as a normalised posix path."""
    positions: dict[str, Position] = {}
    line_of: dict[str, int] = {}
    rows = _rows(path)
    line, header = next(rows, (1, []))
    names = [cell.strip().lower() for cell in header]
    pair = next((pair for pair in (("lat", "lon"), ("x", "y")) if {"file", *pair} <= set(names)), None)
    if pair is None:
        raise BadPositions(
            f"{path}, line {line}: the header is {','.join(names)[:200] or 'nothing'!r}, must name the columns "
            "file,lat,lon or file,x,y (separated by commas; more columns do no harm)"
        )
    columns = [names.index(name) for name in ("file", *pair)]
    for line, row in rows:
        name, *cells = (row[column].strip() if column < len(row) else "" for column in columns)
        file = _key(name)
        try:
            if not name:
                raise BadPositions("no file name")
            if file in positions:
                raise BadPositions(f"{name} is listed already in line {line_of[file]}")
            positions[file] = _position(dict(zip(pair, cells, strict=True)))
        except BadPositions as error:
            raise BadPositions(f"{path}, line {line}: {error}") from None
        line_of[file] = line
    if not positions:
        raise BadPositions(f"{path} has a header but no rows; give one line for each photo")
    return positions


def _position(cells: Mapping[str, str]) -> Position:
    numbers = {name: _number(text) for name, text in cells.items()}
    for name, number in numbers.items():
        if number is None:
            raise BadPositions(f"{name} is {cells[name][:80]!r}, must be a number")
    return Position(**numbers)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, with the line each ends on."""
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


def _match(
    rows: Mapping[str, Position], paths: Sequence[Path], root: Path | None, csv: Path
) -> tuple[dict[int, Position], list[str]]:
    relative: dict[str, int] = {}
    by_name: dict[str, list[int]] = defaultdict(list)
    parts = [normal_path(path.absolute()).parts for path in paths]
    for index, path in enumerate(paths):
        below = path.relative_to(root) if root is not None and path.is_relative_to(root) else path
        relative[_key(below.as_posix())] = index
        by_name[parts[index][-1]].append(index)

    named: dict[int, str] = {}  # the row of each photo
    unmatched: list[str] = []
    # Exact names first: a looser one must not take a photo that another row names in full.
    for file in sorted(rows, key=lambda file: file not in relative):
        ending = PurePosixPath(file).parts
        alike = by_name.get(ending[-1], []) if ending else []
        ends = [relative[file]] if file in relative else [i for i in alike if parts[i][-len(ending) :] == ending]
        if len(ends) > 1:
            raise BadPositions(
                f"{csv}: {file} may be {paths[ends[0]]} or {paths[ends[1]]}; write paths relative to the photo folder"
            )
        if not ends or named.get(ends[0]) in relative:
            unmatched.append(file)
        elif ends[0] in named:
            raise BadPositions(f"{csv}: {named[ends[0]]} and {file} both name {paths[ends[0]]}; keep one row")
        else:
            named[ends[0]] = file
    if not named:
        example = f"the first photo is {next(iter(relative))}" if paths else "there are no photos"
        raise BadPositions(f"{csv}: none of its {len(rows)} rows names a photo (first row: {unmatched[0]}; {example})")
    notes = []
    if unmatched:
        verb = "matches" if len(unmatched) == 1 else "match"
        notes.append(f"{_count(len(unmatched), 'row')} of {csv.name} {verb} no image (first: {unmatched[0]})")
    return {index: rows[file] for index, file in named.items()}, notes


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def normal_path(path: Path | str) -> PurePosixPath:
    """A path in posix form, with accents spelt in one way."""
    text = path.as_posix() if isinstance(path, Path) else path.replace("\\", "/")
    # One spelling of accents: macOS takes é apart in file names, most editors write it as one character.
    return PurePosixPath(unicodedata.normalize("NFC", text))


def _key(file: str) -> str:
    return str(normal_path(file))  # PurePosixPath drops "./" and doubled slashes


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None  # float() takes "1_000"


# --- from the photo itself ---


def position_from_name(name: str) -> Position | None:
    """Fields 1 and 2 of `@utm_east@utm_north@…`, the naming of common place recognition sets."""
    fields = name.split("@")
    if len(fields) < 4 or fields[0]:
        return None
    x, y = _number(fields[1]), _number(fields[2])
    if x is None or y is None or max(abs(x), abs(y)) > LIMITS["x"][0]:
        return None  # numbers, but no position
    return Position(x=x, y=y)


def position_from_exif(path: Path) -> Position | None:
    """The GPS position in a photo's EXIF data; None when there is none or it cannot be read."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of damaged EXIF; here that means "no position"
            with Image.open(path) as image:
                gps = image.getexif().get_ifd(_GPS_IFD)
        lat = _degrees(gps[_LAT], gps[_LAT_REF], "NS")
        lon = _degrees(gps[_LON], gps[_LON_REF], "EW")
        return Position(lat=lat, lon=lon)
    except Exception:  # a position is a bonus: whatever is wrong with the EXIF data, the photo still counts
        return None


def _degrees(parts: Any, reference: str | bytes, signs: str) -> float:
    """Degrees, minutes and seconds with N, S, E or W as one signed number; ValueError when they make none."""
    text = reference.decode("ascii") if isinstance(reference, bytes) else reference
    letter = text.strip("\0 ").upper()
    # Pillow gives a tuple, or the bare number when there is but one; a rational with denominator 0 becomes nan.
    values = [float(part) for part in (parts if isinstance(parts, tuple) else (parts,))]
    if letter not in tuple(signs) or not 1 <= len(values) <= 3 or not all(value >= 0 for value in values):
        raise ValueError(f"{parts} {reference!r} is not an angle")
    angle = sum(value / 60**power for power, value in enumerate(values))
    return -angle if letter == signs[1] else angle
