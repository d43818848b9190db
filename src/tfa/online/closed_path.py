"""Correct the path of a drive with its loops, for a drawing; a SLAM system has its own optimizer.

    p_n = p_0 + Σ_{k<n} d_k exp(a_k + i Σ_{l≤k} b_l)      d: steps as complex numbers,  a: log scale,  b: turn of a step
    minimize  Σ_k (a_k² / σ_a² + b_k² / σ_b²) + Σ_pairs s² log(1 + |p_q − p_m|² / s²) / σ²

by Gauss-Newton. The scale s of the Cauchy kernel starts at the largest distance of a pair and is halved in each
iteration, so that right pairs pull from afar and a wrong one ends without weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_NODES, _PAIRS = 300, 400  # at most; longer drives are sampled
_ITERATIONS, _SMALL = 40, 1e-4  # at most; change of scales and turns that ends them
_SCALE = 0.05  # standard deviation of the scale of a step
_TURN, _TURN_LEAST = 0.02, 1e-3  # standard deviation of a turn, in radians: per root of a meter, and at least


def close_path(points: np.ndarray, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the path (n, 2) in meters with both frames of most pairs at one place.

    Args:
        points: Path (n, 2) in meters.
        pairs: Frames that show the same place, the later one first.
    """
    if len(points) < 3 or not pairs:
        return points
    z = points @ np.array([1, 1j])
    nodes = np.linspace(0, len(z) - 1, min(len(z), _NODES)).round().astype(int)
    segments = np.minimum(np.searchsorted(nodes, np.arange(len(z)), "right") - 1, len(nodes) - 2)
    steps, offsets = np.diff(z[nodes]), z - z[nodes[segments]]
    chosen = np.array(pairs)[np.linspace(0, len(pairs) - 1, min(len(pairs), _PAIRS)).round().astype(int)]
    later, earlier = segments[chosen].T[..., None]
    every = np.arange(len(steps))
    prior = np.concatenate([np.full(len(steps), _SCALE**-2), (_TURN * np.abs(steps) ** 0.5 + _TURN_LEAST) ** -2.0])
    accuracy = 0.5 + float(np.abs(np.diff(z)).mean())  # standard deviation of a right pair: about a frame
    scale, change = np.inf, np.zeros(2 * len(steps))
    for _ in range(_ITERATIONS):
        factors = np.exp(change[: len(steps)] + 1j * np.cumsum(change[len(steps) :]))
        path = z[0] + np.concatenate([[0], np.cumsum(steps * factors)])
        placed = path[segments] + offsets * factors[segments]
        errors = placed[chosen[:, 0]] - placed[chosen[:, 1]]
        scale = max(min(scale / 2, float(np.abs(errors).max())), accuracy)
        weights = 1 / (accuracy**2 * (1 + np.abs(errors / scale) ** 2))
        scaled = np.where((earlier <= every) & (every < later), steps * factors, 0)
        turned = np.where(every < later, 1j * (path[later] - path[np.maximum(every, earlier)]), 0)
        rows = np.concatenate([scaled, turned], axis=1)
        gradient = (rows.conj().T @ (weights * errors)).real + prior * change
        update = np.linalg.solve((rows.conj().T * weights @ rows).real + np.diag(prior), -gradient)
        change += update
        if scale == accuracy and np.abs(update).max() < _SMALL:
            break
    return np.column_stack([placed.real, placed.imag])
