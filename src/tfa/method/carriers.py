"""The carriers: what of the spectrum a score carries. One literal table, `CARRIERS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from tfa.errors import BadSpec
from tfa.method.spectrum import smooth_step


@dataclass(frozen=True)
class KernelTerm:
    """One term of a score: `weight · ⟨f, f'⟩` with f = v (gamma None) or φ_γ."""

    weight: float
    gamma: float | None


def weighted_sum(weighted: Iterable[tuple[float, np.ndarray]]) -> np.ndarray:
    """Σ weight · scores: of the terms of a kernel, or of several kernels."""
    return reduce(np.add, (weight * scores for weight, scores in weighted))


def _adaptive(c: float, beta: float) -> tuple[KernelTerm, ...]:
    """S_A = (1−ℓ(c))[(1−ℓ(β)) S_0 + ℓ(β) S_c] + ℓ(c) S_w(c).

    Terms of weight zero are left out, so that S_A at c = β = 0 is S_0 bit for bit.
    """
    shaping, centring = smooth_step(c), smooth_step(beta)
    terms = (
        KernelTerm((1 - shaping) * (1 - centring), None),
        KernelTerm((1 - shaping) * centring, 0.0),
        KernelTerm(shaping, c),
    )
    return tuple(term for term in terms if term.weight > 0)


# Name → terms at strengths c and β. Only the adaptive carrier has strengths.
CARRIERS: dict[str, Callable[[float, float], tuple[KernelTerm, ...]]] = {
    "original": lambda c, beta: (KernelTerm(1.0, None),),  # S_0
    "partial": lambda c, beta: (KernelTerm(1.0, 0.5),),  # S_P = S_w(1/2)
    "adaptive": _adaptive,
}


def carrier_terms(carrier: str, c: float = 0.0, beta: float = 0.0) -> tuple[KernelTerm, ...]:
    """The terms of a carrier's score."""
    if carrier not in CARRIERS:
        raise BadSpec(f"carrier={carrier!r} is unknown; use one of {', '.join(CARRIERS)}")
    return CARRIERS[carrier](c, beta)
