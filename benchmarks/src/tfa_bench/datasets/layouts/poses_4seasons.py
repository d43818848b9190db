"""4Seasons: a reference and a query recording of one route.

    reference/undistorted_images/cam0/<timestamp>.png    reference/GNSSPoses.txt    reference/Transformations.txt
    query/…                                              the same

GNSSPoses.txt has a pose for each keyframe: timestamp, tx, ty, tz, qx, qy, qz, qw, scale, …, in the recording's own
frame and scale. Two recordings meet on Earth: Transformations.txt takes each to Earth-centered meters. Which
recordings, threshold and thinning the paper used is not public; `radius` is ours.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from tfa.evaluate.positives import within
from tfa_bench.datasets.files import BadDataset, DatasetFiles, images_in
from tfa_bench.datasets.poses import apply, inverse, motion, rotation
from tfa_bench.datasets.text_tables import bad_line, lines_of, numbers, split_fields

_MOTIONS = ("transform_S_AS", "transform_w_gpsw", "transform_e_gpsw")
_SCALE = "GNSS scale"


def load(
    root: Path,
    *,
    reference: str = "reference",
    query: str = "query",
    camera: str = "cam0",
    radius: float = 25.0,
    aligned: bool = False,
) -> DatasetFiles:
    """Positives within `radius` meters in space. `aligned`: both files of poses are in one metric frame already."""
    database, centers, without = _recording(root / reference, camera, aligned)
    queries, query_centers, query_without = _recording(root / query, camera, aligned)
    notes = ["the recordings, the threshold and the thinning of the paper are not public"]
    for folder, count in ((reference, without), (query, query_without)):
        if count:
            notes.append(f"{folder}: {count} frames without a pose are left out")
    return DatasetFiles(database, queries, within(centers, query_centers, radius), notes=tuple(notes))


def _recording(folder: Path, camera: str, aligned: bool) -> tuple[tuple[Path, ...], np.ndarray, int]:
    """Frames with a pose, their camera centers `m 3`, and the number of frames without one."""
    frames = images_in(folder / "undistorted_images" / camera)
    poses = read_poses(folder / "GNSSPoses.txt")
    kept = [frame for frame in frames if frame.stem in poses]
    if not kept:
        raise BadDataset(f"{folder / 'GNSSPoses.txt'} has no timestamp of {frames[0].parent}; is it this recording's?")
    read = np.array([poses[frame.stem] for frame in kept])
    centers, scales = read[:, :3], read[:, 3]
    if not aligned:
        centers = on_earth(centers, scales, folder / "Transformations.txt")
    return tuple(kept), centers, len(frames) - len(kept)


def read_poses(path: Path) -> dict[str, tuple[float, float, float, float]]:
    """Timestamp → tx, ty, tz and scale (NaN if the line has none). Lines of NaN are frames that were not fused."""
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
    """Camera centers `m 3` in Earth-centered meters: e = T_e_gpsw T_w_gpsw⁻¹ (scale · T_S_AS c)."""
    motions, scale = read_transformations(path)
    scales = np.where(np.isnan(scales), math.nan if scale is None else scale, scales)
    if np.isnan(scales).any():
        raise BadDataset(f"neither the poses nor {path} ({_SCALE}) give a scale; without it they are not meters")
    to_world, world_from_gnss, earth_from_gnss = (motions[name] for name in _MOTIONS)
    world = scales[:, None] * apply(to_world, centers)
    return apply(earth_from_gnss, apply(inverse(world_from_gnss), world))


def read_transformations(path: Path) -> tuple[dict[str, np.ndarray], float | None]:
    """Motions by name and the scale. A comment line gives the name, the next line the numbers."""
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
            f"{path} lacks {', '.join(missing)}; without it the two recordings are in frames of their own "
            "(option aligned=true if your poses share one metric frame)"
        )
    return motions, scale
