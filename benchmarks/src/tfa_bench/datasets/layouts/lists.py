"""Datasets with list files: those of the GSV-Cities code, MSLS, and a city of GSV-Cities.

`gsv_lists`: lists of image paths, as in the GSV-Cities code.

    <name>_dbImages.npy   paths of database images below the dataset's folder
    <name>_qImages.npy    paths of queries
    <name>_gt.npy         per query, the indices of its positives

`msls`: MSLS validation, `gsv_lists` with two more files.

    <name>_dbImages.npy, <name>_qImages.npy   paths of images below the dataset's folder
    <name>_qIdx.npy                           indices of the query images used (740 of 747)
    <name>_pIdx.npy                           for each of these, the indices of its positives

`gsv_cities`: a city of GSV-Cities. Image names contain the place; the user chooses the queries.

    Images/<City>/<City>_<place id>_<year>_<month>_<bearing>_<lat>_<lon>_<panorama>.jpg
    queries.txt      one image per line: the queries; all others are the database
    positives.json   or, instead, {"query.jpg": ["database.jpg", …]}

With queries.txt, images with the query's place id are its positives.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfa_bench.datasets.files import (
    BadDataset,
    DatasetFiles,
    LayoutFunctions,
    by_name,
    images_in,
    index_rows,
    lines_of,
    listed_positives,
    read_positives,
    same_labels,
)
from tfa_bench.datasets.safe_pickle import load_object_array, load_rows

# --- gsv_lists -----------------------------------------------------------------------------------------------------


_LIST_SUFFIXES = ("dbImages", "qImages", "gt")


def load_gsv_lists(root: Path, *, name: str = "", images: str = "") -> DatasetFiles:
    """Load lists; `name` chooses among several, `images` is the folder that paths are relative to [default: root]."""
    files = {suffix: find_list(root, name, suffix) for suffix in _LIST_SUFFIXES}
    database = listed_images(files["dbImages"], root / images)
    queries = listed_images(files["qImages"], root / images)
    rows = load_rows(files["gt"])
    if len(rows) != len(queries):
        raise BadDataset(f"{files['gt']} has {len(rows):,} rows, {files['qImages']} has {len(queries):,} queries")
    return DatasetFiles(database, queries, index_rows(rows, files["gt"], len(database)))


def missing_gsv_lists(root: Path, *, name: str = "", images: str = "") -> list[str]:
    return missing_lists(root, name, _LIST_SUFFIXES)


def missing_lists(root: Path, name: str, suffixes: Sequence[str]) -> list[str]:
    """Return list files that do not exist."""
    return [f"{name or '*'}_{suffix}.npy" for suffix in suffixes if not _candidates(root, name, suffix)]


def find_list(root: Path, name: str, suffix: str) -> Path:
    """Find the only file `<name>_<suffix>.npy` in the dataset's folder or one level below."""
    files = _candidates(root, name, suffix)
    if not files:
        raise BadDataset(f"{root / (name or '*')}_{suffix}.npy is missing; this layout needs it")
    if len(files) > 1:
        raise BadDataset(f"{files[0]} and {files[1]} both match; keep one of them below {root}")
    return files[0]


def _candidates(root: Path, name: str, suffix: str) -> list[Path]:
    pattern = f"{name or '*'}_{suffix}.npy"
    return sorted(root.glob(pattern)) or sorted(root.glob(f"*/{pattern}"))


def listed_images(file: Path, folder: Path, chosen: np.ndarray | None = None) -> tuple[Path, ...]:
    """Return the existing paths listed in a file, or those in its rows `chosen`."""
    names = [_text(name, file) for name in load_object_array(file).ravel()]
    if chosen is not None:
        names = [names[index] for index in chosen]
    paths = tuple(folder / name for name in names)
    absent = [path for path in paths if not os.path.isfile(path)]  # False for names that no file system accepts
    if absent:
        raise BadDataset(
            f"{file} lists {len(paths):,} images, {len(absent):,} of them are missing (first: {absent[0]}); "
            "put the images below the dataset's folder with the paths in the list"
        )
    return paths


def _text(name: object, file: Path) -> str:
    if not isinstance(name, str | bytes):
        raise BadDataset(f"{file} lists {reprlib.repr(name)}; it must list image paths")
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
    text = text.replace("\\", "/").lstrip("/")
    if ".." in text.split("/"):
        raise BadDataset(f"{file} lists {text}, which is outside the dataset's folder")
    return text


