"""RobotCar Seasons: one reference condition, nine query conditions, three cameras.

    images/<condition>/<camera>/<timestamp>.jpg
    3D-models/all-merged/all.nvm      poses of the reference images
    robotcar_v2_train.txt             poses of some queries; those of the others are withheld
    positives.json                    instead of poses: {"1.jpg": ["2.jpg", …]}: names, or paths below this folder

Queries without a pose (or without an entry in positives.json) are left out. Which queries and which threshold the
paper used is not public; `radius` is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from tfa.evaluate.positives import within
from tfa_bench.datasets.files import BadDataset, DatasetFiles, by_name, images_in, listed_positives, read_positives
from tfa_bench.datasets.poses import read_centers

_REFERENCE = "overcast-reference"
CONDITIONS = (
    "dawn",
    "dusk",
    "night",
    "night-rain",
    "overcast-summer",
    "overcast-winter",
    "rain",
    "snow",
    "sun",
)
TAKES_POSITIVES = True


def load(
    root: Path,
    *,
    camera: str = "rear",
    conditions: Sequence[str] = CONDITIONS,
    poses: Sequence[str] = ("3D-models/all-merged/all.nvm", "robotcar_v2_train.txt"),
    positives: str = "positives.json",
    radius: float = 25.0,
) -> DatasetFiles:
    """Images of one camera. `positives` is used if it exists, otherwise the files of `poses`."""
    images = root / "images"
    database = images_in(images / _REFERENCE / camera)
    queries = {name: images_in(images / name / camera) for name in conditions}
    everything = [query for own in queries.values() for query in own]
    notes = ["the queries and the threshold of the paper are not public"]
    if (root / positives).is_file():
        answers = _listed(root / positives, root, database, everything)
        notes.append(f"positives are those of {positives}, not of poses")
    else:
        database, answers = _by_pose([root / name for name in poses], database, everything, radius, notes)
    evaluated = [query for query in everything if query in answers]
    if not evaluated:
        raise BadDataset(f"{images}: no query has a pose or an entry in {positives}; poses were sought in {poses}")
    if len(evaluated) < len(everything):
        notes.append(f"{len(everything) - len(evaluated)} queries without a pose or positives are left out")
    rows_of = _conditions(queries, evaluated)
    if missing := [name for name in conditions if name not in rows_of]:
        notes.append(f"no query is left of {', '.join(missing)}: a mean over conditions is not that of all nine")
    return DatasetFiles(database, tuple(evaluated), tuple(answers[query] for query in evaluated), rows_of, tuple(notes))


def _conditions(queries: Mapping[str, Sequence[Path]], evaluated: Sequence[Path]) -> dict[str, np.ndarray]:
    place = {query: index for index, query in enumerate(evaluated)}
    rows_of = {name: np.array([place[query] for query in own if query in place], int) for name, own in queries.items()}
    return {name: own for name, own in rows_of.items() if own.size}


def _by_pose(
    files: Sequence[Path], database: tuple[Path, ...], queries: Sequence[Path], radius: float, notes: list[str]
) -> tuple[tuple[Path, ...], dict[Path, np.ndarray]]:
    """The database images with a pose, and the positives of the queries with one."""
    centers: dict[str, np.ndarray] = {}
    for file in files:
        centers.update((_key(PurePosixPath(name)), center) for name, center in read_centers(file).items())
    evaluated = tuple(image for image in database if _key(image) in centers)
    if not evaluated:
        raise BadDataset(f"{', '.join(map(str, files))} name no image of {database[0].parent}")
    if len(evaluated) < len(database):
        notes.append(f"{len(database) - len(evaluated)} reference images without a pose are left out")
    posed = [query for query in queries if _key(query) in centers]
    query_centers = np.array([centers[_key(query)] for query in posed]).reshape(-1, 3)
    close = within(np.array([centers[_key(image)] for image in evaluated]), query_centers, radius)
    return evaluated, dict(zip(posed, close, strict=True))


def _key(name: Path | PurePosixPath) -> str:
    """Camera and timestamp: models write .png for .jpg, and some lists leave the condition out."""
    return f"{name.parent.name}/{name.stem}"


def _listed(file: Path, root: Path, database: Sequence[Path], queries: Sequence[Path]) -> dict[Path, np.ndarray]:
    """Positives of the queries that a file lists."""
    rows = listed_positives(file, by_name(database, root), by_name(queries, root), len(queries))
    named = read_positives(file)
    paired = zip(queries, rows, strict=True)
    return {query: row for query, row in paired if query.name in named or query.relative_to(root).as_posix() in named}
