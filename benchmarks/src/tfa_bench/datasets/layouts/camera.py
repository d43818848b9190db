"""Baidu-Mall as AnyLoc packages it: images and one `.camera` file for each.

    training_images_undistort/<name>.jpg   training_gt/<name>.camera     database
    query_images_undistort/<name>.jpg      query_gt/<name>.camera        queries

A `.camera` file has its camera center (meters) in the last line but one and its rotation in lines 5 to 7.
Positives lie within a radius in space, 10 m by default, whatever way the camera looks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tfa.evaluate.positives import within
from tfa_bench.datasets.files import BadDataset, DatasetFiles, images_in
from tfa_bench.datasets.poses import angles_between
from tfa_bench.datasets.text_tables import bad_line, lines_of, numbers, split_fields

_LINES = 9  # intrinsics (3), distortion, rotation (3), center, size of the image


def load(root: Path, *, radius: float = 10.0, max_angle: float | None = None) -> DatasetFiles:
    """Positives by distance; `max_angle` (degrees between the two rotations) narrows them. Off by default."""
    turned = max_angle is not None
    database = images_in(root / "training_images_undistort")
    queries = images_in(root / "query_images_undistort")
    centers, turns = _poses(database, root / "training_gt", turned)
    query_centers, query_turns = _poses(queries, root / "query_gt", turned)
    positives = within(centers, query_centers, radius)
    notes: tuple[str, ...] = ()
    if max_angle is not None:
        positives = tuple(
            close[angles_between(turn, turns[close]) <= max_angle]
            for close, turn in zip(positives, query_turns, strict=True)
        )
        notes = (f"positives look at most {max_angle:g} degrees apart, by the angle of the rotation between them",)
    return DatasetFiles(database, queries, positives, notes=notes)


def _poses(images: tuple[Path, ...], folder: Path, turned: bool) -> tuple[np.ndarray, np.ndarray]:
    """Camera centers `m 3` of images and, if wanted, their rotations `m 3 3`."""
    read = [_pose(folder / f"{image.stem}.camera", turned) for image in images]
    return np.array([center for center, _ in read]), np.array([turn for _, turn in read])


def _pose(path: Path, turned: bool) -> tuple[list[float], list[list[float]]]:
    lines = lines_of(path)
    if len(lines) < _LINES:
        raise BadDataset(f"{path} has {len(lines)} lines; a camera file has {_LINES}")
    center = numbers(split_fields(lines[-2]), 3, path, len(lines) - 1, "a camera center")
    if not turned:
        return center, []
    turn = [numbers(split_fields(lines[row]), 3, path, row + 1, "a row of a rotation") for row in (4, 5, 6)]
    if not np.allclose(np.array(turn) @ np.array(turn).T, np.eye(3), atol=1e-2):  # files round to a few digits
        raise bad_line(path, 5, "lines 5 to 7 are not a rotation")
    return center, turn
