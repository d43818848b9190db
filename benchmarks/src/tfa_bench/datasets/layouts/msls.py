"""MSLS validation as its lists define it: the layout of `gsv_lists` with two more files.

<name>_dbImages.npy, <name>_qImages.npy     paths of images below the dataset's folder
<name>_qIdx.npy      which of the query images are queries (740 of 747)
<name>_pIdx.npy      for each of these the indices of its database images
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tfa_bench.datasets.files import BadDataset, DatasetFiles, index_rows
from tfa_bench.datasets.layouts.gsv_lists import find_list, listed_images, missing_lists
from tfa_bench.datasets.safe_pickle import load_object_array, load_rows

_SUFFIXES = ("dbImages", "qImages", "qIdx", "pIdx")


def load(root: Path, *, name: str = "", images: str = "") -> DatasetFiles:
    files = {suffix: find_list(root, name, suffix) for suffix in _SUFFIXES}
    database = listed_images(files["dbImages"], root / images)
    pictured = len(load_object_array(files["qImages"]).ravel())
    used = _used(files["qIdx"], pictured)
    rows = load_rows(files["pIdx"])
    if len(rows) != len(used):
        raise BadDataset(f"{files['pIdx']} has {len(rows):,} rows, {files['qIdx']} chooses {len(used):,} queries")
    queries = listed_images(files["qImages"], root / images, used)
    note = f"{len(used):,} of {pictured:,} query images are used"
    return DatasetFiles(database, queries, index_rows(rows, files["pIdx"], len(database)), notes=(note,))


def missing(root: Path, *, name: str = "", images: str = "") -> list[str]:
    """What the folder lacks."""
    return missing_lists(root, name, _SUFFIXES)


def _used(file: Path, pictured: int) -> np.ndarray:
    used = load_object_array(file).ravel()
    try:
        used = np.array([int(number) for number in used], np.int64)
    except (TypeError, ValueError, OverflowError):
        raise BadDataset(f"{file} must list the numbers of query images; get it again from its owner") from None
    if len(np.unique(used)) != len(used) or (len(used) and not 0 <= used.min() <= used.max() < pictured):
        raise BadDataset(f"{file} must choose different images among the {pictured:,} of qImages")
    return used
