"""The rules that turn evidence into decisions, each a function of the numbers alone.

`Rules()` is the method. An ablation replaces one of them and leaves the evidence and everything else as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tfa.method.controllers.decisions import MIXTURE, GlobalEvidence, RouteEvidence
from tfa.method.evidence.support import Candidate
from tfa.method.residuals import HARD, SOFT


def pick_assignment(hard: Candidate, soft: Candidate) -> str:
    return HARD if hard.beats(soft) else SOFT


def admit_database_token(fused: Candidate, local: Candidate) -> bool:
    """The global token is used where the fused score covers more without agreeing less in every pair."""
    return fused.beats(local)


def pick_carrier(original: Candidate, partial: Candidate, adaptive: Candidate) -> str:
    """The first rule that applies; an exact tie in support keeps the adaptive kernel."""
    if partial.support <= original.support and partial.gain_over(original) < 0:
        return "original"
    widened_in_vain = adaptive.support > partial.support and adaptive.gain_over(partial) < 0
    if partial.support > adaptive.support or widened_in_vain:
        return "partial"
    return "adaptive"


def pick_route(evidence: RouteEvidence) -> str:
    """Hard deletes evidence, so it needs both views, or lost capacity with both views leaning its way."""
    if evidence.interval_A[1] < 0 and evidence.interval_G[1] < 0:
        return HARD
    if evidence.interval_capacity[1] < 0 and evidence.m_A < 0 and evidence.m_G < 0:
        return HARD
    if evidence.interval_A[0] > 0:
        return MIXTURE
    return SOFT


def admit_target_token(token: GlobalEvidence) -> bool:
    """Quality with retention, or complementary where nothing collapses."""
    quality = token.cls.Q >= token.local.Q and token.r_T >= 1
    complements = all(value < 0 for value in token.corr)
    return quality or (complements and min(token.r_C, token.r_T, token.r_J) >= 1)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """One rule for each decision: the first three on database evidence, `carrier` on target evidence too."""

    assignment: Callable[[Candidate, Candidate], str] = pick_assignment  # hard, soft
    global_token: Callable[[Candidate, Candidate], bool] = admit_database_token  # fused, local
    carrier: Callable[[Candidate, Candidate, Candidate], str] = pick_carrier  # original, partial, adaptive
    route: Callable[[RouteEvidence], str] = pick_route
    target_token: Callable[[GlobalEvidence], bool] = admit_target_token


METHOD_RULES = Rules()
