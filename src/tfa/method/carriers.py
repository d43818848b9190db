"""The carriers: what of the spectrum a score carries. One literal table, `CARRIERS`."""

from __future__ import annotations

from dataclasses import dataclass

from tfa.method.spectrum import smooth_step


@dataclass(frozen=True)
class KernelTerm:
    """One term of a score: `weight · ⟨f, f'⟩` with f = v (gamma None) or φ_γ."""

    weight: float
    gamma: float | None


def carrier_terms(carrier: str, c: float = 0.0, beta: float = 0.0) -> tuple[KernelTerm, ...]:
    """The terms of S_0, S_P = S_w(1/2) or S_A = (1−ℓ(c))[(1−ℓ(β)) S_0 + ℓ(β) S_c] + ℓ(c) S_w(c).

    Terms of weight zero are left out, so that S_A at c = β = 0 is S_0 bit for bit.
    """
    if carrier == "original":
        return (KernelTerm(1.0, None),)
    if carrier == "partial":
        return (KernelTerm(1.0, 0.5),)
    shaping, centring = smooth_step(c), smooth_step(beta)
    terms = (
        KernelTerm((1 - shaping) * (1 - centring), None),
        KernelTerm((1 - shaping) * centring, 0.0),
        KernelTerm(shaping, c),
    )
    return tuple(term for term in terms if term.weight > 0)


CARRIERS = ("original", "partial", "adaptive")
