"""How a camera moves along a map from one frame to the next (ours, beyond the paper).

A camera that drives keeps its pace: it is part of what is believed, beside the place.

    in driving order   T_v(δ) ∝ exp(−max(|δ − v| / b − 1, 0)),   |δ| ≤ 30,   b = max(½, |v| / 4)
                       v ∈ {0, ±½, ±1, ±2, ±3, ±5, ±8} images a frame; forward and back are paces of their own
    by position        the same with δ = |distance| / usual step and v ≥ 0: where photos are in no order there is no
                       forward or back

Shares of an image add up to one, also at the ends of a map. Both are linear in the number of images.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from scipy.sparse import csr_array
from scipy.spatial import cKDTree

from tfa.errors import BadSpec

SPEEDS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0)  # images, or usual steps, a frame
PACES = tuple(sign * speed for speed in SPEEDS for sign in (1, -1) if speed or sign > 0)
MAX_STEPS_PER_FRAME = 30  # images, or usual steps, that a frame moves by at most
MIN_SHARE = math.exp(-12.0)  # of the likeliest move: by position, rarer ones are left out
_MAX_NEIGHBORS = 128  # images a move can lead to, where positions say who is near
EARTH_RADIUS = 6_371_000.0  # metres
_DRIVE_STEP = 0.25  # of the usual distance of two images: in driving order, one is nearer to the next
_DRIVE_SHARE = 0.8  # of the images of a drive
_SAMPLED_PAIRS = 4096  # of images whose distances are looked at


class Motion(Protocol):
    """Where a camera can be a frame later, lost or not aside."""

    images: int
    paces: int

    def moved(self, believed: np.ndarray) -> np.ndarray:
        """Probabilities `v m` of pace and place, a frame later."""
        ...

    def around(self, places: np.ndarray) -> np.ndarray:
        """Probability `m` of each image and those that show the same place."""
        ...


def weigh_moves(distance: np.ndarray, pace: float) -> np.ndarray:
    """Compute T_v of moves, not yet adding up to one."""
    return np.exp(-np.maximum(np.abs(distance - pace) / max(0.5, abs(pace) / 4) - 1, 0))


class OrderMotion:
    """Motion along a map in driving order: every pace is a convolution. `reach`: images to each side of one place."""

    paces = len(PACES)

    def __init__(self, images: int, reach: float) -> None:
        self.images = _enough(images)
        moves = np.arange(-MAX_STEPS_PER_FRAME, MAX_STEPS_PER_FRAME + 1)
        self._shares = np.stack([weigh_moves(moves, pace) for pace in PACES])  # v 61
        every = np.ones(images)
        # What leaves the map at its ends is shared among the moves that do not.
        self._total = np.stack([self._along(every, shares[::-1]) for shares in self._shares])
        self._near = np.ones(2 * math.floor(reach) + 1)

    def moved(self, believed: np.ndarray) -> np.ndarray:
        leaving = believed / self._total
        return np.stack([self._along(own, shares) for own, shares in zip(leaving, self._shares, strict=True)])

    def around(self, places: np.ndarray) -> np.ndarray:
        return self._along(places, self._near)

    def _along(self, values: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        """Convolution with a kernel whose middle is a move of 0, within the map."""
        start = len(kernel) // 2
        return np.convolve(values, kernel)[start : start + self.images]


class PositionMotion:
    """Motion in a map whose images stand at `places` `m 2`, in meters and in no order; `reach` is in usual steps."""

    paces = len(SPEEDS)

    def __init__(self, places: np.ndarray, reach: float) -> None:
        self.images = _enough(len(places))
        step = estimate_step(places)
        to, distance = _nearest(places, MAX_STEPS_PER_FRAME * step)
        exists, distance = to >= 0, distance / step
        source = np.broadcast_to(np.arange(self.images)[:, None], to.shape)

        def matrix(share: np.ndarray, mask: np.ndarray) -> csr_array:
            """Transposed: probabilities of images stand right of it."""
            return csr_array((share[mask], (to[mask], source[mask])), shape=(self.images, self.images))

        self._moves = []
        for speed in SPEEDS:
            share = np.where(exists, weigh_moves(np.where(exists, distance, np.inf), speed), 0.0)
            share[share < MIN_SHARE * share.max(axis=1, keepdims=True)] = 0.0
            self._moves.append(matrix(share / share.sum(axis=1, keepdims=True), share > 0))
        near = exists & (distance <= reach)
        self._near = matrix(np.ones(to.shape), near).T.tocsr()

    def moved(self, believed: np.ndarray) -> np.ndarray:
        return np.stack([moves @ own for moves, own in zip(self._moves, believed, strict=True)])

    def around(self, places: np.ndarray) -> np.ndarray:
        return self._near @ places


def choose_motion(images: int, places: np.ndarray | None, reach: float) -> Motion:
    """Choose motion by the order of the images; by their positions `m 2` if these show that it is no drive."""
    if places is None or is_drive(places):
        return OrderMotion(images, reach)
    return PositionMotion(places, reach)


def is_drive(places: np.ndarray) -> bool:
    """Are images at `places` `m 2` in driving order: is nearly each of them much nearer to the next than to others?"""
    steps = np.linalg.norm(np.diff(places, axis=0), axis=1)
    pairs = np.random.default_rng(0).integers(len(places), size=(2, _SAMPLED_PAIRS))
    pairs = pairs[:, pairs[0] != pairs[1]]
    usual = float(np.median(np.linalg.norm(places[pairs[0]] - places[pairs[1]], axis=1))) if pairs.size else 0.0
    return bool(np.mean(steps <= _DRIVE_STEP * usual) >= _DRIVE_SHARE) if len(steps) else True


def estimate_step(places: np.ndarray) -> float:
    """Estimate the usual step: the median distance to the second nearest other place, 1 with fewer than 3 places."""
    distinct = np.unique(places, axis=0)
    if len(distinct) < 3:
        return 1.0
    return float(np.median(cKDTree(distinct).query(distinct, k=3)[0][:, 2]))


def _nearest(places: np.ndarray, farthest: float) -> tuple[np.ndarray, np.ndarray]:
    """The images nearest to each, itself first, of equals the smaller index; -1 and inf where there are no more."""
    count = min(_MAX_NEIGHBORS, len(places))
    to = np.full((len(places), count), -1)
    distance = np.full((len(places), count), np.inf)
    tree = cKDTree(places)
    last = tree.query(places, k=[count])[0][:, 0]
    # A little farther: all that tie with the last, whichever way the tree rounds.
    candidates = tree.query_ball_point(places, np.minimum(last, farthest) * (1 + 1e-9), return_sorted=True)
    for image, listed in enumerate(candidates):
        others = np.array(listed)
        away = np.linalg.norm(places[image] - places[others], axis=-1)
        away[others == image] = -1.0  # itself before others at the same place
        order = np.argsort(away, kind="stable")[:count]
        order = order[away[order] <= farthest]
        to[image, : len(order)], distance[image, : len(order)] = others[order], away[order].clip(min=0)
    return to, distance


def project_to_meters(latitudes: np.ndarray, longitudes: np.ndarray) -> np.ndarray:
    """Project degrees to a plane `m 2` about their middle, true to a meter over a town."""
    middle = np.radians(latitudes.mean())
    east = np.radians(longitudes - longitudes.mean()) * np.cos(middle)
    return EARTH_RADIUS * np.stack([east, np.radians(latitudes - latitudes.mean())], axis=1)


def _enough(images: int) -> int:
    if images < 2:
        raise BadSpec(f"a sequence needs a map of at least 2 images, this one has {images}")
    return images
