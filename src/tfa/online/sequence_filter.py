"""A filter over the images of a map along a drive: motion between frames, and the probability of each image.

How a camera moves along a map from one frame to the next (ours, beyond the paper).

A camera that drives keeps its pace: it is part of what is believed, beside the place.

    in driving order   T_v(δ) ∝ exp(−max(|δ − v| / b − 1, 0)),   |δ| ≤ 30,   b = max(½, |v| / 4)
                       v ∈ {0, ±½, ±1, ±2, ±3, ±5, ±8} images a frame; forward and back are paces of their own
    by position        the same with δ = |distance| / usual step and v ≥ 0: where photos are in no order there is no
                       forward or back

Shares of an image add up to one, also at the ends of a map. Both are linear in the number of images.

Sequences (ours, beyond the paper): where a camera is, frame after frame, from what single frames say.

A hidden Markov model whose states are a pace with an image of the map, and one more, *lost* (outside the map):

    move     T((v, i) → (v, j)) = (1 − ε) T_v(j − i)    see `motion`; before a move the pace is drawn anew with
             probability η;   T(· → lost) = ε,   T(lost → lost) = 1 − ρ,   T(lost → (v, j)) = ρ / (paces · m)
    see      log L(j) = κ (μ x_j − μ²/2),   L(lost) = 1,   μ = √(2 ln m)
             x = z + 4 (√M − √median M) of the images that were verified, z of the others,
                 and all of them + clip(3 (max √M − 1.3), −1, 0)
    filter   p_t(v, j) ∝ L(j) Σ_i T((v, i) → (v, j)) p_{t−1}(v, i)        from frames up to t alone

z is the z-score of an image in the frame's row of scores, M its evidence. L is the likelihood ratio of a normal score
of mean μ against one of mean 0: μ is the height that the best of m scores reaches by chance, so of a frame on its own
a place is likelier than *lost* exactly if its x is above it; a frame none of whose candidates has much evidence must
rise higher. κ < 1, because frames that follow each other err alike; smaller where x is sharpened by evidence. A frame
that shows what the one before it showed says nothing new and leaves the belief as it is: the caller passes it over.
Nothing is trained. Arrays in, arrays out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.sparse import csr_array
from scipy.spatial import cKDTree

from tfa.core.plain import Options, opt
from tfa.errors import BadSpec
from tfa.method.evidence import ROW_EPSILON, mean_and_spread, z_scores
from tfa.verification.reranking import UNVERIFIED, WEIGHT, Reranked

# --- motion ---------------------------------------------------------------------------------------

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


# --- sequence filter ------------------------------------------------------------------------------

PLENTY, PER_ROOT, MOST_OFF = 1.3, 3.0, 1.0  # √M below which x is lowered, by how much of it, and at most


class SequenceSpec(Options):
    """How a camera moves and errs; all numbers are ours."""

    p_lost: float = opt(0.02, "ε: probability that a frame leaves the map", ge=1e-9, le=0.5)
    p_recover: float = opt(0.1, "ρ: probability that a lost camera comes back with a frame", ge=1e-9, le=1.0)
    new_pace: float = opt(0.02, "η: probability that the pace is drawn anew with a frame", ge=1e-9, le=1.0)
    trust: float = opt(0.3, "κ: how much a verified frame counts beside the one before it", ge=1e-3, le=1.0)
    trust_unverified: float = opt(0.5, "κ of a frame that was not verified", ge=1e-3, le=1.0)
    reach: float = opt(2.0, "images (or usual steps) to each side that are the same place", ge=0.0)
    still: float = opt(
        0.05, "of the stream's variance: a frame nearer than that to the one before shows the same", ge=0.0
    )


@dataclass(frozen=True)
class Belief:
    """Where the camera is thought to be after a frame."""

    places: np.ndarray  # m: probability of each image
    lost: float
    mass: np.ndarray  # m: probability of each image and those within reach of it: of its place

    @property
    def best(self) -> int:
        """The likeliest image; of equals the first."""
        return int(self.places.argmax())

    @property
    def confidence(self) -> float:
        return float(self.mass[self.best])

    @property
    def is_lost(self) -> bool:
        """Is being lost likelier than the best place?"""
        return self.lost > self.confidence


class SequenceFilter:
    """The forward filter: give it what a frame says, it says where the camera is. It looks at no later frame."""

    def __init__(self, motion: Motion, spec: SequenceSpec | None = None) -> None:
        self.motion, self.spec = motion, spec or SequenceSpec()
        self.reset()

    def reset(self) -> None:
        """Before the first frame the camera may be anywhere, or outside the map, as after a frame of being lost."""
        found, states = self.spec.p_recover, (self.motion.paces, self.motion.images)
        self._believed = np.full(states, found / math.prod(states))  # v m
        self._lost, self._first = 1 - found, True

    def update(self, scores: np.ndarray, ranked: Reranked | None = None) -> Belief:
        """Update with the scores `m` of the next frame and, if verified, its best images (a table of one row)."""
        verified = ranked is not None and bool((ranked.inliers != UNVERIFIED).any())
        seen = observe_frame(scores, ranked if verified else None)
        logs = compute_log_likelihood(seen, self.spec.trust if verified else self.spec.trust_unverified)
        believed, lost = self._predicted()
        top = max(float(logs.max()), 0.0)  # of the largest factor, so that none overflows
        believed, lost = believed * np.exp(logs - top), lost * math.exp(-top)
        total = float(believed.sum()) + lost
        return self._believe(believed / total, lost / total)

    def skip(self) -> Belief:
        """A frame that could not be read: the camera moves unseen."""
        return self._believe(*self._predicted())

    def belief(self) -> Belief:
        """Return the belief after the last frame."""
        places = self._believed.sum(axis=0)
        return Belief(places, self._lost, self.motion.around(places).clip(max=1.0))

    def follow_edit(self, motion: Motion, before: np.ndarray, ids: np.ndarray) -> None:
        """The map's images were `before` and are `ids` now, both growing, and move as `motion` says.

        What was believed of an image that is gone goes to the nearest that stays, in the map's order.
        """
        known = np.flatnonzero(np.isin(ids, before))
        old, self.motion = self._believed, motion
        if motion.paces != len(old) or not len(known):
            self.reset()
            return
        right = np.searchsorted(ids[known], before).clip(max=len(known) - 1)
        left = (right - 1).clip(min=0)
        nearer = np.where(abs(ids[known[left]] - before) < abs(ids[known[right]] - before), left, right)
        self._believed = np.zeros((motion.paces, motion.images))
        for own, was in zip(self._believed, old, strict=True):
            own += np.bincount(known[nearer], was, minlength=motion.images)

    def _predicted(self) -> tuple[np.ndarray, float]:
        if self._first:  # nothing happens before the first frame
            return self._believed, self._lost
        spec, states = self.spec, self._believed.size
        anywhere = self._believed.sum(axis=0)
        paced = (1 - spec.new_pace) * self._believed + spec.new_pace / self.motion.paces * anywhere
        believed = (1 - spec.p_lost) * self.motion.moved(paced) + self._lost * spec.p_recover / states
        lost = spec.p_lost * float(anywhere.sum()) + (1 - spec.p_recover) * self._lost
        return believed, lost

    def _believe(self, believed: np.ndarray, lost: float) -> Belief:
        self._believed, self._lost, self._first = believed, lost, False
        return self.belief()


def observe_frame(scores: np.ndarray, ranked: Reranked | None = None) -> np.ndarray:
    """Compute x of every image `m`; where all scores are equal, which is no evidence, nan."""
    row = np.asarray(scores, np.float64)[None]
    mean, spread = mean_and_spread(row)
    if not np.isfinite(spread[0]) or spread[0] <= ROW_EPSILON:
        return np.full(row.shape[1], np.nan)
    seen = z_scores(row[0], mean, spread)
    if ranked is not None:
        compared = ranked.inliers[0] != UNVERIFIED
        seen[ranked.indices[0, compared]] += WEIGHT * ranked.lead[0, compared]
        best = math.sqrt(float(ranked.evidence[0, compared].max()))
        seen += min(max(PER_ROOT * (best - PLENTY), -MOST_OFF), 0.0)
    return seen


def compute_log_likelihood(seen: np.ndarray, trust: float) -> np.ndarray:
    """Compute log L of every image `m` from its x; of a frame that is no evidence, 0."""
    height = math.sqrt(2 * math.log(len(seen)))
    return np.nan_to_num(trust * (height * seen - height**2 / 2))
