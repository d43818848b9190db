"""The decisions of the target-calibrated controller, in words, with the numbers that made them."""

from __future__ import annotations

from collections.abc import Mapping

from tfa.method.controllers.decisions import SpectralStrengths
from tfa.method.controllers.reasons import of_carrier as database_reason
from tfa.method.controllers.target_decisions import GlobalEvidence, RouteEvidence
from tfa.method.evidence import Candidate
from tfa.method.residuals import HARD
from tfa.method.spectrum import smooth_step


def of_route(route: str, soft_weight: float, evidence: RouteEvidence) -> str:
    views = (
        f"soft minus hard is {_gap(evidence.m_A, evidence.interval_A)} in anchor mass and "
        f"{_gap(evidence.m_G, evidence.interval_G)} in whole descriptors"
    )
    capacity = "log capacity ratio {:+.3f} to {:+.3f}".format(*evidence.interval_capacity)
    if route == HARD and evidence.interval_A[1] < 0 and evidence.interval_G[1] < 0:
        return f"hard: both views of the relation favour it; {views}"
    if route == HARD:
        return f"hard: soft keeps less information ({capacity}) and both views lean the same way; {views}"
    if route == "mixture":
        return f"mixture with {soft_weight:.3f} of soft: the anchor-mass view favours soft; {views}"
    return f"soft: there is no reason to discard evidence; {views}; {capacity}"


def of_strengths(strengths: Mapping[str, SpectralStrengths]) -> str:
    sentences = []
    for name, value in strengths.items():
        rho = ", ".join(f"{number:.4f}" for number in value.rho)
        sentences.append(
            f"{name}: c = {value.c:.4f} (weight {smooth_step(value.c):.4f}), β = {value.beta:.4f}; spectral energy of "
            f"target and map correlates {rho}"
        )
    return "; ".join(sentences)


def of_carrier(carrier: str, candidates: Mapping[str, Candidate]) -> str:
    reason = database_reason(carrier, candidates["original"], candidates["partial"], candidates["adaptive"])
    return f"{reason} (on the target photos)"


def of_global_token(token: GlobalEvidence | None, admitted: bool, scaled: bool) -> str:
    if token is None:
        return "left out: there is no global token"
    if not scaled:
        return "left out: its scores or the local ones do not vary over the map"
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


def of_score(images: int) -> str:
    return f"on: each map image's mean score on {images} target photos is subtracted (ours)"


def _gap(median: float, interval: tuple[float, float]) -> str:
    return f"{median:+.3f} ({interval[0]:+.3f} to {interval[1]:+.3f})"
