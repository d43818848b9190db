"""Text files that come with a dataset: lines, numbers and tables, with errors that name the file and the line."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfa.core.reading import read_text
from tfa_bench.datasets.files import BadDataset

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
