"""Manifests: lists of photos in CSV or Parquet, with columns uri and maybe lat and lon (or x and y), session."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfa.base.reading import read_text
from tfa.errors import BadManifest, BadPositions, MissingExtra
from tfa.maps.sharded.remote import is_remote
from tfa.photos.positions import Position

COLUMNS = ("uri", "lat", "lon", "x", "y", "session")
HEADER = "uri, and if they are known lat,lon or x,y, and session"
MOST_BYTES = 4_000_000_000
ROWS_AT_ONCE = 65_536


@dataclass(frozen=True)
class ManifestRow:
    uri: str
    position: Position | None
    session: str | None


def is_manifest(source: object) -> bool:
    path = Path(str(source))
    return path.suffix.lower() in (".csv", ".parquet") and path.is_file()


def read_manifest(path: Path) -> Iterator[tuple[str, ManifestRow]]:
    """Rows, each with the words for where it stands. A relative uri is relative to the manifest."""
    rows = _parquet_rows(path) if path.suffix.lower() == ".parquet" else _csv_rows(path)
    seen: dict[str, str] = {}
    for where, cells in rows:
        try:
            row = _row(cells, path.absolute().parent)
        except BadPositions as error:
            raise BadManifest(f"{where}: {error}; correct it, or leave both cells empty", path) from None
        except ValueError as error:
            raise BadManifest(f"{where}: {error}", path) from None
        if row.uri in seen:
            raise BadManifest(f"{where}: {row.uri} is listed already in {seen[row.uri]}; keep one of them", path)
        seen[row.uri] = where.removeprefix(f"{path}, ")
        yield where, row
    if not seen:
        raise BadManifest(f"{path} lists no photo; give one row for each, with the columns {HEADER}", path)


def _row(cells: Mapping[str, Any], folder: Path) -> ManifestRow:
    uri = str(cells.get("uri") or "").strip()
    if not uri:
        raise ValueError("the uri is empty; write the path or the URL of a photo")
    given = {name: cells[name] for name in COLUMNS[1:5] if not _blank(cells.get(name))}
    position = None if not given else Position(**{name: _number(name, value) for name, value in given.items()})
    session = None if _blank(cells.get("session")) else str(cells["session"]).strip()
    return ManifestRow(uri if is_remote(uri) else str(folder / uri), position, session)


def _blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip()) or value != value  # nan is not itself


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise BadPositions(f"{name} is {str(value)[:80]!r}, must be a number")
    return number


def _check_columns(names: list[str], where: str, path: Path) -> None:
    if "uri" not in names:
        shown = ",".join(names)[:200]
        raise BadManifest(f"{where}: the columns are {shown or 'nothing'!r}, must be {HEADER}", path)
    for one, other in (("lat", "lon"), ("lon", "lat"), ("x", "y"), ("y", "x")):
        if one in names and other not in names:
            raise BadManifest(f"{where}: there is a column {one} and none {other}; give both, or none", path)


def _csv_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        reader = csv.reader(io.StringIO(read_text(path, MOST_BYTES), newline=""), skipinitialspace=True)
        names: list[str] | None = None
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if not any(cell.strip() for cell in row):
                continue
            if names is None:
                names = [cell.strip().lower() for cell in row]
                _check_columns(names, where, path)
            elif len(row) > len(names):
                raise BadManifest(
                    f"{where}: {len(row)} cells, the header has {len(names)}; quote what has a comma in it", path
                )
            else:
                yield where, dict(zip(names, row, strict=False))
    except csv.Error as error:
        raise BadManifest(f"{path}, line {reader.line_num}: {error}; save it as CSV in UTF-8", path) from None
    except OSError as error:
        raise BadManifest(f"cannot read the manifest {path}: {error.strerror or error}", path) from None
    except ValueError as error:
        raise BadManifest(f"cannot read the manifest {path}: {error}; save it as CSV in UTF-8", path) from None


def _parquet_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise MissingExtra(
            f"reading {path} needs pyarrow; install it with: pip install 'tfa-vpr[parquet]', or give a CSV file"
        ) from None
    try:
        with ParquetFile(path) as file:
            names = [name.lower() for name in file.schema_arrow.names]
            _check_columns(names, str(path), path)
            wanted = [name for name in file.schema_arrow.names if name.lower() in COLUMNS]
            number = 0
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=wanted):
                for cells in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", {name.lower(): value for name, value in cells.items()}
    except (ArrowException, OSError) as error:
        raise BadManifest(f"cannot read the manifest {path}: {error}; write it as Parquet again", path) from None
