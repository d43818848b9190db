"""Sequences (ours, beyond the paper): where a camera is, frame after frame, from what single frames say.

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

import numpy as np

from tfa.base.config import Spec, option
from tfa.method.evidence.rows import ROW_EPSILON, mean_and_spread, z_scores
from tfa.online.motion import Motion
from tfa.verification.reranking import UNVERIFIED, WEIGHT, Reranked

PLENTY, PER_ROOT, MOST_OFF = 1.3, 3.0, 1.0  # √M below which x is lowered, by how much of it, and at most


@dataclass(frozen=True, kw_only=True)
class SequenceSpec(Spec):
    """How a camera moves and errs; all numbers are ours."""

    p_lost: float = option(0.02, "ε: probability that a frame leaves the map", low=1e-9, high=0.5)
    p_recover: float = option(0.1, "ρ: probability that a lost camera comes back with a frame", low=1e-9, high=1.0)
    new_pace: float = option(0.02, "η: probability that the pace is drawn anew with a frame", low=1e-9, high=1.0)
    trust: float = option(0.3, "κ: how much a verified frame counts beside the one before it", low=1e-3, high=1.0)
    trust_unverified: float = option(0.5, "κ of a frame that was not verified", low=1e-3, high=1.0)
    reach: float = option(2.0, "images (or usual steps) to each side that are the same place", low=0.0)
    still: float = option(
        0.05, "of the stream's variance: a frame nearer than that to the one before shows the same", low=0.0
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
