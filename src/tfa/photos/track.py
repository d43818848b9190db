"""A track: points by time, where it was in between, and how far two positions are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tfa.photos.positions import Position

_EARTH = 6_371_000.0  # metres


@dataclass(frozen=True)
class Track:
    """Points by growing time. Between two of them the track is straight, where both are of one segment."""

    times: np.ndarray  # p, seconds since 1970
    points: np.ndarray  # p 4: latitude and longitude, or x and y; altitude or nan; heading or nan
    segments: np.ndarray  # p
    is_global: bool = True

    def at(self, utc: float, gap: float) -> Position | None:
        """Where it was; None before its start, after its end, and between points more than `gap` seconds apart."""
        after = int(np.searchsorted(self.times, utc))
        if after < len(self.times) and self.times[after] == utc:
            return self._position(self.points[after])
        if not 0 < after < len(self.times):
            return None
        start, end = self.times[after - 1 : after + 1]
        if end - start > gap or self.segments[after - 1] != self.segments[after]:
            return None
        one, other = self.points[after - 1].copy(), self.points[after]
        step = other - one
        # The short way around: across the 180th meridian, and across north.
        turning = [1, 3] if self.is_global else [3]
        step[turning] = (step[turning] + 180) % 360 - 180
        there = one + step * ((utc - start) / (end - start))
        there[3] %= 360
        if self.is_global:
            there[1] = (there[1] + 180) % 360 - 180
        return self._position(there)

    def _position(self, point: np.ndarray) -> Position:
        first, second, alt, heading = (float(value) for value in point)
        more = {"alt": alt, "heading": heading}
        known = {name: value for name, value in more.items() if not math.isnan(value)}
        if self.is_global:
            return Position(lat=first, lon=second, **known)
        return Position(x=first, y=second, **known)


def metres_between(one: Position, other: Position) -> float:
    """The way from one to the other over the ground, for ways that are short beside the globe."""
    (a, b), (c, d) = one.pair, other.pair
    if not one.is_global:
        return math.hypot(c - a, d - b)
    east = (d - b + 180) % 360 - 180
    return math.radians(1) * _EARTH * math.hypot(c - a, east * math.cos(math.radians((a + c) / 2)))
