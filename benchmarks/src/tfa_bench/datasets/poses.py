"""Camera poses: rotations, rigid motions, and camera centers from text files.

Files are NVM models, quaternions or matrices, recognized by their content:

NVM_V3 … name focal qw qx qy qz cx cy cz …    the center itself
name qw qx qy qz tx ty tz                     world to camera: c = -Rᵀ t
name m11 … m44                                camera to world, by rows: c is the fourth column
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np

from tfa.core.files import LINE_BYTES
from tfa_bench.datasets.files import BadDataset, bad_line, numbers, whole_number


def rotation(w: float, x: float, y: float, z: float) -> np.ndarray:
    """Return the rotation `(3, 3)` of a nonzero quaternion of any length (rounding in files changes it)."""
    length = float(np.sqrt(w * w + x * x + y * y + z * z))
    if length < 1e-6:
        raise ValueError("the quaternion is zero")
    w, x, y, z = w / length, x / length, y / length, z / length
    # R = I + 2 w [v]× + 2 [v]×², with v = (x, y, z)
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return np.eye(3) + 2 * w * cross + 2 * cross @ cross


def motion(turn: np.ndarray, shift: Sequence[float]) -> np.ndarray:
    """Return the rigid motion `(4, 4)` that maps p to turn p + shift."""
    matrix = np.eye(4)
    matrix[:3, :3] = turn
    matrix[:3, 3] = shift
    return matrix


def inverse(moved: np.ndarray) -> np.ndarray:
    """Return the inverse motion: p to turnᵀ (p - shift)."""
    turn = moved[:3, :3].T
    return motion(turn, -turn @ moved[:3, 3])


def apply(moved: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Apply a motion to points `(m, 3)`."""
    return points @ moved[:3, :3].T + moved[:3, 3]


def angles_between(turn: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Return degrees between one rotation `(3, 3)` and each of `(m, 3, 3)`: cos θ = (trace(AᵀB) - 1) / 2."""
    traces = np.einsum("ij,mij->m", turn, turns)
    cosines = ((traces - 1) / 2).clip(-1, 1)  # rounding in the file may exceed the range of a cosine
    return np.degrees(np.arccos(cosines))


def read_centers(path: Path) -> dict[str, np.ndarray]:
    """Read each image name, as written in the file, and its camera center `(3,)`."""
    if not path.is_file():
        raise BadDataset(f"{path} is missing; it must hold the image poses")
    with path.open(encoding="utf-8", errors="replace") as stream:  # read only as far as needed: models hold gigabytes
        lines = ((number, text.split()) for number, text in _lines(stream, path))
        filled = ((number, fields) for number, fields in lines if fields and not fields[0].startswith("#"))
        first = next(filled, None)
        if first is None:
            raise BadDataset(f"{path} has no poses")
        if first[1][0].startswith("NVM_V3"):
            return _nvm(filled, path)
        return dict(_poses([first], path)) | dict(_poses(filled, path))


def _lines(stream: TextIO, path: Path) -> Iterator[tuple[int, str]]:
    """Yield numbered lines of bounded length."""
    for number in itertools.count(1):
        text = stream.readline(LINE_BYTES + 1)
        if not text:
            return
        if len(text) > LINE_BYTES:
            raise bad_line(path, number, f"longer than {LINE_BYTES:,} characters; this is not a pose file")
        yield number, text


def _nvm(lines: Iterator[tuple[int, list[str]]], path: Path) -> dict[str, np.ndarray]:
    """Read the images of an NVM model: a line with their number, then one line each. Points follow and are not read."""
    line, fields = next(lines, (1, []))
    images = whole_number(fields[0]) if len(fields) == 1 else None
    if images is None:
        raise bad_line(path, line, f"{' '.join(fields)[:80]!r} is not an NVM model's number of images")
    centers: dict[str, np.ndarray] = {}
    for _ in range(images):
        line, (name, *values) = next(lines, (line, ["the end of the file"]))
        # focal length, quaternion, center; radial distortion and 0 follow
        centers[name] = np.array(numbers(values[:8], 8, path, line, "an image of an NVM model")[5:])
    return centers


def _poses(lines: Iterable[tuple[int, list[str]]], path: Path) -> Iterator[tuple[str, np.ndarray]]:
    for line, (name, *fields) in lines:
        if not fields:  # test lists name images whose poses are withheld
            continue
        if len(fields) == 16:
            yield name, np.array(numbers(fields, 16, path, line, "a pose")).reshape(4, 4)[:3, 3]
            continue
        w, x, y, z, *shift = numbers(fields, 7, path, line, "a pose: name qw qx qy qz tx ty tz")
        try:
            yield name, -rotation(w, x, y, z).T @ np.array(shift)
        except ValueError as error:
            raise bad_line(path, line, str(error)) from error
