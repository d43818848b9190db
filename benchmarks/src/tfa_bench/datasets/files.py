"""What a layout finds in a folder: images in a fixed order, and which of them show the same place.

Positives come from names, frames, positions or lists of indices. Text files of a dataset are read here, too: lines,
numbers and tables, with errors that name the file and the line.
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
    """A dataset's folder lacks something, or holds something else than its layout promises."""


@dataclass(frozen=True)
class DatasetFiles:
    """A dataset as its layout reads it. Positives are indices into `database`, sorted, maybe none."""

    database: tuple[Path, ...]
    queries: tuple[Path, ...]
    positives: tuple[np.ndarray, ...]  # int64, one array for each query
    conditions: Mapping[str, np.ndarray] = field(default_factory=dict)  # name → indices of its queries
    notes: tuple[str, ...] = ()  # what the user should know: "queries without positives: 3"


@dataclass(frozen=True)
class LayoutFunctions:
    """A layout that shares its module with others (`tfa_bench.datasets.load.Layout`)."""

    load: Callable[..., DatasetFiles]
    missing: Callable[..., list[str]] | None = None
    TAKES_POSITIVES: bool = False


def images_in(folder: Path, *, deep: bool = False) -> tuple[Path, ...]:
    """Images of a folder in the order of their names (of their paths below it, if `deep`)."""
    if not folder.is_dir():
        raise BadDataset(f"{folder} is missing; this layout needs it")
    listed = folder.rglob("*") if deep else folder.iterdir()
    found = sorted((p for p in listed if p.suffix.lower() in IMAGES and p.is_file()), key=lambda p: p.as_posix())
    if not found:
        raise BadDataset(f"{folder} holds no image; images end in {' '.join(IMAGES)}")
    return tuple(found)


def same_labels(database: Sequence[str], queries: Sequence[str]) -> tuple[np.ndarray, ...]:
    """For each query the database images that carry its label."""
    where: dict[str, list[int]] = {}
    for index, label in enumerate(database):
        where.setdefault(label, []).append(index)
    return tuple(np.array(where.get(label, []), np.int64) for label in queries)


def checked_indices(values: Any, images: int, where: str) -> np.ndarray:
    """Whole numbers from 0 to `images` - 1 as a sorted array without repetition."""
    try:
        given = np.asarray(values, np.float64).ravel()  # some files hold whole numbers as floats
    except (TypeError, ValueError, OverflowError):
        raise BadDataset(f"{where}: {reprlib.repr(values)} is not a list of image numbers") from None
    whole = np.isfinite(given) & (given == np.floor(given))
    allowed = whole & (given >= 0) & (given < images)
    if not allowed.all():
        raise BadDataset(
            f"{where}: {given[~allowed][0]:g} is not the number of a database image; "
            f"there are {images} of them, counted from 0: does the folder hold all images, and nothing else?"
        )
    return np.unique(given.astype(np.int64))


def in_query_order(
    rows: Sequence[tuple[int | None, np.ndarray]], queries: int, path: Path
) -> tuple[tuple[np.ndarray, ...], tuple[str, ...]]:
    """Positives of query 0, 1, … from rows (query, positives), and what is worth a note.

    Rows go where their first column says. If that column does not count the queries from 0, the rows are taken
    in the order of the file, which is how AnyLoc reads all of them.
    """
    if len(rows) != queries:
        raise BadDataset(f"{path} has {len(rows)} rows for {queries} queries; it needs one row for each query")
    said = [number for number, _ in rows]
    if sorted(number for number in said if number is not None) != list(range(queries)):
        note = f"the first column of {path.name} does not count the queries from 0; rows are taken in order"
        return tuple(own for _, own in rows), (note,)
    placed = dict(rows)
    return tuple(placed[query] for query in range(queries)), ()


def same_frame(database: int, queries: int, tolerance: int) -> tuple[np.ndarray, ...]:
    """Query i shows the places of frames i - tolerance to i + tolerance of the database, cut at its ends."""
    if database != queries:
        raise BadDataset(
            f"{database:,} database images and {queries:,} queries cannot be matched frame by frame; "
            "both folders must hold the same frames, or give positives.json"
        )
    return tuple(
        np.arange(max(0, i - tolerance), min(database, i + tolerance + 1), dtype=np.int64) for i in range(queries)
    )


def index_rows(rows: Iterable[Any], source: Path, database: int) -> tuple[np.ndarray, ...]:
    """Rows of database indices as sorted arrays without repeats."""
    return tuple(checked_indices(row, database, f"{source}, row {number}") for number, row in enumerate(rows))


def metric_points(paths: Sequence[Path], root: Path, csv: Path | None) -> np.ndarray:
    """Points `p c` in meters, every image placed: by the CSV, its name or its EXIF data."""
    where, _ = find_positions(paths, root, csv)
    bare = [path for path, position in zip(paths, where, strict=True) if position is None]
    if bare:
        raise BadDataset(
            f"{len(bare):,} of {len(paths):,} images have no position (first: {bare[0]}); "
            "list them in positions.csv (file,x,y or file,lat,lon), or give positives.json"
        )
    placed = [position for position in where if position is not None]
    if len({position.is_global for position in placed}) > 1:
        raise BadDataset(f"{root}: some images are placed by lat/lon and others by x/y; use one kind for all")
    pairs = np.array([position.pair for position in placed], np.float64)
    return earth_points(pairs) if placed[0].is_global else pairs


