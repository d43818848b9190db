"""Filter a camera's position over the images of a map: motion between frames, and the probability of each image.

Motion. A moving camera keeps its pace, so the state is a pace and an image:

    in driving order   T_v(δ) ∝ exp(−max(|δ − v| / b − 1, 0)),   |δ| ≤ 30,   b = max(½, |v| / 4)
                       v ∈ {0, ±½, ±1, ±2, ±3, ±5, ±8} images per frame; forward and backward are different paces
    by position        the same with δ = distance / usual step and v ≥ 0: without an order there is no forward or
                       backward

The probabilities from each image sum to one, also at the ends of a map. The cost is linear in the number of images.

Filter. A hidden Markov model over these states and one more, *lost* (outside the map):

    move     T((v, i) → (v, j)) = (1 − ε) T_v(j − i);   before a move the pace is redrawn with probability η
             T(· → lost) = ε,   T(lost → lost) = 1 − ρ,   T(lost → (v, j)) = ρ / (paces · m)
    see      log L(j) = κ (μ x_j − μ²/2),   L(lost) = 1,   μ = √(2 ln m)
             x = z + 5 (√M − √median M) for reranked images, x = z for the others;
             then + clip(3 (max √M − 1.3), −1, 0) for all
    filter   p_t(v, j) ∝ L(j) Σ_i T((v, i) → (v, j)) p_{t−1}(v, i)        causal: frames up to t
    answer   the image with the largest p_t(j − 1) + p_t(j) + p_t(j + 1), summed over paces
    lag      p_{t−N}(v, i) times the probability of frames t − N + 1 … t after (v, i), normalized

z is the z-score of an image in the frame's row of scores, M its evidence. L is the likelihood ratio of a normal score
of mean μ to one of mean 0. The best of m scores reaches μ by chance, so in a single frame an image is likelier than
*lost* if its x is above μ; a frame without much evidence must reach higher. κ < 1 because consecutive frames have
correlated errors; it is smaller for reranked frames, whose x is sharper. The caller skips frames that show the same as
the last one. Arrays in, arrays out.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
import scipy  # loads its parts on first use

from tfa.core.plain import Options, opt
from tfa.errors import BadSpec
from tfa.method.evidence import ROW_EPSILON, mean_and_spread, z_scores
from tfa.verification.reranking import UNVERIFIED, Reranked

SPEEDS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0)  # images, or usual steps, per frame
PACES = tuple(sign * speed for speed in SPEEDS for sign in (1, -1) if speed or sign > 0)
MAX_STEPS_PER_FRAME = 30  # images, or usual steps, per frame
MIN_SHARE = math.exp(-12.0)  # smallest probability of a move by position, as a share of the likeliest move
_BESIDE = 1  # images, or usual steps, to each side whose probability counts for an answer
_CENTER_WEIGHT = 0.5  # additional weight of the image itself, so that a certain image ranks before its neighbors
_MAX_NEIGHBORS = 128  # images that a move by position can reach
EARTH_RADIUS = 6_371_000.0  # meters
_DRIVE_STEP = 0.25  # largest step in driving order, as a share of the median distance between images
_DRIVE_SHARE = 0.8  # share of the steps in driving order that are this short
_SAMPLED_PAIRS = 4096  # image pairs used to estimate the median distance


def weigh_moves(distance: np.ndarray, pace: float) -> np.ndarray:
    """Return T_v of moves, not normalized."""
    return np.exp(-np.maximum(np.abs(distance - pace) / max(0.5, abs(pace) / 4) - 1, 0))


class OrderMotion:
    """Motion along a map in driving order: each pace is a convolution. `reach` is in images to each side."""

    paces = len(PACES)

    def __init__(self, images: int, reach: float) -> None:
        self.images = _enough(images)
        moves = np.arange(-MAX_STEPS_PER_FRAME, MAX_STEPS_PER_FRAME + 1)
        self._shares = np.stack([weigh_moves(moves, pace) for pace in PACES])  # (v, 61)
        every = np.ones(images)
        # Moves beyond the ends of the map are redistributed over the moves within it.
        self._total = np.stack([self._along(every, shares[::-1]) for shares in self._shares])
        self._near, self._beside = np.ones(2 * math.floor(reach) + 1), np.ones(2 * _BESIDE + 1)

    def moved(self, believed: np.ndarray) -> np.ndarray:
        """Return probabilities (v, m) of pace and image one frame later."""
        leaving = believed / self._total
        return np.stack([self._along(own, shares) for own, shares in zip(leaving, self._shares, strict=True)])

    def move_back(self, likelihood: np.ndarray) -> np.ndarray:
        """Return the likelihood (v, m) before a move from the likelihood after it: the transpose of `moved`."""
        arriving = [self._along(own, shares[::-1]) for own, shares in zip(likelihood, self._shares, strict=True)]
        return np.stack(arriving) / self._total

    def around(self, places: np.ndarray) -> np.ndarray:
        """Return the probability (m,) of each image together with the images within reach."""
        return self._along(places, self._near)

    def beside(self, places: np.ndarray) -> np.ndarray:
        """Return the probability (m,) of each image together with its direct neighbors."""
        return self._along(places, self._beside)

    def _along(self, values: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        """Convolve with a kernel whose center is a move of 0, within the map."""
        start = len(kernel) // 2
        return np.convolve(values, kernel)[start : start + self.images]


class PositionMotion:
    """As `OrderMotion`, between images at `places` (m, 2), in meters, in any order; `reach` is in usual steps."""

    paces = len(SPEEDS)

    def __init__(self, places: np.ndarray, reach: float) -> None:
        self.images = _enough(len(places))
        step = estimate_step(places)
        to, distance = _nearest(places, MAX_STEPS_PER_FRAME * step)
        exists, distance = to >= 0, distance / step
        source = np.broadcast_to(np.arange(self.images)[:, None], to.shape)

        def matrix(share: np.ndarray, mask: np.ndarray) -> scipy.sparse.csr_array:
            """Return the transposed matrix, to multiply probabilities from the left."""
            return scipy.sparse.csr_array((share[mask], (to[mask], source[mask])), shape=(self.images, self.images))

        self._moves = []
        for speed in SPEEDS:
            share = np.where(exists, weigh_moves(np.where(exists, distance, np.inf), speed), 0.0)
            share[share < MIN_SHARE * share.max(axis=1, keepdims=True)] = 0.0
            self._moves.append(matrix(share / share.sum(axis=1, keepdims=True), share > 0))
        ones = np.ones(to.shape)
        self._near = matrix(ones, exists & (distance <= reach)).T.tocsr()
        self._beside = matrix(ones, exists & (distance <= _BESIDE)).T.tocsr()

    def moved(self, believed: np.ndarray) -> np.ndarray:
        return np.stack([moves @ own for moves, own in zip(self._moves, believed, strict=True)])

    def move_back(self, likelihood: np.ndarray) -> np.ndarray:
        return np.stack([moves.T @ own for moves, own in zip(self._moves, likelihood, strict=True)])

    def around(self, places: np.ndarray) -> np.ndarray:
        return self._near @ places

    def beside(self, places: np.ndarray) -> np.ndarray:
        return self._beside @ places


Motion = OrderMotion | PositionMotion


def choose_motion(images: int, places: np.ndarray | None, reach: float) -> Motion:
    """Choose motion by image order, or by positions (m, 2) if these are not in driving order."""
    if places is None or is_drive(places):
        return OrderMotion(images, reach)
    return PositionMotion(places, reach)


def is_drive(places: np.ndarray) -> bool:
    """Return True if images at `places` (m, 2) are in driving order: most steps are short for this map."""
    steps = np.linalg.norm(np.diff(places, axis=0), axis=1)
    pairs = np.random.default_rng(0).integers(len(places), size=(2, _SAMPLED_PAIRS))
    pairs = pairs[:, pairs[0] != pairs[1]]
    usual = float(np.median(np.linalg.norm(places[pairs[0]] - places[pairs[1]], axis=1))) if pairs.size else 0.0
    return bool(np.mean(steps <= _DRIVE_STEP * usual) >= _DRIVE_SHARE) if len(steps) else True


def estimate_step(places: np.ndarray) -> float:
    """Return the median distance to the second nearest other place; 1 with fewer than 3 places."""
    distinct = np.unique(places, axis=0)
    if len(distinct) < 3:
        return 1.0
    return float(np.median(scipy.spatial.cKDTree(distinct).query(distinct, k=3)[0][:, 2]))


def _nearest(places: np.ndarray, farthest: float) -> tuple[np.ndarray, np.ndarray]:
    """Return each image's nearest images and distances, itself first, padded with -1 and inf; ties by index."""
    count = min(_MAX_NEIGHBORS, len(places))
    to = np.full((len(places), count), -1)
    distance = np.full((len(places), count), np.inf)
    tree = scipy.spatial.cKDTree(places)
    last = tree.query(places, k=[count])[0][:, 0]
    # A slightly larger radius includes all ties with the last, however the tree rounds.
    candidates = tree.query_ball_point(places, np.minimum(last, farthest) * (1 + 1e-9), return_sorted=True)
    for image, listed in enumerate(candidates):
        others = np.array(listed)
        away = np.linalg.norm(places[image] - places[others], axis=-1)
        away[others == image] = -1.0  # the image itself precedes others at the same place
        order = np.argsort(away, kind="stable")[:count]
        order = order[away[order] <= farthest]
        to[image, : len(order)], distance[image, : len(order)] = others[order], away[order].clip(min=0)
    return to, distance


