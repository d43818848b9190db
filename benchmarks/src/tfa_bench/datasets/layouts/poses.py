"""Camera poses: rotations from quaternions, rigid motions, camera centres."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def rotation(w: float, x: float, y: float, z: float) -> np.ndarray:
    """The rotation `3 3` of a quaternion of any length but 0 (files round it, so it is never quite 1)."""
    length = float(np.sqrt(w * w + x * x + y * y + z * z))
    if length < 1e-6:
        raise ValueError("the quaternion is zero")
    w, x, y, z = w / length, x / length, y / length, z / length
    # R = I + 2 w [v]× + 2 [v]×², with v = (x, y, z)
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return np.eye(3) + 2 * w * cross + 2 * cross @ cross


def motion(turn: np.ndarray, shift: Sequence[float]) -> np.ndarray:
    """The rigid motion `4 4` that takes p to turn p + shift."""
    matrix = np.eye(4)
    matrix[:3, :3] = turn
    matrix[:3, 3] = shift
    return matrix


def inverse(moved: np.ndarray) -> np.ndarray:
    """The motion back: p to turnᵀ (p - shift)."""
    turn = moved[:3, :3].T
    return motion(turn, -turn @ moved[:3, 3])


def apply(moved: np.ndarray, points: np.ndarray) -> np.ndarray:
    """A motion of points `m 3`."""
    return points @ moved[:3, :3].T + moved[:3, 3]


def angles_between(turn: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Degrees between one rotation `3 3` and each of `m 3 3`: cos θ = (trace(AᵀB) - 1) / 2."""
    traces = np.einsum("ij,mij->m", turn, turns)
    cosines = ((traces - 1) / 2).clip(-1, 1)  # rounding in the file may leave the range of a cosine
    return np.degrees(np.arccos(cosines))
