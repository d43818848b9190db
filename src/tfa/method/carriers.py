"""The carriers: what of the spectrum a score carries. One literal table, `CARRIER_KERNELS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np

from tfa.errors import BadSpec
from tfa.method.spectrum import smooth_step

MEAN: Literal["mean"] = "mean"  # the part ⟨v, μ⟩ of a second-order S_0, see `scorer.SecondOrderSide`
Gamma = float | Literal["mean"] | None
TEMPERED = 0.625  # γ of the whitened part of the carrier `tempered`
CARRIER_WORDS = {
    "original": "no whitening",
    "partial": "partial whitening",
    "adaptive": "adaptive whitening",
    "blend": "half plain scores, half partly whitened scores",
    "tempered": "two thirds plain scores, one third whitened scores",
    "full": "full whitening",
}


@dataclass(frozen=True)
class KernelTerm:
    """One term of a score: `weight · ⟨f, f'⟩` with f = v (gamma None) or φ_γ."""

    weight: float
    gamma: float | None


def weighted_sum(weighted: Iterable[tuple[float, np.ndarray]]) -> np.ndarray:
    """Return Σ weight · scores over the terms of a kernel, or over several kernels."""
    return reduce(np.add, (weight * scores for weight, scores in weighted))


@dataclass(frozen=True)
class _Strengths:
    """What a carrier's terms depend on, beside its name."""

    c: float = 0.0  # strength of spectral shaping
    beta: float = 0.0  # strength of centring
    # σ_0, σ_P, σ_⅝: median spread of a pseudo query's row under S_0, S_P and S_w(⅝), which are brought to one scale.
    spreads: tuple[float, float, float] = (1.0, 1.0, 1.0)


def _adaptive(of: _Strengths) -> tuple[KernelTerm, ...]:
    """S_A = (1−ℓ(c))[(1−ℓ(β)) S_0 + ℓ(β) S_c] + ℓ(c) S_w(c).

    Terms of weight zero are left out, so that S_A at c = β = 0 is S_0 bit for bit.
    """
    shaping, centering = smooth_step(of.c), smooth_step(of.beta)
    terms = (
        KernelTerm((1 - shaping) * (1 - centering), None),
        KernelTerm((1 - shaping) * centering, 0.0),
        KernelTerm(shaping, of.c),
    )
    return tuple(term for term in terms if term.weight > 0)


def _blend(of: _Strengths) -> tuple[KernelTerm, ...]:
    """½ (S_0/σ_0 + S_P/σ_P); a spread of zero (all images identical) is left as it is."""
    original, partial, _ = (spread or 1.0 for spread in of.spreads)
    return KernelTerm(0.5 / original, None), KernelTerm(0.5 / partial, 0.5)


def _tempered(of: _Strengths) -> tuple[KernelTerm, ...]:
    """⅔ S_0/σ_0 + ⅓ S_w(⅝)/σ_⅝: the default without calibration, see docs/explanation/choosing-the-head.md."""
    original, _, tempered = (spread or 1.0 for spread in of.spreads)
    return KernelTerm(2 / 3 / original, None), KernelTerm(1 / 3 / tempered, TEMPERED)


# Name → terms. The first three are the paper's.
CARRIER_KERNELS: dict[str, Callable[[_Strengths], tuple[KernelTerm, ...]]] = {
    "original": lambda of: (KernelTerm(1.0, None),),  # S_0
    "partial": lambda of: (KernelTerm(1.0, 0.5),),  # S_P = S_w(1/2)
    "adaptive": _adaptive,
    "blend": _blend,
    "tempered": _tempered,
    "full": lambda of: (KernelTerm(1.0, 1.0),),  # S_w(1)
}
PAPER_CARRIERS = ("original", "partial", "adaptive")


def carrier_terms(
    carrier: str, c: float = 0.0, beta: float = 0.0, spreads: tuple[float, float, float] = (1.0, 1.0, 1.0)
) -> tuple[KernelTerm, ...]:
    """Return the terms of a carrier's score."""
    if carrier not in CARRIER_KERNELS:
        raise BadSpec(f"carrier={carrier!r} is unknown; use one of {', '.join(CARRIER_KERNELS)}")
    return CARRIER_KERNELS[carrier](_Strengths(c, beta, spreads))