def project_to_meters(latitudes: np.ndarray, longitudes: np.ndarray) -> np.ndarray:
    """Project degrees to meters (m, 2) around their mean, accurate to a meter within a town."""
    middle = np.radians(latitudes.mean())
    east = np.radians(longitudes - longitudes.mean()) * np.cos(middle)
    return EARTH_RADIUS * np.stack([east, np.radians(latitudes - latitudes.mean())], axis=1)


def _enough(images: int) -> int:
    if images < 2:
        raise BadSpec(f"tracking a sequence needs a map of at least 2 images; this map has {images}")
    return images


PLENTY, PER_ROOT, MOST_OFF = 1.3, 3.0, 1.0  # √M below which x is lowered, the factor, and the limit


class SequenceSpec(Options):
    """Options of the sequence filter."""

    p_lost: float = opt(0.02, "ε: probability per frame that the camera leaves the map", ge=1e-9, le=0.5)
    p_recover: float = opt(0.1, "ρ: probability per frame that a lost camera returns", ge=1e-9, le=1.0)
    new_pace: float = opt(0.02, "η: probability per frame that the pace is redrawn", ge=1e-9, le=1.0)
    trust: float = opt(0.3, "κ: weight of a reranked frame", ge=1e-3, le=1.0)
    trust_unverified: float = opt(0.5, "κ: weight of a frame that was not reranked", ge=1e-3, le=1.0)
    reach: float = opt(2.0, "images (or usual steps) to each side that show the same place", ge=0.0)
    still: float = opt(0.05, "skip frames nearer to the last one than this share of the stream's variance", ge=0.0)


