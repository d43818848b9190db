"""How far from the truth positions are: of the places that answers were fused to, and of the best answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa_bench.evaluation.judgement import Run

AGREED = 0.9  # of the shares: from there on answers agree, as confidence is enough for a sure answer from there on


@dataclass(frozen=True)
class Spread:
    """Of distances in metres."""

    median: float
    ninety: float  # 90 % are at most so far

    @classmethod
    def of(cls, metres: np.ndarray) -> Spread:
        return cls(float(np.median(metres)), float(np.quantile(metres, 0.9)))


@dataclass(frozen=True)
class Metres:
    """Of queries whose true position and whose best answer's position are known. `fused` and `best` are of the same
    queries: those that have a place."""

    queries: int
    placed: int  # of them those that have a place
    fused: Spread | None
    within_radius: float | None  # share of the places whose radius holds the truth
    agreed: int  # of the placed those whose place has nine tenths of the shares
    fused_agreed: Spread | None
    best: Spread | None
    best_of_all: Spread  # also of queries that have no place

    def to_dict(self) -> dict[str, Any]:
        return {name: vars(value) if isinstance(value, Spread) else value for name, value in vars(self).items()}


def metres_of(run: Run) -> Metres | None:
    """Of one run; None where distances are not known."""
    known = [answer for answer in run.given if answer.hits and answer.hits[0].distance is not None]
    if not known:
        return None
    own = np.array([answer.hits[0].distance for answer in known], np.float64)
    away = np.array([np.nan if one.place is None else one.place.distance for one in known], np.float64)
    radius = np.array([np.nan if one.place is None else one.place.radius for one in known], np.float64)
    placed = np.isfinite(away)
    if not placed.any():
        return Metres(len(known), 0, None, None, 0, None, None, Spread.of(own))
    within = float((away[placed] <= radius[placed]).mean())
    fused, best = Spread.of(away[placed]), Spread.of(own[placed])
    agreed = np.array([one.place is not None and one.place.share >= AGREED for one in known])
    sharp = Spread.of(away[agreed]) if agreed.any() else None
    return Metres(len(known), int(placed.sum()), fused, within, int(agreed.sum()), sharp, best, Spread.of(own))
