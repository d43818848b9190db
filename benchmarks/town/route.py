"""Streets of the demo town, and the camera's path along them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

# Corners of the tour, in meters; they are shifted a little by the seed.
CORNERS = ((0, 0), (118, -8), (176, 34), (164, 112), (92, 104), (80, 172), (-22, 158), (-40, 70))
TURN_RADIUS = 9.0
STEP = 0.25


@dataclass(frozen=True)
class Street:
    """A straight street between two corners; `half` is half the carriageway, `pavement` each footway."""

    start: np.ndarray
    end: np.ndarray
    half: float
    pavement: float
    kind: str

    @cached_property
    def length(self) -> float:
        return float(np.linalg.norm(self.end - self.start))

    @cached_property
    def along(self) -> np.ndarray:
        return (self.end - self.start) / self.length

    @cached_property
    def left(self) -> np.ndarray:
        return np.array([-self.along[1], self.along[0]])

    def at(self, distance: float, lateral: float) -> np.ndarray:
        """Return the ground point `distance` along the street and `lateral` meters to its left."""
        return self.start + self.along * distance + self.left * lateral


def on_street(points: np.ndarray, streets: list[Street], slack: float = 0.05) -> bool:
    """True if any of the points `(n, 2)` is on a carriageway or its pavements, by more than `slack`."""
    starts, along = np.array([s.start for s in streets]), np.array([s.along for s in streets])
    lengths, reach = np.array([s.length for s in streets]), np.array([s.half + s.pavement for s in streets])
    offset = points[:, None] - starts
    share = np.clip((offset * along).sum(-1), 0, lengths)
    gap = np.linalg.norm(offset - share[..., None] * along, axis=-1)
    return bool((gap < reach - slack).any())


def plan_streets(seed: int) -> list[Street]:
    """Plan the closed ring of streets. The kind decides which houses and trees line a street."""
    rng = np.random.default_rng([seed, 1])
    corners = np.array(CORNERS, float) + rng.uniform(-5, 5, (len(CORNERS), 2))
    kinds = ["terraces", "shops", "blocks", "old", "shops", "terraces", "park", "villas"]
    return [
        Street(
            corners[i],
            corners[(i + 1) % len(corners)],
            float(rng.uniform(4.6, 5.4)),
            float(rng.uniform(2.2, 3.2)),
            kind,
        )
        for i, kind in enumerate(kinds)
    ]


@dataclass(frozen=True)
class Route:
    """The closed center line with rounded turns, sampled every quarter of a meter or finer."""

    points: np.ndarray

    @cached_property
    def traveled(self) -> np.ndarray:
        """Meters from the start to each point, and to the start again at the end."""
        steps = np.linalg.norm(np.diff(self.points, axis=0, append=self.points[:1]), axis=1)
        return np.concatenate([[0.0], np.cumsum(steps)])

    @property
    def length(self) -> float:
        return float(self.traveled[-1])

    @cached_property
    def headings(self) -> np.ndarray:
        ahead, behind = np.roll(self.points, -1, 0), np.roll(self.points, 1, 0)
        return np.unwrap(np.arctan2(*(ahead - behind).T[::-1]))

    def pose(self, distance: float, lateral: float = 0.0) -> tuple[float, float, float]:
        """Return x, y and heading after `distance` meters, `lateral` meters left of the center line."""
        at = distance % self.length
        closed = np.concatenate([self.points, self.points[:1]])
        # The tour turns by one full circle: the last heading is the first one plus that turn.
        turns = round((self.headings[-1] - self.headings[0]) / (2 * np.pi)) * 2 * np.pi
        headings = np.append(self.headings, self.headings[0] + turns)
        x, y = (float(np.interp(at, self.traveled, closed[:, axis])) for axis in (0, 1))
        heading = float(np.interp(at, self.traveled, headings))
        return x - lateral * float(np.sin(heading)), y + lateral * float(np.cos(heading)), heading

    def apart(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return meters along the closed route between positions `a` and `b`, the shorter way."""
        gap = np.abs(a - b) % self.length
        return np.minimum(gap, self.length - gap)


def plan_route(streets: list[Street]) -> Route:
    """Return the center line of the ring with each corner replaced by an arc of `TURN_RADIUS`."""
    pieces = []
    ring = zip(streets[-1:] + streets[:-1], streets, streets[1:] + streets[:1], strict=True)
    for before, after, following in ring:
        turn = _turn(before, after)
        tangent = TURN_RADIUS * np.tan(abs(turn) / 2)
        pieces.append(_arc(before.end - before.along * tangent, before.along, turn))
        next_tangent = TURN_RADIUS * np.tan(abs(_turn(after, following)) / 2)
        straight = np.arange(tangent + STEP, after.length - next_tangent, STEP)
        pieces.append(after.start + straight[:, None] * after.along)
    return Route(np.concatenate(pieces))


def _turn(before: Street, after: Street) -> float:
    """Return the signed angle between two streets, left turns positive."""
    cross = before.along[0] * after.along[1] - before.along[1] * after.along[0]
    return float(np.arctan2(cross, before.along @ after.along))


def _arc(start: np.ndarray, along: np.ndarray, turn: float) -> np.ndarray:
    side = np.sign(turn)
    center = start + side * TURN_RADIUS * np.array([-along[1], along[0]])
    count = max(2, int(abs(turn) * TURN_RADIUS / STEP))
    angles = np.linspace(0, turn, count)
    spoke = start - center
    cos, sin = np.cos(angles), np.sin(angles)
    return center + np.stack([cos * spoke[0] - sin * spoke[1], sin * spoke[0] + cos * spoke[1]], -1)
