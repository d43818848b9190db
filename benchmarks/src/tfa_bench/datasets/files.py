"""Helpers of layouts: images in a fixed order and their positives.

Positives come from names, frames, positions or index lists. Text files of a dataset are read here too: lines, numbers
and tables, with errors that name the file and the line.
"""

from __future__ import annotations

import csv
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.files import read_text
from tfa.errors import TfaError
from tfa.evaluate.positives import earth_points, read_positives
from tfa.photos.find_positions import find_positions

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")


class BadDataset(TfaError):
    """A dataset's folder lacks something, or its content does not match its layout."""


@dataclass(frozen=True)
class DatasetFiles:
    """A dataset as read by its layout. Positives are sorted indices into `database`, possibly empty."""

    database: tuple[Path, ...]
    queries: tuple[Path, ...]
    positives: tuple[np.ndarray, ...]  # int64, one array per query
    conditions: Mapping[str, np.ndarray] = field(default_factory=dict)  # name → indices of its queries
    notes: tuple[str, ...] = ()  # for the user: "queries without positives: 3"


@dataclass(frozen=True)
class LayoutFunctions:
    """A layout that shares its module with others (`tfa_bench.datasets.load.Layout`)."""

    load: Callable[..., DatasetFiles]
    missing: Callable[..., list[str]] | None = None
    TAKES_POSITIVES: bool = False


def images_in(folder: Path, *, deep: bool = False) -> tuple[Path, ...]:
    """List the images of a folder sorted by name (by path below it, if `deep`)."""
    if not folder.is_dir():
        raise BadDataset(f"{folder} is missing; this layout needs it")
    listed = folder.rglob("*") if deep else folder.iterdir()
    found = sorted((p for p in listed if p.suffix.lower() in IMAGES and p.is_file()), key=lambda p: p.as_posix())
    if not found:
        raise BadDataset(f"{folder} has no images; image files end in {' '.join(IMAGES)}")
    return tuple(found)


def same_labels(database: Sequence[str], queries: Sequence[str]) -> tuple[np.ndarray, ...]:
    """Return, for each query, the database images with the same label."""
    where: dict[str, list[int]] = {}
    for index, label in enumerate(database):
        where.setdefault(label, []).append(index)
    return tuple(np.array(where.get(label, []), np.int64) for label in queries)


def checked_indices(values: Any, images: int, where: str) -> np.ndarray:
    """Return integers from 0 to `images` - 1 as a sorted array without repetition."""
    try:
        given = np.asarray(values, np.float64).ravel()  # some files hold integers as floats
    except (TypeError, ValueError, OverflowError):
        raise BadDataset(f"{where}: {reprlib.repr(values)} is not a list of image numbers") from None
    whole = np.isfinite(given) & (given == np.floor(given))
    allowed = whole & (given >= 0) & (given < images)
    if not allowed.all():
        raise BadDataset(
            f"{where}: {given[~allowed][0]:g} is not the index of a database image; "
            f"there are {images}, counted from 0. Check that the folder holds all images and nothing else"
        )
    return np.unique(given.astype(np.int64))


def in_query_order(
    rows: Sequence[tuple[int | None, np.ndarray]], queries: int, path: Path
) -> tuple[tuple[np.ndarray, ...], tuple[str, ...]]:
    """Return the positives of query 0, 1, … from rows (query, positives), with notes.

    The first column assigns rows to queries. If it does not count the queries from 0, rows are used in file order, as
    AnyLoc does for all files.
    """
    if len(rows) != queries:
        raise BadDataset(f"{path} has {len(rows)} rows for {queries} queries; one row per query is needed")
    said = [number for number, _ in rows]
    if sorted(number for number in said if number is not None) != list(range(queries)):
        note = f"the first column of {path.name} does not count the queries from 0; rows are used in file order"
        return tuple(own for _, own in rows), (note,)
    placed = dict(rows)
    return tuple(placed[query] for query in range(queries)), ()


def same_frame(database: int, queries: int, tolerance: int) -> tuple[np.ndarray, ...]:
    """Match query i with database frames i - tolerance to i + tolerance, clipped at the ends."""
    if database != queries:
        raise BadDataset(
            f"{database:,} database images and {queries:,} queries cannot be matched frame by frame; "
            "both folders must hold the same frames, or provide positives.json"
        )
    return tuple(
        np.arange(max(0, i - tolerance), min(database, i + tolerance + 1), dtype=np.int64) for i in range(queries)
    )


def index_rows(rows: Iterable[Any], source: Path, database: int) -> tuple[np.ndarray, ...]:
    """Return rows of database indices as sorted arrays without repeats."""
    return tuple(checked_indices(row, database, f"{source}, row {number}") for number, row in enumerate(rows))


def metric_points(paths: Sequence[Path], root: Path, csv: Path | None) -> np.ndarray:
    """Return positions `(p, c)` in meters for all images, from the CSV, their names or their EXIF data."""
    where, _ = find_positions(paths, root, csv)
    bare = [path for path, position in zip(paths, where, strict=True) if position is None]
    if bare:
        raise BadDataset(
            f"{len(bare):,} of {len(paths):,} images have no position (first: {bare[0]}); "
            "list them in positions.csv (file,x,y or file,lat,lon), or provide positives.json"
        )
    placed = [position for position in where if position is not None]
    if len({position.is_global for position in placed}) > 1:
        raise BadDataset(f"{root}: some positions are lat/lon and others x/y; use one kind for all")
    pairs = np.array([position.pair for position in placed], np.float64)
    return earth_points(pairs) if placed[0].is_global else pairs


