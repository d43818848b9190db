"""Lists of image paths beside the images, as the GSV-Cities code ships them.

<name>_dbImages.npy     paths of database images below the dataset's folder
<name>_qImages.npy      paths of queries
<name>_gt.npy           for each query the indices of its database images
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfa_bench.datasets.files import BadDataset, DatasetFiles, index_rows
from tfa_bench.datasets.safe_pickle import load_object_array, load_rows

_SUFFIXES = ("dbImages", "qImages", "gt")


def load(root: Path, *, name: str = "", images: str = "") -> DatasetFiles:
    """`name` chooses among several lists; `images` is the folder the paths start from, if not the root."""
    files = {suffix: find_list(root, name, suffix) for suffix in _SUFFIXES}
    database = listed_images(files["dbImages"], root / images)
    queries = listed_images(files["qImages"], root / images)
    rows = load_rows(files["gt"])
    if len(rows) != len(queries):
        raise BadDataset(f"{files['gt']} has {len(rows):,} rows, {files['qImages']} has {len(queries):,} queries")
    return DatasetFiles(database, queries, index_rows(rows, files["gt"], len(database)))


def missing(root: Path, *, name: str = "", images: str = "") -> list[str]:
    return missing_lists(root, name, _SUFFIXES)


def missing_lists(root: Path, name: str, suffixes: Sequence[str]) -> list[str]:
    """Files of lists that are absent."""
    return [f"{name or '*'}_{suffix}.npy" for suffix in suffixes if not _candidates(root, name, suffix)]


def find_list(root: Path, name: str, suffix: str) -> Path:
    """The one file `<name>_<suffix>.npy` in the dataset's folder or in a folder directly below."""
    files = _candidates(root, name, suffix)
    if not files:
        raise BadDataset(f"{root / (name or '*')}_{suffix}.npy is missing; this layout needs it")
    if len(files) > 1:
        raise BadDataset(f"{files[0]} and {files[1]} may both be meant; keep one of them below {root}")
    return files[0]


def _candidates(root: Path, name: str, suffix: str) -> list[Path]:
    pattern = f"{name or '*'}_{suffix}.npy"
    return sorted(root.glob(pattern)) or sorted(root.glob(f"*/{pattern}"))


def listed_images(file: Path, folder: Path, chosen: np.ndarray | None = None) -> tuple[Path, ...]:
    """Paths listed in a file (or those of its rows `chosen`), each of which exists."""
    names = [_text(name, file) for name in load_object_array(file).ravel()]
    if chosen is not None:
        names = [names[index] for index in chosen]
    paths = tuple(folder / name for name in names)
    absent = [path for path in paths if not os.path.isfile(path)]  # of a name that no file system takes: False
    if absent:
        raise BadDataset(
            f"{file} lists {len(paths):,} images, {len(absent):,} of them are missing (first: {absent[0]}); "
            "put the images below the dataset's folder as the list names them"
        )
    return paths


def _text(name: object, file: Path) -> str:
    if not isinstance(name, str | bytes):
        raise BadDataset(f"{file} lists {reprlib.repr(name)}; it must list paths of images")
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
    text = text.replace("\\", "/").lstrip("/")
    if ".." in text.split("/"):
        raise BadDataset(f"{file} lists {text}, which leaves the dataset's folder")
    return text
