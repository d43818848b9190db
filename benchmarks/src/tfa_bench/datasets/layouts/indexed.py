"""Positives written as numbers of database images: checked, and brought into the order of the queries."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfa_bench.datasets.files import BadDataset


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
