"""Sequences (ours, beyond the paper): where a robot is, frame after frame, from the scores of single frames.

A hidden Markov model whose states are the map's images and one more, *lost* (the camera is outside the map):

    move     T(i → j) = (1 − ε) · exp(−max(|i − j| / ℓ − 1, 0)) / Σ    |i − j|: in the map's order, or by position;
             T(i → lost) = ε,   T(lost → lost) = 1 − ρ,   T(lost → j) = ρ / m
    see      L(j) = exp(κ (μ z_j − μ²/2)),   L(lost) = 1,   μ = √(2 ln m)
    filter   p_t(j) ∝ L(j) Σ_i T(i → j) p_{t−1}(i)         from frames up to t alone

Moves up to ℓ are equally likely, forward and back: the speed is not known, and standing still must not be favoured. z_j
is the z-score of image j in the frame's row of scores. L is the likelihood ratio of a normal score of mean μ against
one of mean 0: μ is the height that the best of m scores reaches by chance, so of a frame on its own a place is likelier
than *lost* exactly if its z-score is above it. κ < 1, because frames that follow each other err alike. Nothing is
trained. Arrays in, arrays out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from tfa.base.config import Spec, described
from tfa.errors import BadSpec
from tfa.method.evidence.rows import EPSILON, mean_and_spread, z_scores

FARTHEST = 5.0  # ℓ: moves beyond it have a share of e⁻⁴ and are left out
MOST_NEIGHBOURS = 64  # images a move can lead to, where positions say who is near
EARTH = 6_371_000.0  # metres


@dataclass(frozen=True, kw_only=True)
class SequenceSpec(Spec):
    """How a camera moves and errs; all numbers are ours."""

    reach: float = described(3.0, "images (or usual distances between them) a frame moves by", low=1e-3)
    getting_lost: float = described(0.02, "probability that a frame leaves the map", low=1e-9, high=0.5)
    being_found: float = described(0.2, "probability that a lost camera comes back with a frame", low=1e-9, high=1.0)
    trust: float = described(0.5, "κ: how much a frame counts beside the one before it", low=1e-3, high=1.0)


@dataclass(frozen=True)
class Roads:
    """Where a camera at each image can be a frame later, lost or not aside."""

    to: np.ndarray  # m w: images, padded with the image itself
    share: np.ndarray  # m w: probabilities, rows add up to one; zero where padded
    near: np.ndarray  # m w: bool, within one reach: the same place

    @property
    def images(self) -> int:
        return len(self.to)


def roads_by_index(images: int, spec: SequenceSpec | None = None) -> Roads:
    """For a map in driving order."""
    spec = spec or SequenceSpec()
    reach = max(math.floor(FARTHEST * spec.reach), 1)
    offsets = np.arange(-reach, reach + 1)
    to = np.arange(images)[:, None] + offsets
    distance = np.broadcast_to(np.abs(offsets) / spec.reach, to.shape)
    return _roads(np.where((to >= 0) & (to < images), to, -1), distance)


def roads_by_position(places: np.ndarray, spec: SequenceSpec | None = None) -> Roads:
    """For a map whose images stand at `places` `m 2`, in metres; a step is the usual distance between neighbours."""
    spec = spec or SequenceSpec()
    step = _usual_step(places) * spec.reach
    to, distance = _nearest(places, FARTHEST * step)
    return _roads(to, distance / step)


def _nearest(places: np.ndarray, farthest: float) -> tuple[np.ndarray, np.ndarray]:
    """The images nearest to each, itself first, of equals the smaller index; -1 and inf where there are no more."""
    count = min(MOST_NEIGHBOURS, len(places))
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


def _usual_step(places: np.ndarray) -> float:
    """Median distance of images that follow each other at different places; 1 where all stand at one."""
    steps = np.linalg.norm(np.diff(places, axis=0), axis=1)
    moved = steps[steps > 0]
    return float(np.median(moved)) if len(moved) else 1.0


def _roads(to: np.ndarray, distance: np.ndarray) -> Roads:
    exists = to >= 0
    share = np.where(exists, np.exp(-np.maximum(distance - 1, 0)), 0.0)
    own = np.broadcast_to(np.arange(len(to))[:, None], to.shape)
    near = exists & (distance <= 1)
    return Roads(np.where(exists, to, own), share / share.sum(axis=1, keepdims=True), near)


def metres(latitudes: np.ndarray, longitudes: np.ndarray) -> np.ndarray:
    """Degrees as a plane `m 2` about their middle: true to a metre over a town."""
    middle = np.radians(latitudes.mean())
    east = np.radians(longitudes - longitudes.mean()) * np.cos(middle)
    return EARTH * np.stack([east, np.radians(latitudes - latitudes.mean())], axis=1)


@dataclass(frozen=True)
class Belief:
    """Where the camera is thought to be after a frame."""

    places: np.ndarray  # m: probability of each image
    lost: float
    mass: np.ndarray  # m: probability of each image and those within one reach of it: of its place

    @property
    def best(self) -> int:
        """The likeliest image; of equals the first."""
        return int(self.places.argmax())

    @property
    def confidence(self) -> float:
        return float(self.mass[self.best]) if len(self.mass) else 0.0


class SequenceFilter:
    """The forward filter: give it a frame's scores, it says where the camera is. It looks at no later frame."""

    def __init__(self, roads: Roads, spec: SequenceSpec | None = None) -> None:
        if roads.images < 2:
            raise BadSpec(f"a sequence needs a map of at least 2 images, this one has {roads.images}")
        self.roads, self.spec = roads, spec or SequenceSpec()
        self._flat = roads.to.ravel()
        self.reset()

    def reset(self) -> None:
        """Before the first frame the camera may be anywhere, or outside the map, as after a frame of being lost."""
        found = self.spec.being_found
        self._places = np.full(self.roads.images, found / self.roads.images)
        self._lost, self._moved = 1 - found, True

    def update(self, scores: np.ndarray) -> Belief:
        """With the scores `m` of the next frame."""
        places, lost = self._predicted()
        logs = log_likelihood(scores, self.spec.trust)
        top = max(float(logs.max()), 0.0)  # of the largest factor, so that none overflows
        places, lost = places * np.exp(logs - top), lost * math.exp(-top)
        total = float(places.sum()) + lost
        return self._believe(places / total, lost / total)

    def skip(self) -> Belief:
        """A frame that could not be read: the camera moves unseen."""
        return self._believe(*self._predicted())

    def _predicted(self) -> tuple[np.ndarray, float]:
        if self._moved:  # nothing happens before the first frame
            return self._places, self._lost
        count, spec = self.roads.images, self.spec
        moved = np.bincount(self._flat, (self._places[:, None] * self.roads.share).ravel(), minlength=count)
        places = (1 - spec.getting_lost) * moved + self._lost * spec.being_found / count
        lost = spec.getting_lost * float(self._places.sum()) + (1 - spec.being_found) * self._lost
        return places, lost

    def _believe(self, places: np.ndarray, lost: float) -> Belief:
        self._places, self._lost, self._moved = places, lost, False
        mass = np.where(self.roads.near, places[self.roads.to], 0.0).sum(axis=1)
        return Belief(places, lost, mass.clip(max=1.0))


def log_likelihood(scores: np.ndarray, trust: float) -> np.ndarray:
    """log L of every image `m`; of a frame whose scores are all equal, which is no evidence, 0."""
    row = np.asarray(scores, np.float64)[None]
    mean, spread = mean_and_spread(row)
    if spread[0] <= EPSILON:
        return np.zeros(row.shape[1])
    height = math.sqrt(2 * math.log(row.shape[1]))
    return trust * (height * z_scores(row[0], mean, spread) - height**2 / 2)
