"""Correct the path of a drive with its loops, for a drawing; a SLAM system has its own optimizer.

    minimize  Σ_i |Δ_i − Δ̂_i|² / σ_i²  +  Σ_loops s² log(1 + |e|² / s²) / σ²

    Δ_i   step and turn from node i to i + 1 in the frame of node i;   Δ̂_i: the same along the given path
    e     difference between the two positions of a pair, in meters

over poses (x, y, heading) by Gauss-Newton. The scale s of the Cauchy kernel starts at the largest e and is halved in
each step, so that right loops pull from afar and a wrong one ends without weight. Headings are those of travel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_NODES, _LOOPS = 300, 400  # at most; longer drives are sampled
_STEPS, _SMALL = 40, 0.01  # iterations at most; change of meters and radians that ends them
_STEP_SHARE, _STEP_METERS = 0.05, 0.02  # standard deviation of a step: a share of its length, and a constant
_TURN, _TURN_LEAST = 0.02, 1e-3  # standard deviation of a turn, in radians: per root of a meter, and at least


def close_path(points: np.ndarray, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the path (n, 2) in meters with both frames of most pairs at one place.

    Args:
        points: Path (n, 2) in meters.
        pairs: Frames that show the same place.
    """
    if len(points) < 3 or not pairs:
        return points
    nodes = np.unique(np.linspace(0, len(points) - 1, min(len(points), _NODES)).round().astype(int))
    steps = np.diff(points[nodes], axis=0)
    lengths = np.linalg.norm(steps, axis=1)
    moving = np.maximum.accumulate(np.where(lengths > 0, np.arange(len(steps)), 0))  # a robot that stands keeps its own
    headings = np.arctan2(*steps[moving].T[::-1])
    poses = np.column_stack([points[nodes], [*headings, headings[-1]]])
    near = np.abs(np.arange(len(points))[:, None] - nodes).argmin(axis=1)  # node of each frame
    offsets = _rotate(points - points[nodes][near], -poses[near, 2])
    chosen = np.array(pairs)[np.unique(np.linspace(0, len(pairs) - 1, min(len(pairs), _LOOPS)).astype(int))]
    measured = _find_steps(poses)
    weights = np.column_stack(
        [1 / (_STEP_SHARE * lengths + _STEP_METERS)] * 2 + [1 / (_TURN * lengths**0.5 + _TURN_LEAST)]
    )
    spacing = float(np.linalg.norm(np.diff(points, axis=0), axis=1).mean())
    accuracy = 0.5 + spacing  # standard deviation of a right loop
    scale = np.inf
    for _ in range(_STEPS):
        errors = np.subtract(*(_place(poses, near[ends], offsets[ends]) for ends in chosen.T))
        away = np.linalg.norm(errors, axis=1)
        scale = max(min(scale / 2, float(away.max())), accuracy)
        loops = 1 / (accuracy * np.sqrt(1 + (away / scale) ** 2))
        residuals = _find_steps(poses) - measured
        residuals[:, 2] = (residuals[:, 2] + np.pi) % (2 * np.pi) - np.pi
        rows = np.concatenate([_differentiate_steps(poses), _differentiate_loops(poses, near, offsets, chosen)])
        weight = np.concatenate([weights.ravel(), np.repeat(loops, 2)])
        weighted = rows[:, 3:] * weight[:, None]  # the first pose stays
        gradient = weighted.T @ (weight * np.concatenate([residuals.ravel(), errors.ravel()]))
        change = np.linalg.solve(weighted.T @ weighted, -gradient).reshape(-1, 3)
        poses[1:] += change
        if scale == accuracy and np.abs(change).max() < _SMALL:
            break
    return _place(poses, near, offsets)


def _rotate(vectors: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Turn vectors (n, 2) by angles (n,)."""
    cos, sin = np.cos(angles), np.sin(angles)
    return np.column_stack([cos * vectors[:, 0] - sin * vectors[:, 1], sin * vectors[:, 0] + cos * vectors[:, 1]])


def _place(poses: np.ndarray, nodes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the positions (n, 2) of frames at offsets from their nodes."""
    return poses[nodes, :2] + _rotate(offsets, poses[nodes, 2])


def _find_steps(poses: np.ndarray) -> np.ndarray:
    """Return steps and turns (k − 1, 3), each in the frame of its first pose."""
    differences = np.diff(poses, axis=0)
    return np.column_stack([_rotate(differences[:, :2], -poses[:-1, 2]), differences[:, 2]])


def _differentiate_steps(poses: np.ndarray) -> np.ndarray:
    """Return the derivatives (3 (k − 1), 3 k) of the steps."""
    count = len(poses)
    rows, first = np.zeros((count - 1, 3, count, 3)), np.arange(count - 1)
    cos, sin = np.cos(poses[:-1, 2]), np.sin(poses[:-1, 2])
    turned = _find_steps(poses)
    rows[first, 0, first + 1, 0] = rows[first, 1, first + 1, 1] = cos
    rows[first, 0, first + 1, 1], rows[first, 1, first + 1, 0] = sin, -sin
    rows[first, :2, first, :2] = -rows[first, :2, first + 1, :2]
    rows[first, 0, first, 2], rows[first, 1, first, 2] = turned[:, 1], -turned[:, 0]
    rows[first, 2, first + 1, 2], rows[first, 2, first, 2] = 1, -1
    return rows.reshape(3 * (count - 1), 3 * count)


def _differentiate_loops(poses: np.ndarray, near: np.ndarray, offsets: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return the derivatives (2 p, 3 k) of the differences between the positions of pairs."""
    rows, loop = np.zeros((len(pairs), 2, len(poses), 3)), np.arange(len(pairs))
    for ends, sign in zip(pairs.T, (1, -1), strict=True):
        nodes = near[ends]
        arms = _rotate(offsets[ends], poses[nodes, 2])
        for axis in range(2):
            rows[loop, axis, nodes, axis] += sign
        rows[loop, 0, nodes, 2] -= sign * arms[:, 1]
        rows[loop, 1, nodes, 2] += sign * arms[:, 0]
    return rows.reshape(2 * len(pairs), 3 * len(poses))
