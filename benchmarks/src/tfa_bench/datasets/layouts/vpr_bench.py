"""The layout of VPR-Bench.

    query/0000000.jpg, …
    ref/0000000.jpg, …
    ground_truth_new.npy   rows [index of the query, indices of its reference images]

The ground truth is a Python 2 pickle, read without executing it. Without it, `tolerance` matches frames whose numbers
differ by at most `tolerance`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfa_bench.datasets.files import BadDataset, DatasetFiles, images_in, index_rows, natural_order, same_frame
from tfa_bench.datasets.safe_pickle import load_object_array

TRUTH = "ground_truth_new.npy"


def load(
    root: Path,
    *,
    queries: Sequence[str] = ("query",),
    database: Sequence[str] = ("ref",),
    truth: str = TRUTH,
    tolerance: int | None = None,
) -> DatasetFiles:
    """Load a dataset; `queries` and `database` are folder names in different releases."""
    query_images = natural_order(images_in(_first(root, queries)))
    known = natural_order(images_in(_first(root, database)))
    file = root / truth
    if not file.is_file() and tolerance is not None:
        note = f"no {truth}: a query matches frames with its number ± {tolerance}"
        return DatasetFiles(known, query_images, same_frame(len(known), len(query_images), tolerance), notes=(note,))
    rows = index_rows(_in_order(load_object_array(file), len(query_images), file), file, len(known))
    return DatasetFiles(known, query_images, rows)


def missing(root: Path, *, queries: Sequence[str] = ("query",), database: Sequence[str] = ("ref",), truth: str = TRUTH,
            tolerance: int | None = None) -> list[str]:  # fmt: skip
    """List missing folders and files."""
    absent = [" or ".join(names) for names in (queries, database) if not _first(root, names).is_dir()]
    return absent + ([truth] if tolerance is None and not (root / truth).is_file() else [])


def _first(root: Path, names: Sequence[str]) -> Path:
    return next((root / name for name in names if (root / name).is_dir()), root / names[0])


def _in_order(pairs: np.ndarray, queries: int, file: Path) -> list[Any]:
    """Return the second cell of each row, sorted by the index in the first."""
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise BadDataset(f"{file} has shape {pairs.shape}, must have two columns: query, its references")
    rows: dict[int, Any] = {}
    for query, references in pairs:
        try:
            number = int(np.asarray(query).ravel()[0])
        except (TypeError, ValueError, OverflowError, IndexError):
            raise BadDataset(f"{file} names a query {reprlib.repr(query)}; it must be an integer") from None
        if number in rows:
            raise BadDataset(f"{file} lists query {number} twice")
        rows[number] = references
    if sorted(rows) != list(range(queries)):
        raise BadDataset(
            f"{file} lists {len(rows):,} queries, not the {queries:,} of the query images; use files of one release"
        )
    return [rows[number] for number in range(queries)]
