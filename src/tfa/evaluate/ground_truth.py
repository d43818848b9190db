"""Read the ground truth of queries: which map images show the place of each.

positions.csv     file,lat,lon or file,x,y of the queries; map images within a radius are right
positives.json    {"query.jpg": ["map image.jpg", …], …}
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfa.core.files import hash_file
from tfa.errors import BadSpec
from tfa.evaluate.positives import (
    DEFAULT_RADIUS,
    BadEvaluation,
    measure_lengths,
    position_kinds,
    read_positives,
    to_points,
    within,
)
from tfa.photos.positions import PhotoNames, match_positions, to_degrees, to_meters
from tfa.types import ImageRecord, Position

_POSITIONS, _POSITIVES = ".csv", ".json"
_KINDS = {True: "on the globe (lat, lon)", False: "in a plane (x, y)"}


@dataclass(frozen=True)
class GroundTruth:
    """The rows of each photo's positives among the map images; None without a label."""

    rule: str
    fingerprint: str  # of file and radius; evaluations can be compared only if it is equal
    right: tuple[np.ndarray | None, ...]
    positions: tuple[Position | None, ...]
    notes: tuple[str, ...] = ()
    skip_unanswerable: bool = False  # leave out photos without positives

    @property
    def labeled(self) -> list[int]:
        """Numbers of the labeled photos."""
        return [number for number, rows in enumerate(self.right) if rows is not None]


def check_ground_truth(file: Path, radius: float | None) -> None:
    """Reject an unknown kind of file and an invalid radius, before any photo is read."""
    if file.suffix.lower() not in (_POSITIONS, _POSITIVES):
        raise BadEvaluation(
            f"{file} must end in .csv (file,lat,lon or file,x,y of the queries) or in .json "
            '({"query.jpg": ["map image.jpg", …]})',
            file,
        )
    if not file.is_file():
        raise BadEvaluation(f"{file} does not exist; pass positions (.csv) or positives (.json) of the queries", file)
    if radius is not None and file.suffix.lower() == _POSITIVES:
        raise BadSpec(f"--radius is for positions (.csv), but {file} lists positives; remove --radius", file)
    if radius is not None and not (math.isfinite(radius) and radius > 0):
        raise BadSpec(f"--radius {radius:g} is out of range: must be meters above 0")


def read_ground_truth(
    file: Path,
    queries: Sequence[Path],
    root: Path | None,
    images: Sequence[ImageRecord],
    radius: float | None = None,
    utm: str | None = None,
) -> GroundTruth:
    """Read the positives of `queries`, named in the file relative to `root` or by an ending of their path.

    If x and y of one side are in the UTM zone `utm`, positions are converted to the kind of the map.
    """
    check_ground_truth(file, radius)
    if file.suffix.lower() == _POSITIVES:
        return _by_positives(file, queries, images)
    radius = DEFAULT_RADIUS if radius is None else radius
    listed, notes = match_positions(queries, root, file)
    of_map = [image.position for image in images]
    placed = [row for row, position in enumerate(of_map) if position is not None]
    if not placed:
        raise BadEvaluation(
            f"none of the {len(images):,} map images has a position to compare with {file}; build the map with "
            "--positions, or pass positives (.json)",
            file,
        )
    if len(placed) < len(images):
        bare = len(images) - len(placed)
        notes = [*notes, f"{bare:,} of {len(images):,} map images have no position and are never right"]
    where = [listed.get(number) for number in range(len(queries))]
    if utm is not None:
        where = (to_degrees if True in position_kinds(of_map) else to_meters)(where, utm)
    if len(position_kinds([*of_map, *where])) > 1:
        raise BadEvaluation(
            f"positions of the map are {_kinds(of_map)}, but in {file} {_kinds(where)}; use one kind, or pass the zone "
            "of UTM coordinates, such as --utm 33N",
            file,
        )
    known = [number for number, position in enumerate(where) if position is not None]
    points = to_points([*(of_map[row] for row in placed), *(where[number] for number in known)])
    rows = np.array(placed, np.int64)
    near = within(points[: len(placed)], points[len(placed) :], radius)
    right: list[np.ndarray | None] = [None] * len(queries)
    for number, own in zip(known, near, strict=True):
        right[number] = rows[own]
    return GroundTruth(
        f"at most {radius:g} m away", f"{hash_file(file)}-{radius:g}", tuple(right), tuple(where), tuple(notes)
    )


def _kinds(positions: Sequence[Position | None]) -> str:
    return " and ".join(_KINDS[kind] for kind in sorted(position_kinds(positions)))


def _by_positives(file: Path, queries: Sequence[Path], images: Sequence[ImageRecord]) -> GroundTruth:
    photos, kept = PhotoNames(queries), PhotoNames([Path(image.path) for image in images])
    right: list[np.ndarray | None] = [None] * len(queries)
    unknown: list[str] = []
    strange: list[str] = []
    named: dict[int, str] = {}
    for name, names in read_positives(file).items():
        own = _find_one(photos, name, file, "queries")
        if own is None:
            unknown.append(name)
            continue
        if own in named:
            raise BadEvaluation(f"{file}: {named[own]!r} and {name!r} name the same query; keep one", file)
        named[own] = name
        rows = {one: _find_one(kept, one, file, "map images") for one in names}
        strange += [one for one, row in rows.items() if row is None]
        right[own] = np.unique(np.array([row for row in rows.values() if row is not None], np.int64))
    if not named:
        first = f"its first is {unknown[0]!r}" if unknown else "it is empty"
        raise BadEvaluation(
            f"{file} names none of the {len(queries):,} queries ({first}; the first query is {queries[0]})", file
        )
    if strange and not any(rows is not None and len(rows) for rows in right):
        raise BadEvaluation(
            f"{file} names no map image (its first is {strange[0]!r}; the first map image is {images[0].path})", file
        )
    missing = ((unknown, "photos that are not queries"), (sorted(set(strange)), "images that are not in the map"))
    notes = [f"{file.name} names {len(names):,} {what} (first: {names[0]})" for names, what in missing if names]
    return GroundTruth(f"as listed in {file.name}", hash_file(file), tuple(right), (None,) * len(queries), tuple(notes))


def _find_one(photos: PhotoNames, name: str, file: Path, what: str) -> int | None:
    """Return the number of the photo with that name; None without one, an error if there are several."""
    found = photos.find(name)
    if len(found) > 1:
        raise BadEvaluation(
            f"{file}: {len(found)} {what} are named {name!r}; write more of their paths, such as "
            f"{'/'.join(photos.parts[found[0]][-2:])!r}",
            file,
        )
    return found[0] if found else None


def find_nearest_true(truth: GroundTruth, images: Sequence[ImageRecord]) -> list[str | None]:
    """Return a positive of each photo: the nearest, or the middle one of a list; None without positives."""
    of_map = [image.position for image in images]
    comparable = len(position_kinds([*of_map, *truth.positions])) == 1
    points = to_points(of_map) if comparable else None
    places = to_points(truth.positions) if comparable else None
    found: list[str | None] = [None] * len(truth.right)
    for number, rows in enumerate(truth.right):
        if rows is None or not len(rows):
            continue
        best = len(rows) // 2
        if points is not None and places is not None and truth.positions[number] is not None:
            away = measure_lengths(points[rows], places[number][None])
            best = int(np.argmin([math.inf if one is None else one for one in away]))
        found[number] = images[int(rows[best])].path
    return found
