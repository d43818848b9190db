"""One position of a photo with a radius, from all images that were verified (ours, beyond the paper).

    p     = softmax of what images are ordered by, z + 4 √M, divided by 0.5: the shares of the confidence
    place = the images within a reach of the one around which most of p lies; no place where that is less than half
    b     = mean √M of the verified images outside it: what a wrong place bears; 0 where there are none
    w     = max(√M − b, 0)² of the images inside
    x     = Σ w x_c / Σ w,   σ² = Σ w |x_c − x|² / Σ w,   n = (Σ w)² / Σ w²
    r²    = (reach² + n σ²) / (n + 1)

A wrong image elsewhere moves nothing: it only counts against the share. One image alone may stand a reach away from
the camera; each that agrees draws the radius to how far they lie apart. The reach is 25 m, or the map's usual step
where its images stand farther apart (up to 1 km). Of a frame of a drive p and w are the filter's probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfa.maps.confidence import VERIFIED_CONSTANTS, softmax
from tfa.online.sequence_filter import EARTH_RADIUS, estimate_step, project_to_meters
from tfa.types import ImageRecord, Place, Position
from tfa.verification.reranking import UNVERIFIED, Reranked

REACH = 25.0  # metres within which two photos are commonly said to show one place
MOST_REACH = 1000.0  # metres: between photos that are farther apart lie other places
LEAST_SHARE = 0.5
MOST_BELIEVED = 100  # images of a filter that are looked at

NOT_VERIFIED = "no answer was verified"
NO_POSITIONS = "the images that answer have no positions"
TWO_KINDS = "some positions are in degrees and others in metres"
NO_EVIDENCE = "the likeliest place bears no more evidence than others"
CAMERA_LOST = "the camera is lost"

Located = tuple[Place | None, str | None]  # a place, or why there is none


def locate_photo(ranked: Reranked, row: int, images: Sequence[ImageRecord], reach: float) -> Located:
    """Locate one query photo; `images` are those that `ranked` numbers."""
    compared = int((ranked.inliers[row] != UNVERIFIED).sum())
    if not compared:
        return None, NOT_VERIFIED
    positions = [images[i].position for i in ranked.indices[row, :compared].tolist()]
    shares = softmax(ranked.ordering[row, :compared] / VERIFIED_CONSTANTS.temperature)
    return fuse_positions(positions, shares, np.sqrt(ranked.evidence[row, :compared]), reach)


def locate_frame(probabilities: np.ndarray, images: Sequence[ImageRecord], reach: float) -> Located:
    """Locate a frame by the filter's probability of each image `m`; being lost is the rest to one."""
    best = np.argsort(-probabilities, kind="stable")[:MOST_BELIEVED]
    return fuse_positions([images[i].position for i in best.tolist()], probabilities[best], None, reach)


def fuse_positions(
    positions: Sequence[Position | None], shares: np.ndarray, roots: np.ndarray | None, reach: float
) -> Located:
    """Fuse the positions of images with these shares `c` and √M `c`, best first; without √M the shares weigh them."""
    placed = np.array([row for row, position in enumerate(positions) if position is not None], np.int64)
    known = [position for position in positions if position is not None]
    if not known:
        return None, NO_POSITIONS
    if len({position.is_global for position in known}) > 1:
        return None, TWO_KINDS
    plane = _Plane(known[int(shares[placed].argmax())])
    points = plane.points(known)
    near = np.linalg.norm(points[:, None] - points, axis=-1) <= reach
    around = near @ shares[placed]
    middle = int(around.argmax())
    if around[middle] < LEAST_SHARE:
        return None, f"answers disagree: the likeliest place has {100 * around[middle]:.0f} % of their shares"
    inside = near[middle]
    if roots is None:
        weights = shares[placed][inside]
    else:
        elsewhere = np.delete(roots, placed[inside])
        wrong = elsewhere.mean() if len(elsewhere) else 0.0
        weights = np.maximum(roots[placed][inside] - wrong, 0.0) ** 2
    if not weights.sum() > 0:
        return None, NO_EVIDENCE
    weights = weights / weights.sum()
    point = weights @ points[inside]
    spread = weights @ ((points[inside] - point) ** 2).sum(axis=1)
    count = 1 / (weights @ weights)
    radius = np.sqrt((reach**2 + count * spread) / (count + 1))
    place = Place(
        position=plane.position(point), radius=float(radius), share=float(around[middle]),
        images=int((weights > 0).sum()),
    )  # fmt: skip
    return place, None


def measure_reach(images: Sequence[ImageRecord]) -> float:
    """Return 25 m, or the usual step of the map if that is longer, up to 1 km."""
    known = [image.position for image in images if image.position is not None]
    globe = [position.pair for position in known if position.is_global]
    on_globe = 2 * len(globe) >= len(known)  # of two kinds the commoner counts
    pairs = np.array(globe if on_globe else [one.pair for one in known if not one.is_global])
    if len(pairs) < 3:
        return REACH
    return float(np.clip(estimate_step(project_to_meters(*pairs.T) if on_globe else pairs), REACH, MOST_REACH))


@dataclass(frozen=True)
class _Plane:
    """Positions as points `c 2` in metres, east and north of one of them."""

    origin: Position

    def points(self, positions: Sequence[Position]) -> np.ndarray:
        offsets = np.array([position.pair for position in positions]) - self.origin.pair
        if not self.origin.is_global:
            return offsets
        north, east = offsets.T
        east = (east + 180) % 360 - 180  # the short way, also across the 180th meridian
        return np.radians(np.stack([east * self._narrowing, north], axis=1)) * EARTH_RADIUS

    def position(self, point: np.ndarray) -> Position:
        first, second = self.origin.pair
        if not self.origin.is_global:
            return Position(x=first + float(point[0]), y=second + float(point[1]))
        east, north = np.degrees(point / EARTH_RADIUS)
        lon = (second + float(east) / self._narrowing + 180) % 360 - 180
        return Position(lat=float(np.clip(first + float(north), -90, 90)), lon=lon)

    @property
    def _narrowing(self) -> float:
        """Length of a degree of longitude at this latitude, relative to the equator; never 0, also at the poles."""
        return max(float(np.cos(np.radians(self.origin.pair[0]))), 1e-9)
