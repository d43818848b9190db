"""Route, strengths and carrier of the target-calibrated controller `tfa.reference.target`, in plain numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tfa.reference.database import PAIRS, Pca, dispersion_penalized, gain, support
from tfa.reference.relation import CARRIERS, Interval, Replica, pearson


def choose_route(capacity: Interval, median: dict[str, float], bounds: dict[str, Interval]) -> str:
    if bounds["A"][1] < 0 and bounds["G"][1] < 0:
        return "hard"
    if capacity[1] < 0 and median["A"] < 0 and median["G"] < 0:
        return "hard"
    return "mixture" if bounds["A"][0] > 0 else "soft"


def weight_of_soft(route: str, median: float) -> float:
    """Return w_S = sin²(π (clip(m_A,−1,1)+1) / 4) on the mixture route; 1 on the soft and 0 on the hard route."""
    if route != "mixture":
        return 1.0 if route == "soft" else 0.0
    return math.sin(math.pi * (min(max(median, -1.0), 1.0) + 1) / 4) ** 2


@dataclass(frozen=True)
class Strengths:
    rho: list[float]
    alpha: list[float]
    displacement: list[float]
    c: float
    beta: float


def transfer_strengths(database: list[np.ndarray], target: list[np.ndarray], pcas: list[Pca]) -> Strengths:
    """Return c = L(α) and β = clip(median_s ‖mean_Q v − μ_s‖/‖μ_s‖ · (1 − L(ρ)), 0, 1)."""
    rho, alpha, moved = [], [], []
    for d, q, pca in zip(database, target, pcas, strict=True):
        rho.append(pearson((pca.coordinates(d) ** 2).mean(axis=0), (pca.coordinates(q) ** 2).mean(axis=0)))
        nu = np.linalg.eigvalsh(d @ d.T)
        alpha.append(float(np.clip(rho[-1], 0, 1) ** (2 * nu.sum() ** 2 / (nu**2).sum())))
        moved.append(float(np.linalg.norm(q.mean(axis=0) - pca.mean)) / max(float(np.linalg.norm(pca.mean)), 1e-30))
    beta = float(np.clip(np.median(moved) * (1 - dispersion_penalized(np.array(rho))), 0, 1))
    return Strengths(rho, alpha, moved, dispersion_penalized(np.array(alpha)), beta)


def choose_carrier(top: dict[str, np.ndarray]) -> str:
    """Apply the carrier rule to top-1 images (s, q) of the three carriers."""
    original, partial, adaptive = (top[name] for name in CARRIERS)
    if support(partial) <= support(original) and gain(partial, original) < 0:
        return "original"
    if support(partial) > support(adaptive):
        return "partial"
    if support(adaptive) > support(partial) and gain(adaptive, partial) < 0:
        return "partial"
    return "adaptive"


def agreement(top: np.ndarray) -> tuple[float, float, float]:
    """Return A^{ss'} of the pairs (0,1), (0,2), (1,2)."""
    one, two, three = (float((top[s] == top[t]).mean()) for s, t in PAIRS)
    return one, two, three


@dataclass(frozen=True)
class Local:
    """The local score: one assignment, or S_m = (1−w_S) S_m^hard + w_S S_m^soft, each with its own c and β."""

    soft_weight: float
    strengths: dict[str, tuple[float, float]]  # (c, β) of the assignments in use
    pcas: dict[str, list[Pca]]

    def scores(self, carrier: str, one: Replica, other: Replica, s: int) -> np.ndarray:
        parts = {}
        for a, (c, beta) in self.strengths.items():
            parts[a] = self.pcas[a][s].carrier(carrier, one[a], other[a], c, beta)
        if len(parts) == 1:
            return next(iter(parts.values()))
        return (1 - self.soft_weight) * parts["hard"] + self.soft_weight * parts["soft"]
