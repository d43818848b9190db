"""Two folders and a `*_gt.npy` of AnyLoc: an array of [query, positives], both counted from 0.

    day_right/   night_right/   gardens_gt.npy       Gardens Point
    db_images/   q_images/      eiffel_gt.npy        Eiffel, where AnyLoc passes over 101 rows (skip=101)

Images are counted in natural order of their names. The file is a pickled object array; it is read by an unpickler
that knows arrays and numbers only.
"""

from __future__ import annotations

import reprlib
from pathlib import Path

import numpy as np

from tfa_bench.datasets.files import BadDataset, DatasetFiles, checked_indices, images_in, in_query_order
from tfa_bench.datasets.safe_pickle import load_rows
from tfa_bench.datasets.text_tables import natural_order


def load(
    root: Path,
    *,
    database: str = "day_right",
    queries: str = "night_right",
    positives: str = "gardens_gt.npy",
    skip: int = 0,
) -> DatasetFiles:
    """Positives as listed. The first `skip` rows of the file are passed over."""
    references = natural_order(images_in(root / database))
    query_images = natural_order(images_in(root / queries))
    listed, notes = read_positives(root / positives, len(references), len(query_images), skip=skip)
    return DatasetFiles(references, query_images, listed, notes=notes)


def read_positives(
    path: Path, images: int, queries: int, *, skip: int = 0
) -> tuple[tuple[np.ndarray, ...], tuple[str, ...]]:
    """Positives of each query from an array of [query, positives], and what is worth a note."""
    if not path.is_file():
        raise BadDataset(f"{path} is missing; it lists the positives of each query")
    rows: list[tuple[int | None, np.ndarray]] = []
    for number, row in enumerate(load_rows(path)[skip:], skip):
        where = f"{path}, row {number}"
        try:
            query, indices = row
        except (TypeError, ValueError):
            shown = reprlib.repr(row)
            raise BadDataset(f"{where}: a row must be [query, positives], this one is {shown}") from None
        rows.append((_query_number(query, skip), checked_indices(indices, images, where)))
    return in_query_order(rows, queries, path)


def _query_number(value: object, skip: int) -> int | None:
    """The query a row names, counted from the first one kept; None if it is no whole number."""
    try:
        number = np.asarray(value)
        if number.size != 1 or number.dtype.kind not in "iuf" or number.item() != int(number.item()):
            return None
        return int(number.item()) - skip
    except (ValueError, OverflowError):  # rows of unequal length; not a number, infinite
        return None