def listed_positives(
    file: Path, database: Mapping[str, Sequence[int]], queries: Mapping[str, Sequence[int]], total: int
) -> tuple[np.ndarray, ...]:
    """Read positives of `total` queries from JSON {query: [database images]}; both named as in `by_name`."""
    rows: list[np.ndarray] = [np.array([], np.int64) for _ in range(total)]
    seen: dict[int, str] = {}
    listed = read_positives(file, BadDataset)
    unknown = [name for name in listed if name not in queries]
    strange = [name for names in listed.values() for name in names if name not in database]
    if unknown or strange:
        parts = [
            f"{len(names):,} unknown {what} (first: {', '.join(names[:3])})"
            for names, what in ((unknown, "query names"), (strange, "database names"))
            if names
        ]
        raise BadDataset(f"{file}: {'; '.join(parts)}; use file names or paths below their folder")
    for name, names in listed.items():
        index = _only(queries, name, file)
        if index in seen:
            raise BadDataset(f"{file}: {seen[index]} and {name} name the same query; keep one")
        seen[index] = name
        rows[index] = np.unique(np.array([_only(database, right, file) for right in names], np.int64))
    return tuple(rows)


def by_name(paths: Sequence[Path], folder: Path) -> dict[str, list[int]]:
    """Map every name of an image (path below `folder`, file name) to the images with this name."""
    rows_of: dict[str, list[int]] = {}
    for index, path in enumerate(paths):
        for name in {path.relative_to(folder).as_posix(), path.name}:
            rows_of.setdefault(name, []).append(index)
    return rows_of


def _only(names: Mapping[str, Sequence[int]], name: str, file: Path) -> int:
    if len(names[name]) > 1:
        raise BadDataset(f"{file}: {len(names[name])} images are named {name}; use their paths below the folder")
    return names[name][0]


# --- text files ----------------------------------------------------------------------------------------------------


LARGEST = 1e12  # largest magnitude in meters, degrees or images; beyond it, squared distances lose digits
_WHOLE_DIGITS = 18  # maximum digits of an integer


def bad_line(path: Path, line: int, problem: str) -> BadDataset:
    """Return the error for one line of a file, counted from 1."""
    return BadDataset(f"{path}, line {line}: {problem}")


def lines_of(path: Path) -> list[str]:
    """Read the lines of a text file without line ends and trailing blank lines."""
    if not path.is_file():
        raise BadDataset(f"{path} is missing; this layout needs it")
    try:
        return read_text(path).rstrip().splitlines()
    except (ValueError, OSError) as error:
        raise BadDataset(f"{path} cannot be read: {error}; unpack it again") from None


def split_fields(text: str) -> list[str]:
    """Split a line at commas, blanks or both."""
    return [field for field in re.split(r"[,\s]+", text.strip()) if field]


def numbers(fields: Sequence[str], count: int, path: Path, line: int, what: str) -> list[float]:
    """Parse exactly `count` finite numbers; the error names what the line should contain."""
    try:
        values = [float(field) for field in fields]
    except ValueError:
        values = []
    if len(values) != count or not all(abs(value) <= LARGEST for value in values):  # also rejects NaN
        raise bad_line(
            path, line, f"{' '.join(fields)[:80]!r} is not {what}; {count} numbers of at most {LARGEST:g} are expected"
        )
    return values


def whole_number(text: str) -> int | None:
    """Parse decimal digits; None if the text is not an integer or has too many digits."""
    return int(text) if text.isdecimal() and len(text) <= _WHOLE_DIGITS else None


def natural_order(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Sort paths with the numbers in their names as numbers: img2 before img10.

    Indices in a ground truth refer to this order if its authors sorted names so.
    """

    def key(path: Path) -> tuple[list[tuple[int, str]], str]:
        # Digits are at the odd positions of the split, so texts compare with texts and numbers with numbers.
        parts = re.split(r"(\d+)", path.name)
        return [(int(part), "") if place % 2 else (0, part) for place, part in enumerate(parts)], path.as_posix()

    return tuple(sorted(paths, key=key))


@dataclass(frozen=True)
class TextTable:
    """A CSV file with a header: lower-case column names, and the line number of each row."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]

    def column(self, *accepted: str) -> int:
        """Return the index of the first accepted name that the header has."""
        found = self.optional(*accepted)
        if found is None:
            raise bad_line(
                self.path,
                1,
                f"no column {' or '.join(accepted)}; the header has {', '.join(self.columns)[:200] or 'nothing'}",
            )
        return found

    def optional(self, *accepted: str) -> int | None:
        return next((self.columns.index(name) for name in accepted if name in self.columns), None)

    def number(self, line: int, row: Sequence[str], column: int) -> float:
        name = f"a number for {self.columns[column]}"
        return numbers([row[column]], 1, self.path, line, name)[0]


def read_table(path: Path) -> TextTable:
    """Read a CSV file with a header line. A row with too few or too many fields is an error."""
    reader = csv.reader(lines_of(path))
    try:
        listed = [(reader.line_num, fields) for fields in reader]
    except csv.Error as error:
        raise bad_line(path, reader.line_num, f"{error}; the file is not valid CSV") from None
    columns = tuple(name.strip().lower() for name in (listed[0][1] if listed else []))
    rows = []
    for line, fields in listed[1:]:
        if not any(field.strip() for field in fields):
            continue
        if len(fields) != len(columns):
            raise bad_line(path, line, f"{len(fields)} fields, the header has {len(columns)}")
        rows.append((line, tuple(field.strip() for field in fields)))
    if not rows:
        raise BadDataset(f"{path} has no rows below its header")
    return TextTable(path, columns, tuple(rows))
