"""From names, frames and lists of indices to positives: what several layouts share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfa.bench.datasets.files import BadDataset
from tfa.bench.datasets.layouts.earth import earth_points
from tfa.bench.datasets.layouts.indexed import checked_indices
from tfa.core.files import require_json
from tfa.photos.find_positions import find_positions


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
    """Points `p c` in metres, every image placed: by the CSV, its name or its EXIF data."""
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
    listed = read_positives(file)
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


def read_positives(file: Path) -> dict[str, list[str]]:
    values = require_json(file, BadDataset, "; it lists the database images of each query as JSON")
    if not isinstance(values, dict) or not all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in values.values()
    ):
        raise BadDataset(f'{file} must hold one JSON object {{"query.jpg": ["database.jpg", …], …}}')
    return values


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
