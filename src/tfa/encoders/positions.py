"""Positions of patches in a vision transformer, computed by numpy: resampled tables and rotary angles."""

from __future__ import annotations

import math

import numpy as np

from tfa.encoders.catalogue import EncoderId

SCALE_OFFSET = 0.1  # added to the number of patches by DINOv2's authors
_ROTARY_BASE = 100.0  # of DINOv3
_PLAIN, _ANTIALIASED = -0.75, -0.5  # parameter of the cubic kernel in torch, without and with antialiasing


def resample_table(table: np.ndarray, identity: EncoderId) -> np.ndarray:
    """Resample positions `(1, 1+p², d)` to `(1, 1+rows·columns, d)`, float32; CLS is unchanged."""
    side, grid, rule = math.isqrt(table.shape[1] - 1), identity.grid, identity.card.names
    if grid == (side, side):
        return table
    offset = SCALE_OFFSET if identity.published_rule else 0.0
    rows, columns = (_taps(side, patches, offset, antialias=rule.antialias) for patches in grid)
    square = np.tensordot(rows, table[0, 1:].reshape(side, side, -1).astype(np.float64), 1)
    square = np.einsum("cj,rjd->rcd", columns, square)
    return np.concatenate([table[0, :1], square.reshape(grid[0] * grid[1], -1)])[None].astype(np.float32)


def _taps(side: int, patches: int, offset: float, *, antialias: bool) -> np.ndarray:
    """Return weights `(patches, side)` of bicubic interpolation along one axis, as torch computes them."""
    scale = np.float32(side / (patches + offset))
    centers = (np.arange(patches, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
    if antialias:
        weights = _cubic((np.arange(side) - centers[:, None]) / max(scale, 1.0), _ANTIALIASED)
        return weights / weights.sum(axis=1, keepdims=True)
    weights = np.zeros((patches, side))
    for tap in range(-1, 3):
        places = np.floor(centers).astype(int) + tap
        np.add.at(weights, (np.arange(patches), places.clip(0, side - 1)), _cubic(centers - places, _PLAIN))
    return weights


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def rotary_factors(identity: EncoderId) -> tuple[np.ndarray, np.ndarray]:
    """Return factors `(tokens, 1, channels)` for x and for x with swapped halves; prefix tokens are not rotated."""
    card, (rows, columns) = identity.card, identity.grid
    channels = card.width // card.heads
    frequencies = 1 / np.float32(_ROTARY_BASE) ** np.arange(0, 1, 4 / channels, dtype=np.float32)
    axes = ((np.arange(n, dtype=np.float32) + 0.5) / n * 2 - 1 for n in (rows, columns))
    places = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
    angles = (2 * np.pi * places.reshape(-1, 2, 1) * frequencies).astype(np.float32).reshape(rows * columns, -1)
    cosine, sine = np.cos(angles), np.sin(angles)
    still = np.zeros((card.prefix, channels), np.float32)
    turned = np.concatenate([cosine, cosine], axis=1), np.concatenate([-sine, sine], axis=1)
    return np.concatenate([still + 1, turned[0]])[:, None], np.concatenate([still, turned[1]])[:, None]
