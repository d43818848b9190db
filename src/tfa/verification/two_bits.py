"""Two bits (ours, beyond the paper): the numbers of a compact patch, four in a byte.

    level    the nearest of ±0.4528 σ and ±1.5104 σ     σ: deviation of that number over the map's patches
    byte     four levels, the first in the lowest bits

The four levels are those that round a normal variable best (Lloyd, Max). A query's patches are not rounded, so an
image's rounding is met once in a similarity, not twice. Arrays in, arrays out.
"""

from __future__ import annotations

import numpy as np

_NORMAL_LEVELS = np.array([-1.5104, -0.4528, 0.4528, 1.5104], np.float32)  # in deviations
BETWEEN = 0.9816  # the two inner levels and the two outer ones; 0 is between the inner ones
TOGETHER = 4  # numbers that share a byte


def count_packed_bytes(numbers: int) -> int:
    return -(-numbers // TOGETHER)


def measure_deviations(rows: np.ndarray) -> np.ndarray:
    """Root mean square `r` of each number of rows `t r`: the levels lie around zero, not around a mean."""
    return np.sqrt(np.mean(np.square(rows, dtype=np.float64), axis=0)).astype(np.float32)


def pack_levels(rows: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """Rows `… r` → bytes `… g` that hold the level of each number; a last byte that is not full ends in zeros."""
    numbers, border = rows.shape[-1], np.float32(BETWEEN) * deviations
    levels = np.zeros((*rows.shape[:-1], count_packed_bytes(numbers), TOGETHER), np.uint8)
    flat = levels.reshape(*rows.shape[:-1], count_packed_bytes(numbers) * TOGETHER)  # the same memory
    for least in (-border, np.float32(0), border):
        flat[..., :numbers] += rows > least
    return np.bitwise_or.reduce(levels << np.arange(0, 8, 2, dtype=np.uint8), axis=-1)


def build_level_table(deviations: np.ndarray) -> np.ndarray:
    """What each byte stands for, by its place in the patch and its value: `g 256 4`, float32."""
    padded = np.zeros(count_packed_bytes(len(deviations)) * TOGETHER, np.float32)
    padded[: len(deviations)] = deviations
    level = _NORMAL_LEVELS[np.arange(256)[:, None] >> np.arange(0, 8, 2) & 3]  # 256 4
    return np.ascontiguousarray(level * padded.reshape(-1, 1, TOGETHER))


def unpack_levels(codes: np.ndarray, table: np.ndarray, numbers: int) -> np.ndarray:
    """Bytes `… g` → rows `… r` of their levels, float32."""
    # Four floats are taken as one item of 16 bytes: one lookup for four numbers.
    items = table.view(np.complex128).ravel()
    places = np.arange(0, items.size, table.shape[1], dtype=np.int64)
    rows = items.take(codes + places).view(np.float32)
    return rows if rows.shape[-1] == numbers else np.ascontiguousarray(rows[..., :numbers])
