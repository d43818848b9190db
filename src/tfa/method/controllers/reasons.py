"""The decisions of both controllers, in words, with the numbers that made them."""

from __future__ import annotations

from collections.abc import Mapping

from tfa.method.controllers.decisions import MIXTURE, GlobalEvidence, RouteEvidence, SpectralStrengths
from tfa.method.evidence.support import Candidate
from tfa.method.residuals import HARD
from tfa.method.spectrum import smooth_step

NO_SCALE = "left out: its scores or the local ones do not vary over the map"


def explain_assignment(hard: Candidate, soft: Candidate) -> str:
    numbers = f"hard reaches {hard.support:.1f} distinct images, soft {soft.support:.1f}"
    if hard.beats(soft):
        return f"hard: {numbers}, and its three vocabularies do not agree less in every pair ({_gain(hard, soft)})"
    if hard.support <= soft.support:
        return f"soft: {numbers}; hard is taken only if it covers more of the map"
    return f"soft: {numbers}, but hard's vocabularies agree less in every pair ({_gain(hard, soft)})"


def explain_strengths(strengths: SpectralStrengths) -> str:
    return (
        f"spectral shaping c = {strengths.c:.4f} (weight {smooth_step(strengths.c):.4f}) and centring "
        f"β = {strengths.beta:.4f}: the energy of the two halves of the map correlates {_rho(strengths)} over the "
        f"three vocabularies, at a spectral width of {min(strengths.participation):.1f} to "
        f"{max(strengths.participation):.1f}"
    )


def explain_global_token(has_cls: bool, fused: Candidate | None, local: Candidate) -> str:
    if not has_cls:
        return "left out: the encoder gives no global token"
    if fused is None:
        return NO_SCALE
    numbers = f"with it {fused.support:.1f} distinct images, without {local.support:.1f}"
    if fused.beats(local):
        return f"used: {numbers}, and agreement is not lowered in every pair ({_gain(fused, local)})"
    if fused.support <= local.support:
        return f"left out: {numbers}; it must cover more of the map"
    return f"left out: {numbers}, but the vocabularies agree less in every pair ({_gain(fused, local)})"


def explain_carrier(carrier: str, original: Candidate, partial: Candidate, adaptive: Candidate) -> str:
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


# --- with target photos ----------------------------------------------------------------------------------------


def explain_route(route: str, soft_weight: float, evidence: RouteEvidence) -> str:
    views = (
        f"soft minus hard is {_gap(evidence.m_A, evidence.interval_A)} in anchor mass and "
        f"{_gap(evidence.m_G, evidence.interval_G)} in whole descriptors"
    )
    capacity = "log capacity ratio {:+.3f} to {:+.3f}".format(*evidence.interval_capacity)
    if route == HARD and evidence.interval_A[1] < 0 and evidence.interval_G[1] < 0:
        return f"hard: both views of the relation favour it; {views}"
    if route == HARD:
        return f"hard: soft keeps less information ({capacity}) and both views lean the same way; {views}"
    if route == MIXTURE:
        return f"mixture with {soft_weight:.3f} of soft: the anchor-mass view favours soft; {views}"
    return f"soft: there is no reason to discard evidence; {views}; {capacity}"


def explain_target_strengths(strengths: Mapping[str, SpectralStrengths]) -> str:
    return "; ".join(
        f"{name}: c = {value.c:.4f} (weight {smooth_step(value.c):.4f}), β = {value.beta:.4f}; spectral energy of "
        f"target and map correlates {_rho(value)}"
        for name, value in strengths.items()
    )


def explain_target_token(token: GlobalEvidence | None, admitted: bool, scaled: bool) -> str:
    if token is None:
        return "left out: there is no global token"
    if not scaled:
        return NO_SCALE
    numbers = (
        f"quality {token.cls.Q:.3f} against {token.local.Q:.3f} of the local score, retention ratio {token.r_T:.2f}"
    )
    if admitted and token.cls.Q >= token.local.Q and token.r_T >= 1:
        return f"used: {numbers}"
    if admitted:
        return f"used: it complements the local score in every vocabulary and keeps as much; {numbers}"
    if token.cls.Q >= token.local.Q:
        return f"left out: it stands out less on target photos than on the map's own; {numbers}"
    return f"left out: {numbers}"


def explain_score_calibration(images: int) -> str:
    return f"on: each map image's mean score on {images} target photos is subtracted (ours)"


def _gain(one: Candidate, other: Candidate) -> str:
    return f"largest change {one.gain_over(other):+.3f}"


def _gap(median: float, interval: tuple[float, float]) -> str:
    return f"{median:+.3f} ({interval[0]:+.3f} to {interval[1]:+.3f})"


def _rho(strengths: SpectralStrengths) -> str:
    return ", ".join(f"{value:.4f}" for value in strengths.rho)
