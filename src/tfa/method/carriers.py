"""Carriers: how a score weighs the spectrum. Options, files and heads follow from literal tables.

To add a carrier, add it to `CARRIER_WORDS` and `CARRIER_KERNELS`, and its formula to `tfa.reference.second_order`.
`tfa.types` reads the names, so this module imports nothing heavy.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Literal, NamedTuple

from tfa.errors import BadSpec

if TYPE_CHECKING:
    import numpy as np

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


class Sigma(NamedTuple):
    """A spread σ: the median spread of a pseudo query's row under S_w(γ), or under S_0 if γ is None."""

    gamma: float | None
    symbol: str  # symbol of the scores
    words: str


# By their names in a map. Carriers with several terms scale them by these spreads.
SIGMAS: Mapping[str, Sigma] = {
    "sigma_original": Sigma(None, "S_0", "spread of the plain scores, per construction"),
    "sigma_partial": Sigma(0.5, "S_P", "spread of the partly whitened scores"),
    "sigma_tempered": Sigma(TEMPERED, "S_⅝", "spread of scores whitened a little more"),
}


@dataclass(frozen=True)
class KernelTerm:
    """One term of a score: `weight · ⟨f, f'⟩` with f = v (gamma None) or φ_γ."""

    weight: float
    gamma: float | None


def weighted_sum(weighted: Iterable[tuple[float, np.ndarray]]) -> np.ndarray:
    """Return Σ weight · scores over the terms of a kernel, or over several kernels."""
    return reduce(operator.add, (weight * scores for weight, scores in weighted))


def smooth_step(t: float) -> float:
    """Return ℓ(t) = sin²(πt/2), from 0 to 1 with flat ends."""
    return math.sin(math.pi * t / 2) ** 2


@dataclass(frozen=True)
class _Strengths:
    """Parameters of a carrier's terms."""

    c: float = 0.0  # strength of spectral shaping
    beta: float = 0.0  # strength of centering
    sigmas: Mapping[str, float] = field(default_factory=dict)  # by the names of `SIGMAS`

    def sigma(self, name: str) -> float:
        """Return a spread; 1 if none was measured, or if it is 0 because all images are identical."""
        if self.sigmas and name not in self.sigmas:
            raise BadSpec(f"this map is older than the carrier and holds no {name}; build it again, or choose another")
        return self.sigmas.get(name) or 1.0


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
    """½ (S_0/σ_0 + S_P/σ_P)."""
    return KernelTerm(0.5 / of.sigma("sigma_original"), None), KernelTerm(0.5 / of.sigma("sigma_partial"), 0.5)


def _tempered(of: _Strengths) -> tuple[KernelTerm, ...]:
    """⅔ S_0/σ_0 + ⅓ S_w(⅝)/σ_⅝: the default without calibration, see docs/explanation/choosing-the-head.md."""
    original, tempered = of.sigma("sigma_original"), of.sigma("sigma_tempered")
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
    carrier: str, c: float = 0.0, beta: float = 0.0, sigmas: Mapping[str, float] | None = None
) -> tuple[KernelTerm, ...]:
    """Return the terms of a carrier's score."""
    if carrier not in CARRIER_KERNELS:
        raise BadSpec(f"carrier={carrier!r} is unknown; use one of {', '.join(CARRIER_KERNELS)}")
    return CARRIER_KERNELS[carrier](_Strengths(c, beta, sigmas or {}))
