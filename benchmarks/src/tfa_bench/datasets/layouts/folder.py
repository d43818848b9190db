"""The generic layout for any dataset.

    database/…        images, in subfolders or not
    queries/…         images; or queries/<condition>/… with one subfolder per condition
    positives.json    {"query.jpg": ["database.jpg", …]}: file names, or paths below queries/ and database/

Without positives.json, queries match by `tolerance` (maximum difference of frame numbers) or by `radius` (meters
between positions from positions.csv, `@utm_east@utm_north@` names or EXIF data).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfa.evaluate.positives import within
from tfa_bench.datasets.files import (
    BadDataset,
    DatasetFiles,
    by_name,
    images_in,
    listed_positives,
    metric_points,
    natural_order,
    same_frame,
)

POSITIVES, POSITIONS = "positives.json", "positions.csv"
TAKES_POSITIVES = True


def load(
    root: Path,
    *,
    positives: str = POSITIVES,
    radius: float | None = None,
    tolerance: int | None = None,
    positions: str = POSITIONS,
) -> DatasetFiles:
    database = images_in(root / "database", deep=True)
    queries = images_in(root / "queries", deep=True)
    file = root / positives
    if file.is_file():
        names = by_name(database, root / "database"), by_name(queries, root / "queries")
        matched = listed_positives(file, *names, len(queries))
        note = f"positives are from {file.name}"
    elif positives != POSITIVES:  # requested by name: do not silently use another rule
        raise BadDataset(f"{file} is missing; it must be JSON that lists the database images of each query")
    elif tolerance is not None:
        database, queries = natural_order(database), natural_order(queries)
        matched = same_frame(len(database), len(queries), tolerance)
        note = f"no {positives}: a query matches frames with its number ± {tolerance}"
    elif radius is not None:
        matched = _by_distance(root, database, queries, radius, positions)
        note = f"no {positives}: a query matches images at most {radius:g} m away"
    else:
        raise BadDataset(f"{file} is missing; it must be JSON that lists the database images of each query")
    return DatasetFiles(database, queries, matched, _conditions(queries, root / "queries"), (note,))


def missing(root: Path, *, positives: str = POSITIVES, radius: float | None = None, tolerance: int | None = None,
            positions: str = POSITIONS) -> list[str]:  # fmt: skip
    """List missing folders and files."""
    absent = [name for name in ("database", "queries") if not (root / name).is_dir()]
    if radius is None and tolerance is None and not (root / positives).is_file():
        absent.append(positives)
    return absent


def _by_distance(
    root: Path, database: Sequence[Path], queries: Sequence[Path], radius: float, positions: str
) -> tuple[np.ndarray, ...]:
    csv = root / positions
    points = metric_points([*database, *queries], root, csv if csv.is_file() else None)
    return within(points[: len(database)], points[len(database) :], radius)


def _conditions(queries: Sequence[Path], folder: Path) -> dict[str, np.ndarray]:
    """Use subfolders of queries/ as conditions if every query is in one and there are several."""
    first = [path.relative_to(folder).parts[0] for path in queries]
    if len(set(first)) < 2 or any(len(path.relative_to(folder).parts) < 2 for path in queries):
        return {}
    labels = np.array(first)
    return {name: np.flatnonzero(labels == name) for name in sorted(set(first))}