def listed_positives(
    file: Path, database: Mapping[str, Sequence[int]], queries: Mapping[str, Sequence[int]], total: int
) -> tuple[np.ndarray, ...]:
    """Positives of `total` queries from JSON {query: [database images]}; both named as `by_name` names them."""
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
        raise BadDataset(f"{file}: {'; '.join(parts)}; name files, or paths below their folder")
    for name, names in listed.items():
        index = _only(queries, name, file)
        if index in seen:
            raise BadDataset(f"{file}: {seen[index]} and {name} name the same query; keep one")
        seen[index] = name
        rows[index] = np.unique(np.array([_only(database, right, file) for right in names], np.int64))
    return tuple(rows)


def by_name(paths: Sequence[Path], folder: Path) -> dict[str, list[int]]:
    """Every name an image may be called by (its path below `folder`, its file name) → the images it fits."""
    rows_of: dict[str, list[int]] = {}
    for index, path in enumerate(paths):
        for name in {path.relative_to(folder).as_posix(), path.name}:
            rows_of.setdefault(name, []).append(index)
    return rows_of


def _only(names: Mapping[str, Sequence[int]], name: str, file: Path) -> int:
    if len(names[name]) > 1:
        raise BadDataset(f"{file}: {len(names[name])} images are called {name}; write their paths below the folder")
    return names[name][0]


# --- text files ----------------------------------------------------------------------------------------------------


LARGEST = 1e12  # of a number in meters, degrees or images; beyond, squares of distances lose their digits
_WHOLE_DIGITS = 18  # of a whole number


def bad_line(path: Path, line: int, problem: str) -> BadDataset:
    """The error for one line of a file, counted from 1."""
    return BadDataset(f"{path}, line {line}: {problem}")


def lines_of(path: Path) -> list[str]:
    """Lines of a text file without their ends and without blank lines at the end."""
    if not path.is_file():
        raise BadDataset(f"{path} is missing; this layout needs it")
    try:
        return read_text(path).rstrip().splitlines()
    except (ValueError, OSError) as error:
        raise BadDataset(f"{path} cannot be read: {error}; unpack it again") from None


def split_fields(text: str) -> list[str]:
    """Fields of a line, apart by commas, blanks or both."""
    return [field for field in re.split(r"[,\s]+", text.strip()) if field]


def numbers(fields: Sequence[str], count: int, path: Path, line: int, what: str) -> list[float]:
    """Exactly `count` finite numbers, or the error that says what the line should have held."""
    try:
        values = [float(field) for field in fields]
    except ValueError:
        values = []
    if len(values) != count or not all(abs(value) <= LARGEST for value in values):  # which NaN is not
        raise bad_line(
            path,
            line,
            f"{' '.join(fields)[:80]!r} is not {what}; {count} numbers of at most {LARGEST:g} are expected",
        )
    return values


def whole_number(text: str) -> int | None:
    """The number that decimal digits write; None if it is none, or one that no file counts to."""
    return int(text) if text.isdecimal() and len(text) <= _WHOLE_DIGITS else None


def natural_order(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Paths with the numbers in their names read as numbers: img2 before img10.

    Ground truth that counts images counts them in this order where its authors sorted names so.
    """

    def key(path: Path) -> tuple[list[tuple[int, str]], str]:
        # digits stand at the odd places of the split, so texts meet texts and numbers meet numbers
        parts = re.split(r"(\d+)", path.name)
        return [(int(part), "") if place % 2 else (0, part) for place, part in enumerate(parts)], path.as_posix()

    return tuple(sorted(paths, key=key))


@dataclass(frozen=True)
class TextTable:
    """A CSV file with a header: column names in lower case, and for each row its line in the file."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]

    def column(self, *accepted: str) -> int:
        """Place of the first of the accepted names that the header has."""
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
    """A CSV file with a header line. A row with too few or too many fields is an error."""
    reader = csv.reader(lines_of(path))
    try:
        listed = [(reader.line_num, fields) for fields in reader]
    except csv.Error as error:
        raise bad_line(path, reader.line_num, f"{error}; it is not CSV") from None
    columns = tuple(name.strip().lower() for name in (listed[0][1] if listed else []))
    rows = []
    for line, fields in listed[1:]:
        if not any(field.strip() for field in fields):
            continue
        if len(fields) != len(columns):
            raise bad_line(path, line, f"{len(fields)} fields, the header has {len(columns)}")
        rows.append((line, tuple(field.strip() for field in fields)))
    if not rows:
        raise BadDataset(f"{path} holds no row below its header")
    return TextTable(path, columns, tuple(rows))
