"""Recordings of drives with poses: 4Seasons and RobotCar Seasons.

`poses_4seasons`: a reference and a query recording of one route.

    reference/undistorted_images/cam0/<timestamp>.png   reference/GNSSPoses.txt   reference/Transformations.txt
    query/…                                             the same

GNSSPoses.txt has a pose per keyframe: timestamp, tx, ty, tz, qx, qy, qz, qw, scale, …, in the recording's frame and
scale. Transformations.txt maps each recording to Earth-centered meters. The paper's recordings, threshold and thinning
are not public; `radius` is our choice.

`robotcar`: one reference condition, nine query conditions, three cameras.

    images/<condition>/<camera>/<timestamp>.jpg
    3D-models/all-merged/all.nvm   poses of the reference images
    robotcar_v2_train.txt          poses of some queries; the others are withheld
    positives.json                 instead of poses: {"1.jpg": ["2.jpg", …]}, names or paths below this folder

Queries without a pose (or an entry in positives.json) are left out. The paper's queries and threshold are not public;
`radius` is our choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from tfa.evaluate.positives import within
from tfa_bench.datasets.files import (
    BadDataset,
    DatasetFiles,
    LayoutFunctions,
    bad_line,
    by_name,
    images_in,
    lines_of,
    listed_positives,
    numbers,
    read_positives,
    split_fields,
)
from tfa_bench.datasets.poses import apply, inverse, motion, read_centers, rotation

# --- poses_4seasons ------------------------------------------------------------------------------------------------


_MOTIONS = ("transform_S_AS", "transform_w_gpsw", "transform_e_gpsw")
_SCALE = "GNSS scale"


def load_poses_4seasons(
    root: Path,
    *,
    reference: str = "reference",
    query: str = "query",
    camera: str = "cam0",
    radius: float = 25.0,
    aligned: bool = False,
) -> DatasetFiles:
    """Load positives within `radius` meters in space. `aligned`: both pose files already share one metric frame."""
    database, centers, without = _recording(root / reference, camera, aligned)
    queries, query_centers, query_without = _recording(root / query, camera, aligned)
    notes = ["the paper's recordings, threshold and thinning are not public"]
    for folder, count in ((reference, without), (query, query_without)):
        if count:
            notes.append(f"{folder}: {count} frames without a pose are left out")
    return DatasetFiles(database, queries, within(centers, query_centers, radius), notes=tuple(notes))


def _recording(folder: Path, camera: str, aligned: bool) -> tuple[tuple[Path, ...], np.ndarray, int]:
    """Return frames with a pose, their camera centers `(m, 3)`, and the number of frames without one."""
    frames = images_in(folder / "undistorted_images" / camera)
    poses = read_poses(folder / "GNSSPoses.txt")
    kept = [frame for frame in frames if frame.stem in poses]
    if not kept:
        raise BadDataset(f"{folder / 'GNSSPoses.txt'} has no timestamp of {frames[0].parent}; check the recording")
    read = np.array([poses[frame.stem] for frame in kept])
    centers, scales = read[:, :3], read[:, 3]
    if not aligned:
        centers = on_earth(centers, scales, folder / "Transformations.txt")
    return tuple(kept), centers, len(frames) - len(kept)


def read_poses(path: Path) -> dict[str, tuple[float, float, float, float]]:
    """Map timestamps to tx, ty, tz and scale (NaN if missing). Lines of NaN are frames that were not fused."""
    poses = {}
    for line, text in enumerate(lines_of(path), 1):
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        fields = split_fields(text)
        if len(fields) < 8 or not fields[0].isdecimal():
            raise bad_line(path, line, f"{text[:80]!r} is not a pose: timestamp, tx, ty, tz, qx, qy, qz, qw, scale")
        if any(field.lower().lstrip("+-") == "nan" for field in fields[1:8]):
            continue
        x, y, z = numbers(fields[1:8], 7, path, line, "a pose")[:3]
        scale = numbers(fields[8:9], 1, path, line, "a scale")[0] if len(fields) > 8 else math.nan
        poses[fields[0]] = (x, y, z, scale)
    return poses


def on_earth(centers: np.ndarray, scales: np.ndarray, path: Path) -> np.ndarray:
    """Return camera centers `(m, 3)` in Earth-centered meters: e = T_e_gpsw T_w_gpsw⁻¹ (scale · T_S_AS c)."""
    motions, scale = read_transformations(path)
    scales = np.where(np.isnan(scales), math.nan if scale is None else scale, scales)
    if np.isnan(scales).any():
        raise BadDataset(f"neither the poses nor {path} ({_SCALE}) give a scale, which meters need")
    to_world, world_from_gnss, earth_from_gnss = (motions[name] for name in _MOTIONS)
    world = scales[:, None] * apply(to_world, centers)
    return apply(earth_from_gnss, apply(inverse(world_from_gnss), world))


def read_transformations(path: Path) -> tuple[dict[str, np.ndarray], float | None]:
    """Return motions by name and the scale. A comment line has the name, the next line the numbers."""
    motions: dict[str, np.ndarray] = {}
    scale, title = None, ""
    for line, text in enumerate(lines_of(path), 1):
        if text.lstrip().startswith("#"):
            title = text.lstrip("# \t").split(":")[0].strip()
        elif title in _MOTIONS and text.strip():
            x, y, z, qx, qy, qz, qw = numbers(split_fields(text), 7, path, line, f"{title}: translation, quaternion")
            try:
                motions[title] = motion(rotation(qw, qx, qy, qz), (x, y, z))
            except ValueError as error:
                raise bad_line(path, line, f"{title}: {error}") from error
        elif title == _SCALE and text.strip():
            scale = numbers(split_fields(text), 1, path, line, "a scale")[0]
    if missing := [name for name in _MOTIONS if name not in motions]:
        raise BadDataset(
            f"{path} lacks {', '.join(missing)}; without it the recordings have no common frame "
            "(set the option aligned=true if your poses share one metric frame)"
        )
    return motions, scale


# --- robotcar ------------------------------------------------------------------------------------------------------


_REFERENCE = "overcast-reference"
CONDITIONS = ("dawn", "dusk", "night", "night-rain", "overcast-summer", "overcast-winter", "rain", "snow", "sun")


def load_robotcar(
    root: Path,
    *,
    camera: str = "rear",
    conditions: Sequence[str] = CONDITIONS,
    poses: Sequence[str] = ("3D-models/all-merged/all.nvm", "robotcar_v2_train.txt"),
    positives: str = "positives.json",
    radius: float = 25.0,
) -> DatasetFiles:
    """Load the images of one camera, with `positives` if that file exists, otherwise with the files of `poses`."""
    images = root / "images"
    database = images_in(images / _REFERENCE / camera)
    queries = {name: images_in(images / name / camera) for name in conditions}
    everything = [query for own in queries.values() for query in own]
    notes = ["the paper's queries and threshold are not public"]
    if (root / positives).is_file():
        answers = _listed(root / positives, root, database, everything)
        notes.append(f"positives are from {positives} instead of poses")
    else:
        database, answers = _by_pose([root / name for name in poses], database, everything, radius, notes)
    evaluated = [query for query in everything if query in answers]
    if not evaluated:
        raise BadDataset(f"{images}: no query has a pose or an entry in {positives} (pose files: {poses})")
    if len(evaluated) < len(everything):
        notes.append(f"{len(everything) - len(evaluated)} queries without a pose or positives are left out")
    rows_of = _conditions(queries, evaluated)
    if missing := [name for name in conditions if name not in rows_of]:
        notes.append(f"no queries left for {', '.join(missing)}: the mean over conditions does not include all nine")
    return DatasetFiles(database, tuple(evaluated), tuple(answers[query] for query in evaluated), rows_of, tuple(notes))


def _conditions(queries: Mapping[str, Sequence[Path]], evaluated: Sequence[Path]) -> dict[str, np.ndarray]:
    place = {query: index for index, query in enumerate(evaluated)}
    rows_of = {name: np.array([place[query] for query in own if query in place], int) for name, own in queries.items()}
    return {name: own for name, own in rows_of.items() if own.size}


def _by_pose(
    files: Sequence[Path], database: tuple[Path, ...], queries: Sequence[Path], radius: float, notes: list[str]
) -> tuple[tuple[Path, ...], dict[Path, np.ndarray]]:
    """Return the database images with a pose and the positives of queries with a pose."""
    centers: dict[str, np.ndarray] = {}
    for file in files:
        centers.update((_key(PurePosixPath(name)), center) for name, center in read_centers(file).items())
    evaluated = tuple(image for image in database if _key(image) in centers)
    if not evaluated:
        raise BadDataset(f"{', '.join(map(str, files))} name no images of {database[0].parent}")
    if len(evaluated) < len(database):
        notes.append(f"{len(database) - len(evaluated)} reference images without a pose are left out")
    posed = [query for query in queries if _key(query) in centers]
    query_centers = np.array([centers[_key(query)] for query in posed]).reshape(-1, 3)
    close = within(np.array([centers[_key(image)] for image in evaluated]), query_centers, radius)
    return evaluated, dict(zip(posed, close, strict=True))


def _key(name: Path | PurePosixPath) -> str:
    """Return camera and timestamp: models write .png for .jpg, and some lists omit the condition."""
    return f"{name.parent.name}/{name.stem}"


def _listed(file: Path, root: Path, database: Sequence[Path], queries: Sequence[Path]) -> dict[Path, np.ndarray]:
    """Return the positives of the queries that a file lists."""
    rows = listed_positives(file, by_name(database, root), by_name(queries, root), len(queries))
    named = read_positives(file)
    paired = zip(queries, rows, strict=True)
    return {query: row for query, row in paired if query.name in named or query.relative_to(root).as_posix() in named}


# --- layouts by name ---------------------------------------------------------------------------------------------

poses_4seasons = LayoutFunctions(load_poses_4seasons)
robotcar = LayoutFunctions(load_robotcar, TAKES_POSITIVES=True)