@dataclass(frozen=True)
class Belief:
    """Position of the camera after a frame, as probabilities."""

    places: np.ndarray  # (m,): probability of each image
    lost: float
    mass: np.ndarray  # (m,): probability of each image together with the images within reach
    rank: np.ndarray  # (m,): images are ranked by this, the probability of an image and its direct neighbors

    @property
    def best(self) -> int:
        """Index of the best-ranked image; ties go to the first."""
        return int(self.rank.argmax())

    @property
    def confidence(self) -> float:
        return float(self.mass[self.best])

    @property
    def is_lost(self) -> bool:
        """Whether being lost is likelier than the best image."""
        return self.lost > self.confidence


@dataclass(frozen=True)
class _Frame:
    """The filter after a frame, as a later frame needs it to look back."""

    believed: np.ndarray  # (v, m)
    lost: float
    seen: np.ndarray | float  # (m,): likelihood of the frame, up to a factor
    seen_lost: float
    moved: bool = True  # False: the camera stood still before this frame


class SequenceFilter:
    """Forward filter over frames. `look_back` answers an earlier frame, up to `lag` frames ago, by all frames since."""

    def __init__(self, motion: Motion, spec: SequenceSpec | None = None, lag: int = 0) -> None:
        self.motion, self.spec = motion, spec or SequenceSpec()
        self._frames: deque[_Frame] = deque(maxlen=lag + 1)
        self.reset()

    def reset(self) -> None:
        """Return to the prior: the camera may be anywhere or outside the map, as after a frame of being lost."""
        found, states = self.spec.p_recover, (self.motion.paces, self.motion.images)
        self._believed = np.full(states, found / math.prod(states))  # (v, m)
        self._lost, self._first = 1 - found, True
        self._frames.clear()

    def update(self, scores: np.ndarray, ranked: Reranked | None = None) -> Belief:
        """Update with the scores (m,) of the next frame and, if reranked, its best images (one row)."""
        verified = ranked is not None and bool((ranked.inliers != UNVERIFIED).any())
        seen = observe_frame(scores, ranked if verified else None)
        logs = compute_log_likelihood(seen, self.spec.trust if verified else self.spec.trust_unverified)
        believed, lost = self._predicted()
        top = max(float(logs.max()), 0.0)  # log of the largest factor, subtracted to avoid overflow
        seen, seen_lost = np.exp(logs - top), math.exp(-top)
        believed, lost = believed * seen, lost * seen_lost
        total = float(believed.sum()) + lost
        return self._believe(_Frame(believed / total, lost / total, seen, seen_lost))

    def skip(self) -> Belief:
        """Predict a frame that could not be read."""
        believed, lost = self._predicted()
        return self._believe(_Frame(believed, lost, 1.0, 1.0))

    def hold(self) -> Belief:
        """Keep the belief for a frame that shows the same as the last one."""
        return self._believe(_Frame(self._believed, self._lost, 1.0, 1.0, moved=False))

    def look_back(self, frames: int) -> Belief:
        """Return the belief about the frame `frames` ago, by all frames up to the last one."""
        then, *since = list(self._frames)[-frames - 1 :]
        likelihood, lost = np.ones(then.believed.shape), 1.0
        for frame in reversed(since):
            likelihood, lost = likelihood * frame.seen, lost * frame.seen_lost
            if frame.moved:
                likelihood, lost = self._before_move(likelihood, lost)
            top = max(float(likelihood.max()), lost)  # only ratios count; this avoids underflow
            likelihood, lost = likelihood / top, lost / top
        believed, lost = then.believed * likelihood, then.lost * lost
        total = float(believed.sum()) + lost
        return self._make_belief(believed / total, lost / total)

    def _make_belief(self, believed: np.ndarray, lost: float) -> Belief:
        places = believed.sum(axis=0)
        rank = self.motion.beside(places) + _CENTER_WEIGHT * places
        return Belief(places, lost, self.motion.around(places).clip(max=1.0), rank)

    def follow_edit(self, motion: Motion, before: np.ndarray, ids: np.ndarray) -> None:
        """Carry the belief over a map edit, from image ids `before` to `ids`, both ascending.

        The probability of a removed image moves to the nearest remaining id.
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
        self._frames.clear()

    def _predicted(self) -> tuple[np.ndarray, float]:
        if self._first:  # no motion before the first frame
            return self._believed, self._lost
        spec, states = self.spec, self._believed.size
        anywhere = self._believed.sum(axis=0)
        paced = (1 - spec.new_pace) * self._believed + spec.new_pace / self.motion.paces * anywhere
        believed = (1 - spec.p_lost) * self.motion.moved(paced) + self._lost * spec.p_recover / states
        lost = spec.p_lost * float(anywhere.sum()) + (1 - spec.p_recover) * self._lost
        return believed, lost

    def _before_move(self, likelihood: np.ndarray, lost: float) -> tuple[np.ndarray, float]:
        """Return the likelihood of each state and of *lost* before a move: the transpose of `_predicted`."""
        spec = self.spec
        arriving = (1 - spec.p_lost) * self.motion.move_back(likelihood)
        paced = (1 - spec.new_pace) * arriving + spec.new_pace / self.motion.paces * arriving.sum(axis=0)
        return paced + spec.p_lost * lost, spec.p_recover * float(likelihood.mean()) + (1 - spec.p_recover) * lost

    def _believe(self, frame: _Frame) -> Belief:
        self._believed, self._lost, self._first = frame.believed, frame.lost, False
        self._frames.append(frame)
        return self._make_belief(frame.believed, frame.lost)


def observe_frame(scores: np.ndarray, ranked: Reranked | None = None) -> np.ndarray:
    """Return x of every image, (m,); nan if all scores are equal."""
    row = np.asarray(scores, np.float64)[None]
    mean, spread = mean_and_spread(row)
    if not np.isfinite(spread[0]) or spread[0] <= ROW_EPSILON:
        return np.full(row.shape[1], np.nan)
    seen = z_scores(row[0], mean, spread)
    if ranked is not None:
        compared = ranked.inliers[0] != UNVERIFIED
        seen[ranked.indices[0, compared]] += ranked.lead[0, compared]
        best = math.sqrt(float(ranked.evidence[0, compared].max()))
        seen += min(max(PER_ROOT * (best - PLENTY), -MOST_OFF), 0.0)
    return seen


def compute_log_likelihood(seen: np.ndarray, trust: float) -> np.ndarray:
    """Return log L of every image, (m,), from x; 0 where x is nan."""
    height = math.sqrt(2 * math.log(len(seen)))
    return np.nan_to_num(trust * (height * seen - height**2 / 2))