# --- msls ----------------------------------------------------------------------------------------------------------


_MSLS_SUFFIXES = ("dbImages", "qImages", "qIdx", "pIdx")


def load_msls(root: Path, *, name: str = "", images: str = "") -> DatasetFiles:
    files = {suffix: find_list(root, name, suffix) for suffix in _MSLS_SUFFIXES}
    database = listed_images(files["dbImages"], root / images)
    pictured = len(load_object_array(files["qImages"]).ravel())
    used = _used(files["qIdx"], pictured)
    rows = load_rows(files["pIdx"])
    if len(rows) != len(used):
        raise BadDataset(f"{files['pIdx']} has {len(rows):,} rows, {files['qIdx']} chooses {len(used):,} queries")
    queries = listed_images(files["qImages"], root / images, used)
    note = f"{len(used):,} of {pictured:,} query images are used"
    return DatasetFiles(database, queries, index_rows(rows, files["pIdx"], len(database)), notes=(note,))


def missing_msls(root: Path, *, name: str = "", images: str = "") -> list[str]:
    """List missing files."""
    return missing_lists(root, name, _MSLS_SUFFIXES)


def _used(file: Path, pictured: int) -> np.ndarray:
    used = load_object_array(file).ravel()
    try:
        used = np.array([int(number) for number in used], np.int64)
    except (TypeError, ValueError, OverflowError):
        raise BadDataset(f"{file} must list indices of query images; download it again") from None
    if len(np.unique(used)) != len(used) or (len(used) and not 0 <= used.min() <= used.max() < pictured):
        raise BadDataset(f"{file} must choose different images among the {pictured:,} of qImages")
    return used


# --- gsv_cities ----------------------------------------------------------------------------------------------------


POSITIVES, QUERIES = "positives.json", "queries.txt"


def load_gsv_cities(root: Path, *, city: str, positives: str = POSITIVES, queries: str = QUERIES) -> DatasetFiles:
    folder = root / "Images" / city
    images = images_in(folder)
    file = root / positives
    if file.is_file():
        database, query_images = _parted(images, list(read_positives(file)), folder, file)
        rows = listed_positives(file, by_name(database, folder), by_name(query_images, folder), len(query_images))
        return DatasetFiles(database, query_images, rows, notes=(f"queries and positives are from {file.name}",))
    listed = root / queries
    if not listed.is_file():
        raise BadDataset(
            f"{root} holds neither {positives} nor {queries}; the queries are not published, so one is needed"
        )
    names = [line.strip() for line in lines_of(listed) if line.strip()]
    database, query_images = _parted(images, names, folder, listed)
    rows = same_labels([place_of(path) for path in database], [place_of(path) for path in query_images])
    return DatasetFiles(database, query_images, rows, notes=(f"queries are from {listed.name}",))


def missing_gsv_cities(root: Path, *, city: str, positives: str = POSITIVES, queries: str = QUERIES) -> list[str]:
    """List missing folders and files."""
    absent = [] if (root / "Images" / city).is_dir() else [f"Images/{city}"]
    listed = any((root / name).is_file() for name in (positives, queries))
    return absent if listed else [*absent, f"{positives} or {queries}"]


def place_of(path: Path) -> str:
    """Return the place id within the city, the second field of the name."""
    fields = path.stem.split("_")
    if len(fields) < 8 or not fields[1].isdecimal():
        raise BadDataset(f"{path} is not named <City>_<place id>_<year>_<month>_<bearing>_<lat>_<lon>_<panorama>")
    return fields[1]


def _parted(
    images: tuple[Path, ...], names: list[str], folder: Path, file: Path
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Split images into database (not listed) and queries (listed)."""
    known, wanted = by_name(images, folder), set(names)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadDataset(f"{file}: {len(unknown):,} names are not in {folder} (first: {', '.join(unknown[:3])})")
    queries = tuple(path for path in images if path.name in wanted)
    database = tuple(path for path in images if path.name not in wanted)
    if not queries or not database:
        raise BadDataset(f"{file} names {len(queries):,} of {len(images):,} images as queries; both sets need an image")
    return database, queries


# --- layouts by name ---------------------------------------------------------------------------------------------

gsv_lists = LayoutFunctions(load_gsv_lists, missing_gsv_lists)
msls = LayoutFunctions(load_msls, missing_msls)
gsv_cities = LayoutFunctions(load_gsv_cities, missing_gsv_cities, TAKES_POSITIVES=True)
