"""Distances in metres between positions of one kind: on the globe or in a plane."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfa.bench.datasets.layouts.earth import earth_points
from tfa.types import Position


def points_of(positions: Sequence[Position | None]) -> np.ndarray:
    """Points `p c` in metres, of which straight lines are distances; nan where there is no position.

    All positions must be of one kind.
    """
    known = {at: position for at, position in enumerate(positions) if position is not None}
    pairs = np.array([position.pair for position in known.values()], np.float64).reshape(-1, 2)
    placed = earth_points(pairs) if True in kinds_of(positions) else pairs
    points = np.full((len(positions), placed.shape[1]), np.nan)
    points[list(known)] = placed
    return points


def kinds_of(positions: Sequence[Position | None]) -> set[bool]:
    """Whether positions are on the globe (True) or in a plane (False); both where they are mixed."""
    return {position.is_global for position in positions if position is not None}


def lengths(points: np.ndarray, others: np.ndarray) -> list[float | None]:
    """Distances of pairs of points `p c`; None where one is not known."""
    offsets = points - others
    metres = np.sqrt((offsets * offsets).sum(axis=-1))
    return [None if np.isnan(one) else float(one) for one in metres]
