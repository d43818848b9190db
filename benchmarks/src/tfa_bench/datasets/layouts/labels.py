"""Folders in which class or file names say which images show the same place.

`identity`: `<folder>/<class>/*.jpg`; an image of the query's class is a positive.

    test/query_drone/0001/image-01.jpeg     University-1652
    test/gallery_satellite/0001/0001.jpg
    test/query_drone/000001/H80.JPG         DenseUAV
    test/gallery_satellite/000001/H80.tif

Gallery classes without queries are distractors. They are kept, as in the datasets' baselines.

`pairs`: pairs of images with the same name in two folders, as in AmsterTime.

    new/<name>.png   database
    old/<name>.jpg   queries

A query's positive is the database image with its name; the extensions may differ.

`sues`: SUES-200, drone images at four heights and one satellite image for each of 200 places.

    drone_view_512x512/<id>/<height>/*.jpg   heights 150, 200, 250, 300
    satellite-view/<id>/*
    indexs.yaml                              the authors' list of the 120 training ids

The gallery holds the satellite images of all ids, including the training list. Queries are drone images of the other
ids. Each height is a condition.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfa.core.files import parse_json
from tfa_bench.datasets.files import (
    BadDataset,
    DatasetFiles,
    LayoutFunctions,
    bad_line,
    images_in,
    lines_of,
    same_labels,
    whole_number,
)

# --- identity ------------------------------------------------------------------------------------------------------


def load_identity(
    root: Path, *, query: str = "test/query_drone", gallery: str = "test/gallery_satellite", distractors: bool = True
) -> DatasetFiles:
    """Load queries and gallery with their classes. `distractors=False` drops gallery classes without a query."""
    queries, query_classes = labeled_images(root / query)
    database, classes = labeled_images(root / gallery)
    notes: tuple[str, ...] = ()
    if not distractors:
        wanted = set(query_classes)
        kept = [index for index, label in enumerate(classes) if label in wanted]
        if not kept:
            raise BadDataset(f"{root / gallery} and {root / query} have no class in common; use the same split")
        dropped = len(classes) - len(kept)
        notes = (
            f"{dropped} gallery images of {len(set(classes) - wanted)} classes without a query are left out, as in "
            "Sample4Geo's evaluator; the dataset's baseline keeps them",
        )
        database = tuple(database[index] for index in kept)
        classes = tuple(classes[index] for index in kept)
    return DatasetFiles(database, queries, same_labels(classes, query_classes), notes=notes)


def labeled_images(folder: Path) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """List images in class folders sorted by path, and the class of each."""
    images = images_in(folder, deep=True)
    loose = [image for image in images if image.parent == folder]
    if loose:
        raise BadDataset(f"{loose[0]} is not in a class folder; expected {folder.name}/<class>/<image>")
    return images, tuple(image.relative_to(folder).parts[0] for image in images)


# --- pairs ---------------------------------------------------------------------------------------------------------


def load_pairs(root: Path, *, database: str = "new", queries: str = "old") -> DatasetFiles:
    known, query_images = images_in(root / database), images_in(root / queries)
    stems = [path.stem for path in known], [path.stem for path in query_images]
    for folder, names in ((database, stems[0]), (queries, stems[1])):
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise BadDataset(f"{root / folder} holds {twice} with two extensions; keep one of them")
    alone = sorted(set(stems[1]) - set(stems[0]))
    if alone:
        raise BadDataset(
            f"{len(alone):,} images of {root / queries} have no image of the same name in {root / database} "
            f"(first: {', '.join(alone[:3])})"
        )
    return DatasetFiles(known, query_images, same_labels(*stems))


def missing_pairs(root: Path, *, database: str = "new", queries: str = "old") -> list[str]:
    """List missing folders."""
    return [name for name in (database, queries) if not (root / name).is_dir()]


# --- sues ----------------------------------------------------------------------------------------------------------


def load_sues(
    root: Path,
    *,
    heights: Sequence[int] = (150, 200, 250, 300),
    training: str = "indexs.yaml",
    drone: str = "drone_view_512x512",
    satellite: str = "satellite-view",
) -> DatasetFiles:
    """Load drone to satellite at each of `heights`; `training` is a file of ids: YAML list, JSON list or plain text."""
    database, labels = labeled_images(root / satellite)
    trained = read_ids(root / training)
    known = {_number(label, root / satellite) for label in labels}
    if strangers := sorted(trained - known):
        raise BadDataset(f"{root / training} lists id {strangers[0]:04d}, which {root / satellite} does not hold")
    places = [place for place in _places(root / drone) if _number(place.name, root / drone) not in trained]
    if not places:
        raise BadDataset(f"{root / training} lists every id of {root / drone}; no queries are left")
    queries: list[Path] = []
    flown: list[int] = []
    for place in places:
        for height in heights:
            images = images_in(place / str(height))
            queries.extend(images)
            flown.extend([height] * len(images))
    query_labels = [image.parent.parent.name for image in queries]
    conditions = {str(height): np.flatnonzero(np.array(flown) == height) for height in heights}
    notes = (f"queries of {len(places)} ids; the gallery keeps the {len(trained)} training ids as distractors",)
    return DatasetFiles(database, tuple(queries), same_labels(labels, query_labels), conditions, notes)


def read_ids(path: Path) -> frozenset[int]:
    """Read ids from a JSON list, a YAML list (`index : ['0001', …]` or `- 0001`) or plain text."""
    lines = lines_of(path)
    if path.suffix.lower() == ".json":
        fields = [(1, str(value)) for value in _json_list("\n".join(lines), path)]
    else:
        fields = []
        for line, text in enumerate(lines, 1):
            bare = re.sub(r"^\s*\w+\s*:|#.*$", "", text)  # the list's key, or a comment
            bare = re.sub(r"^\s*-\s+|[\[\],'\"]", " ", bare)  # YAML marks around an id
            fields.extend((line, field) for field in bare.split())
    for line, field in fields:
        if whole_number(field) is None:
            raise bad_line(path, line, f"{field[:80]!r} is not an id; ids are numbers such as 0001")
    if not fields:
        raise BadDataset(f"{path} lists no ids; it must hold the authors' training ids")
    return frozenset(int(field) for _, field in fields)


def _json_list(text: str, path: Path) -> list[object]:
    try:
        values = parse_json(text)
    except ValueError as error:
        raise BadDataset(f"{path} is not JSON: {error}; a list of ids is expected") from None
    if not isinstance(values, list) or not all(isinstance(value, str | int) for value in values):
        raise BadDataset(f"{path} holds a {type(values).__name__}; a list of ids is expected")
    return values


def _places(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise BadDataset(f"{folder} is missing; this layout needs it")
    return sorted(place for place in folder.iterdir() if place.is_dir())


def _number(name: str, folder: Path) -> int:
    number = whole_number(name)
    if number is None:
        raise BadDataset(f"{folder / name} is not named by an id; ids are numbers such as 0001")
    return number


# --- layouts by name ---------------------------------------------------------------------------------------------

identity = LayoutFunctions(load_identity)
pairs = LayoutFunctions(load_pairs, missing_pairs)
sues = LayoutFunctions(load_sues)
