"""UTM to degrees and back, by pyproj (extra `geo`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfa.errors import BadPositions, MissingExtra
from tfa.photos.positions import Position

ZONE = re.compile(r"(0?[1-9]|[1-5][0-9]|60)([NS])")
_OUTSIDE = "lie outside UTM zone {zone}; give the zone they are in, with N or S for the hemisphere"


def utm_code(zone: str) -> int:
    """The EPSG code of a zone such as 33N."""
    given = ZONE.fullmatch(zone.strip().upper())
    if given is None:
        raise BadPositions(
            f"{zone[:20]!r} is no UTM zone; write its number, 1 to 60, and N or S for the hemisphere, such as 33N "
            "(the letter is not that of an MGRS band, where S is north of the equator)"
        )
    return (32600 if given[2] == "N" else 32700) + int(given[1])


def to_degrees(positions: Sequence[Position | None], zone: str) -> list[Position | None]:
    """Positions in metres, of that zone, as degrees; those in degrees stay as they are."""
    return _turned(positions, zone, to_globe=True)


def to_metres(positions: Sequence[Position | None], zone: str) -> list[Position | None]:
    """Positions in degrees as metres in that zone; those in metres stay as they are."""
    return _turned(positions, zone, to_globe=False)


def _turned(positions: Sequence[Position | None], zone: str, *, to_globe: bool) -> list[Position | None]:
    code, found = utm_code(zone), list(positions)
    rows = [row for row, one in enumerate(positions) if one is not None and one.is_global != to_globe]
    if not rows:
        return found
    transformer = _transformer(code, to_globe=to_globe)
    pairs = np.array(
        [position.pair for position in positions if position is not None and position.is_global != to_globe]
    )
    # pyproj takes and gives x before y: longitude before latitude.
    first, second = transformer.transform(*(pairs.T if to_globe else pairs.T[::-1]))
    back = transformer.transform(first, second, direction="INVERSE")
    given = pairs if to_globe else pairs[:, ::-1]
    apart = np.abs(np.stack(back, axis=1) - given).max(axis=1) if np.isfinite(back).all() else np.array([np.inf])
    if not (np.isfinite(first) & np.isfinite(second)).all() or (apart > (1.0 if to_globe else 1e-5)).any():
        raise BadPositions(f"positions such as {positions[rows[0]]} {_OUTSIDE.format(zone=zone)}")
    for row, one, other in zip(rows, first.tolist(), second.tolist(), strict=True):
        own = positions[row]
        assert own is not None
        pair: dict[str, Any] = {"lat": other, "lon": one} if to_globe else {"x": one, "y": other}
        found[row] = replace(own, **{**dict.fromkeys(("lat", "lon", "x", "y")), **pair})
    return found


def _transformer(code: int, *, to_globe: bool) -> Any:
    try:
        from pyproj import Transformer
    except ImportError:
        raise MissingExtra("UTM positions need pyproj; install with: pip install 'tfa-vpr[geo]'") from None
    plane, globe = f"EPSG:{code}", "EPSG:4326"
    return Transformer.from_crs(*((plane, globe) if to_globe else (globe, plane)), always_xy=True)
