"""SUES-200: drone images at four heights, one satellite image for each of 200 places.

    drone_view_512x512/<id>/<height>/*.jpg    heights 150, 200, 250, 300
    satellite-view/<id>/*
    indexs.yaml                               the authors' list of the 120 training ids

The gallery holds the satellite images of all ids, those of the training list too. Queries are drone images of the
other ids. Each height is a condition.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfa.core.reading import parse_json
from tfa_bench.datasets.files import BadDataset, DatasetFiles, images_in, same_labels
from tfa_bench.datasets.layouts.identity import labeled_images
from tfa_bench.datasets.text_tables import bad_line, lines_of, whole_number


def load(
    root: Path,
    *,
    heights: Sequence[int] = (150, 200, 250, 300),
    training: str = "indexs.yaml",
    drone: str = "drone_view_512x512",
    satellite: str = "satellite-view",
) -> DatasetFiles:
    """Drone to satellite at each of `heights`; `training` is a file of ids: YAML list, JSON list or plain text."""
    database, labels = labeled_images(root / satellite)
    trained = read_ids(root / training)
    known = {_number(label, root / satellite) for label in labels}
    if strangers := sorted(trained - known):
        raise BadDataset(f"{root / training} lists id {strangers[0]:04d}, which {root / satellite} does not hold")
    places = [place for place in _places(root / drone) if _number(place.name, root / drone) not in trained]
    if not places:
        raise BadDataset(f"{root / training} lists every id of {root / drone}; no query is left")
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
    """Ids of a JSON list, a YAML list (`index : ['0001', …]` or `- 0001`) or plain text, one or more in a line."""
    lines = lines_of(path)
    if path.suffix.lower() == ".json":
        fields = [(1, str(value)) for value in _json_list("\n".join(lines), path)]
    else:
        fields = []
        for line, text in enumerate(lines, 1):
            bare = re.sub(r"^\s*\w+\s*:|#.*$", "", text)  # the list's key, a comment
            bare = re.sub(r"^\s*-\s+|[\[\],'\"]", " ", bare)  # YAML's marks around an id
            fields.extend((line, field) for field in bare.split())
    for line, field in fields:
        if whole_number(field) is None:
            raise bad_line(path, line, f"{field[:80]!r} is not an id; ids are numbers such as 0001")
    if not fields:
        raise BadDataset(f"{path} lists no id; it must hold the training ids of the dataset's authors")
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
        raise BadDataset(f"{folder / name} is not the folder of an id; ids are numbers such as 0001")
    return number
