"""Find the positives of a query: map images near it, on the globe or in a plane, or listed in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfa.core.files import require_json
from tfa.errors import TfaError
from tfa.types import Position

DEFAULT_RADIUS = 25.0  # meters: the field's usual radius
_EQUATOR = 6378137.0  # WGS 84: radius of the equator in meters
_SQUARED_ECCENTRICITY = 6.69437999014e-3


class BadEvaluation(TfaError):
    """Ground truth, queries or a saved evaluation cannot be used, or do not match."""


def earth_points(degrees: np.ndarray) -> np.ndarray:
    """Convert latitude and longitude (m, 2) at height 0 to points (m, 3) in meters from the Earth's center.

    The straight line between two points equals their ground distance to 1e-9 m per 100 m, without a map projection.
    """
    lat, lon = np.radians(degrees).T
    # N = a / √(1 - e² sin² φ), the radius across the meridian
    across = _EQUATOR / np.sqrt(1 - _SQUARED_ECCENTRICITY * np.sin(lat) ** 2)
    flat = across * np.cos(lat)
    up = across * (1 - _SQUARED_ECCENTRICITY) * np.sin(lat)
    return np.stack([flat * np.cos(lon), flat * np.sin(lon), up], axis=1)


def to_points(positions: Sequence[Position | None]) -> np.ndarray:
    """Convert positions of one kind to points (p, c) in meters whose straight lines are distances; nan for None."""
    known = {at: position for at, position in enumerate(positions) if position is not None}
    pairs = np.array([position.pair for position in known.values()], np.float64).reshape(-1, 2)
    placed = earth_points(pairs) if True in position_kinds(positions) else pairs
    points = np.full((len(positions), placed.shape[1]), np.nan)
    points[list(known)] = placed
    return points


def position_kinds(positions: Sequence[Position | None]) -> set[bool]:
    """Return the kinds of positions: True for the globe, False for a plane, both if mixed."""
    return {position.is_global for position in positions if position is not None}


def measure_lengths(points: np.ndarray, others: np.ndarray) -> list[float | None]:
    """Measure the distances of pairs of points (p, c); None if one is unknown."""
    offsets = points - others
    metres = np.sqrt((offsets * offsets).sum(axis=-1))
    return [None if np.isnan(one) else float(one) for one in metres]


def within(database: np.ndarray, queries: np.ndarray, radius: float) -> tuple[np.ndarray, ...]:
    """Find the database points (m, c) at most `radius` away from each query (q, c), including the border."""
    from scipy.spatial import cKDTree  # imported only if there are positions

    if not len(database) or not len(queries):
        return tuple(np.array([], np.int64) for _ in queries)
    # Search a little beyond the radius: the tree may round a distance at the border differently.
    nearby = cKDTree(database).query_ball_point(queries, radius * (1 + 1e-9), return_sorted=True)
    close = []
    for query, indices in zip(queries, nearby, strict=True):
        own = np.array(indices, np.int64)
        offsets = query - database[own]
        close.append(own[np.sqrt((offsets * offsets).sum(axis=1)) <= radius])
    return tuple(close)


def read_positives(file: Path, error: type[TfaError] = BadEvaluation) -> dict[str, list[str]]:
    """Read the positives of each query from JSON; raise `error` for an invalid file."""
    values = require_json(file, error, "; it lists the database images of each query as JSON")
    if not isinstance(values, dict) or not all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in values.values()
    ):
        raise error(f'{file} must hold one JSON object {{"query.jpg": ["database.jpg", …], …}}')
    return values
