"""The decisions of the database-only controller, in words, with the numbers that made them."""

from __future__ import annotations

from tfa.method.controllers.decisions import SpectralStrengths
from tfa.method.evidence import Candidate
from tfa.method.spectrum import smooth_step


def of_assignment(hard: Candidate, soft: Candidate) -> str:
    numbers = f"hard reaches {hard.support:.1f} distinct images, soft {soft.support:.1f}"
    if hard.beats(soft):
        return f"hard: {numbers}, and its three vocabularies do not agree less in every pair ({_gain(hard, soft)})"
    if hard.support <= soft.support:
        return f"soft: {numbers}; hard is taken only if it covers more of the map"
    return f"soft: {numbers}, but hard's vocabularies agree less in every pair ({_gain(hard, soft)})"


def of_strengths(strengths: SpectralStrengths) -> str:
    rho = ", ".join(f"{value:.4f}" for value in strengths.rho)
    return (
        f"spectral shaping c = {strengths.c:.4f} (weight {smooth_step(strengths.c):.4f}) and centring "
        f"β = {strengths.beta:.4f}: the energy of the two halves of the map correlates {rho} over the three "
        f"vocabularies, at a spectral width of {min(strengths.participation):.1f} to "
        f"{max(strengths.participation):.1f}"
    )


def of_global_token(has_cls: bool, fused: Candidate | None, local: Candidate) -> str:
    if not has_cls:
        return "left out: the encoder gives no global token"
    if fused is None:
        return "left out: its scores or the local ones do not vary over the map"
    numbers = f"with it {fused.support:.1f} distinct images, without {local.support:.1f}"
    if fused.beats(local):
        return f"used: {numbers}, and agreement is not lowered in every pair ({_gain(fused, local)})"
    if fused.support <= local.support:
        return f"left out: {numbers}; it must cover more of the map"
    return f"left out: {numbers}, but the vocabularies agree less in every pair ({_gain(fused, local)})"


def of_carrier(carrier: str, original: Candidate, partial: Candidate, adaptive: Candidate) -> str:
    numbers = (
        f"distinct images: original {original.support:.1f}, partial whitening {partial.support:.1f}, "
        f"adaptive {adaptive.support:.1f}"
    )
    if carrier == "original":
        why = f"whitening covers no more of the map and agrees less in every pair ({_gain(partial, original)})"
    elif carrier == "partial" and partial.support > adaptive.support:
        why = "partial whitening covers more of the map than the adaptive kernel"
    elif carrier == "partial":
        why = f"the adaptive kernel covers more, but agrees less in every pair ({_gain(adaptive, partial)})"
    elif adaptive.support == partial.support:
        why = "a tie with partial whitening keeps the adaptive kernel"
    else:
        why = f"the adaptive kernel covers more and does not agree less in every pair ({_gain(adaptive, partial)})"
    return f"{carrier}: {why}; {numbers}"


def _gain(one: Candidate, other: Candidate) -> str:
    return f"largest change {one.gain_over(other):+.3f}"
