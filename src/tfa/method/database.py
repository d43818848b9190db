"""The database-only controller of TFA: rules, reasons in words, and all decisions.

It takes fitted database branches and global tokens. No parameter accepts queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from tfa.core.arrays import Backend
from tfa.core.progress import Progress, SilentProgress, track_progress
from tfa.method.branch import Branches, DatabaseBranch, ScoreBlock
from tfa.method.carriers import PAPER_CARRIERS, carrier_terms, smooth_step
from tfa.method.decisions import (
    AGREEMENT_PHOTOS,
    JOINT_PHOTOS,
    MIXTURE,
    SUPPORT_PHOTOS,
    DatabaseEvidence,
    Decisions,
    Flip,
    GlobalEvidence,
    RouteEvidence,
    SpectralStrengths,
)
from tfa.method.evidence import Candidate, correlate
from tfa.method.pseudo_queries import every_cosine, every_score, pseudo_facts, pseudo_tops, take_median_spread
from tfa.method.pseudo_queries import fuse_blocks as fuse
from tfa.method.residuals import ASSIGNMENT_KINDS, HARD, SOFT
from tfa.method.vocabulary import CONSTRUCTIONS

# --- rules ----------------------------------------------------------------------------------------


def pick_assignment(hard: Candidate, soft: Candidate) -> str:
    return HARD if hard.beats(soft) else SOFT


def admit_database_token(fused: Candidate, local: Candidate) -> bool:
    """Admit the global token if the fused score has more support and does not agree less in every pair."""
    return fused.beats(local)


def pick_carrier(original: Candidate, partial: Candidate, adaptive: Candidate) -> str:
    """Choose by the first rule that applies; an exact tie in support keeps the adaptive kernel."""
    if partial.support <= original.support and partial.gain_over(original) < 0:
        return "original"
    widened_in_vain = adaptive.support > partial.support and adaptive.gain_over(partial) < 0
    return "partial" if partial.support > adaptive.support or widened_in_vain else "adaptive"


def pick_route(evidence: RouteEvidence) -> str:
    """Choose the route. Hard discards evidence, so it needs both views, or less capacity of soft and both medians."""
    if evidence.interval_A[1] < 0 and evidence.interval_G[1] < 0:
        return HARD
    if evidence.interval_capacity[1] < 0 and evidence.m_A < 0 and evidence.m_G < 0:
        return HARD
    return MIXTURE if evidence.interval_A[0] > 0 else SOFT


def admit_target_token(token: GlobalEvidence) -> bool:
    """Admit the global token for its quality and retention, or if it complements the local score without loss."""
    quality = token.cls.Q >= token.local.Q and token.r_T >= 1
    complements = all(value < 0 for value in token.corr)
    return quality or (complements and min(token.r_C, token.r_T, token.r_J) >= 1)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """One rule per decision: the first three use database evidence, `carrier` also target evidence."""

    assignment: Callable[[Candidate, Candidate], str] = pick_assignment  # hard, soft
    global_token: Callable[[Candidate, Candidate], bool] = admit_database_token  # fused, local
    carrier: Callable[[Candidate, Candidate, Candidate], str] = pick_carrier  # original, partial, adaptive
    route: Callable[[RouteEvidence], str] = pick_route
    target_token: Callable[[GlobalEvidence], bool] = admit_target_token


METHOD_RULES = Rules()


# --- margins --------------------------------------------------------------------------------------

_NUDGES = (-1e-9, 0.0, 1e-9)  # before, at and past a threshold
Changes = Iterable[tuple[str, float, Sequence[Any]]]  # unit, size, changed arguments of a rule


def find_flips(rule: Callable[..., str | bool], *evidence: Any, photos: int = 1) -> dict[str, Flip]:
    """Return the smallest change of each unit that gives a rule of one decision another outcome.

    `evidence` are the arguments of the rule; support and agreement were measured on `photos` photos.
    """
    chosen, flips = rule(*evidence), dict[str, Flip]()
    for unit, size, changed in _CHANGES[type(evidence[0])](photos, *evidence):
        outcome = rule(*changed)
        if outcome != chosen and (unit not in flips or size < flips[unit].change):
            flips[unit] = Flip(size, outcome if isinstance(outcome, str) else "used" if outcome else "left out")
    joint = flips.pop(JOINT_PHOTOS, None)  # of interest only if it is smaller than a change of one number
    if joint is not None and all(joint.change < flip.change for flip in flips.values()):
        flips[JOINT_PHOTOS] = joint
    return flips


def _change_candidates(photos: int, *candidates: Candidate) -> Changes:
    """Move support, agreement or both of each candidate to every value at which it passes another one."""
    equal = all(min(one.agreement) == 1 for one in candidates)  # equal constructions cannot agree less
    for at, one in enumerate(candidates):
        # Photos of each change, and the changed value.
        supports, agreements = [(0.0, one.support)], [(0.0, one.agreement)]
        for other, nudge in product(candidates, _NUDGES):
            supports.append((abs(other.support - one.support), other.support + nudge))
            for step in () if equal else (-one.gain_over(other), other.gain_over(one)):  # D is not antisymmetric
                a, b, c = (value + step + nudge for value in one.agreement)
                agreements.append((photos * abs(step), (a, b, c)))
        for (i, (wider, support)), (j, (closer, agreement)) in product(enumerate(supports), enumerate(agreements)):
            unit = JOINT_PHOTOS if i and j else AGREEMENT_PHOTOS if j else SUPPORT_PHOTOS
            changed = replace(one, support=support, agreement=agreement)
            # A photo with another answer may change both numbers, so a joint change is the larger one.
            yield unit, max(wider, closer), [*candidates[:at], changed, *candidates[at + 1 :]]


def _change_route(photos: int, e: RouteEvidence) -> Changes:
    """Shift both ends and the median of a view, or the interval of the capacity, so that one of them passes 0."""
    for view, nudge in product("AG", _NUDGES):
        (low, high), median = (e.interval_A, e.m_A) if view == "A" else (e.interval_G, e.m_G)
        for value in (low, high, median):
            ends, middle = (low - value + nudge, high - value + nudge), median - value + nudge
            moved = replace(e, interval_A=ends, m_A=middle) if view == "A" else replace(e, interval_G=ends, m_G=middle)
            yield "relation", abs(value), [moved]
    low, high = e.interval_capacity
    for nudge in _NUDGES:
        yield "log capacity", abs(high), [replace(e, interval_capacity=(low - high + nudge, nudge))]


def _change_token(photos: int, e: GlobalEvidence) -> Changes:
    for nudge in _NUDGES:
        yield "quality", abs(e.local.Q - e.cls.Q), [replace(e, cls=replace(e.cls, Q=e.local.Q + nudge))]
        yield "ratio", abs(e.r_T - 1), [replace(e, r_T=1 + nudge)]
        yield "ratio", abs(e.r_C - 1), [replace(e, r_C=1 + nudge)]
        yield "ratio", abs(e.r_J - 1), [replace(e, r_J=1 + nudge)]
        largest = max(e.corr)
        yield "correlation", abs(largest), [replace(e, corr=tuple(value - largest + nudge for value in e.corr))]


_CHANGES: Mapping[type, Callable[..., Changes]] = {
    Candidate: _change_candidates,
    RouteEvidence: _change_route,
    GlobalEvidence: _change_token,
}


# --- reasons --------------------------------------------------------------------------------------

NO_SCALE = "left out: its scores or the local scores do not vary over the map"


def explain_assignment(hard: Candidate, soft: Candidate) -> str:
    numbers = f"hard reaches {hard.support:.1f} distinct images, soft {soft.support:.1f}"
    if hard.beats(soft):
        return f"hard: {numbers}, and its three vocabularies do not agree less in every pair ({_gain(hard, soft)})"
    if hard.support <= soft.support:
        return f"soft: {numbers}; hard is used only if it covers more of the map"
    return f"soft: {numbers}, but hard's vocabularies agree less in every pair ({_gain(hard, soft)})"


def explain_strengths(strengths: SpectralStrengths) -> str:
    return (
        f"spectral shaping c = {strengths.c:.4f} (weight {smooth_step(strengths.c):.4f}) and centering "
        f"β = {strengths.beta:.4f}: the energy of the two halves of the map correlates {_rho(strengths)} over the "
        f"three vocabularies, at a spectral width of {min(strengths.participation):.1f} to "
        f"{max(strengths.participation):.1f}"
    )


def explain_global_token(has_cls: bool, fused: Candidate | None, local: Candidate) -> str:
    if not has_cls:
        return "left out: the encoder has no global token"
    if fused is None:
        return NO_SCALE
    numbers = f"with it {fused.support:.1f} distinct images, without {local.support:.1f}"
    if fused.beats(local):
        return f"used: {numbers}, and the vocabularies do not agree less in every pair ({_gain(fused, local)})"
    if fused.support <= local.support:
        return f"left out: {numbers}; it must cover more of the map"
    return f"left out: {numbers}, but the vocabularies agree less in every pair ({_gain(fused, local)})"


def explain_carrier(carrier: str, original: Candidate, partial: Candidate, adaptive: Candidate) -> str:
    numbers = (
        f"distinct images: original {original.support:.1f}, partial whitening {partial.support:.1f}, "
        f"adaptive {adaptive.support:.1f}"
    )
    if carrier == "original":
        why = f"whitening does not cover more of the map and agrees less in every pair ({_gain(partial, original)})"
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
        f"soft minus hard is {_gap(evidence.m_A, evidence.interval_A)} for anchor mass and "
        f"{_gap(evidence.m_G, evidence.interval_G)} for whole descriptors"
    )
    capacity = "log capacity ratio {:+.3f} to {:+.3f}".format(*evidence.interval_capacity)
    if route == HARD and evidence.interval_A[1] < 0 and evidence.interval_G[1] < 0:
        return f"hard: both views favor it; {views}"
    if route == HARD:
        return f"hard: soft keeps less information ({capacity}) and both views lean toward hard; {views}"
    if route == MIXTURE:
        return f"mixture with {soft_weight:.3f} of soft: the anchor-mass view favors soft; {views}"
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
    numbers = f"quality {token.cls.Q:.3f}, local score {token.local.Q:.3f}, retention ratio {token.r_T:.2f}"
    if admitted and token.cls.Q >= token.local.Q and token.r_T >= 1:
        return f"used: {numbers}"
    if admitted:
        return f"used: it complements the local score in every vocabulary without loss; {numbers}"
    if token.cls.Q >= token.local.Q:
        return f"left out: it distinguishes target photos less well than map images; {numbers}"
    return f"left out: {numbers}"


def explain_score_calibration(images: int) -> str:
    return f"on: each map image's mean score on {images} target photos is subtracted"


def _gain(one: Candidate, other: Candidate) -> str:
    return f"largest change {one.gain_over(other):+.3f}"


def _gap(median: float, interval: tuple[float, float]) -> str:
    return f"{median:+.3f} ({interval[0]:+.3f} to {interval[1]:+.3f})"


def _rho(strengths: SpectralStrengths) -> str:
    return ", ".join(f"{value:.4f}" for value in strengths.rho)


# --- database -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BranchEvidence:
    """Evidence of the pseudo queries for one assignment under one construction."""

    tops: dict[str, np.ndarray]  # carrier → top-1 answers (p,)
    sigma_local: float
    sigma_cls: float
    fused: np.ndarray | None  # (p,): top-1 of S_A with the global token; None without one, or if a scale is zero


def decide_from_database(
    branches: Branches,
    cls: np.ndarray | None,
    backend: Backend,
    progress: Progress | None = None,
    rules: Rules = METHOD_RULES,
) -> tuple[Decisions, DatabaseEvidence]:
    """Decide strengths, assignment, global token and carrier, in this order."""
    strengths = {a: measure_strengths([branches[a, s] for s in CONSTRUCTIONS]) for a in ASSIGNMENT_KINDS}

    split = branches[HARD, 0].split
    similar = None if cls is None else every_cosine(cls, split)
    seen: dict[tuple[str, int], BranchEvidence] = {}
    keys = [(assignment, s) for assignment in ASSIGNMENT_KINDS for s in CONSTRUCTIONS]
    for a, s in track_progress(keys, len(keys), "evidence", progress or SilentProgress()):
        seen[a, s] = _collect_evidence(branches[a, s], strengths[a], similar, backend)
    candidates = {
        f"{a}/{m}": Candidate.of(np.stack([seen[a, s].tops[m] for s in CONSTRUCTIONS]))
        for a in ASSIGNMENT_KINDS
        for m in PAPER_CARRIERS
    }

    assignment = rules.assignment(candidates["hard/adaptive"], candidates["soft/adaptive"])
    chosen = [seen[assignment, s] for s in CONSTRUCTIONS]
    c, beta = strengths[assignment].c, strengths[assignment].beta

    local = candidates[f"{assignment}/adaptive"]
    fused = None
    fused_tops = [rows.fused for rows in chosen if rows.fused is not None]
    if len(fused_tops) == len(chosen):
        name = f"{assignment}/adaptive+cls"
        fused = candidates[name] = Candidate.of(np.stack(fused_tops))
    admit_cls = fused is not None and rules.global_token(fused, local)

    original, partial = candidates[f"{assignment}/original"], candidates[f"{assignment}/partial"]
    carrier = rules.carrier(original, partial, local)
    decisions = Decisions(
        assignment=assignment,
        carrier=carrier,
        admit_cls=admit_cls,
        c=c,
        beta=beta,
        sigma_local=tuple(rows.sigma_local for rows in chosen),
        sigma_cls=tuple(rows.sigma_cls for rows in chosen),
    )
    words = {
        "assignment": explain_assignment(candidates["hard/adaptive"], candidates["soft/adaptive"]),
        "strengths": explain_strengths(strengths[assignment]),
        "admit_cls": explain_global_token(cls is not None, fused, local),
        "carrier": explain_carrier(carrier, original, partial, local),
    }
    both, photos = (candidates["hard/adaptive"], candidates["soft/adaptive"]), len(split.pseudo)
    margins = {
        "assignment": find_flips(rules.assignment, *both, photos=photos),
        "admit_cls": {} if fused is None else find_flips(rules.global_token, fused, local, photos=photos),
        "carrier": find_flips(rules.carrier, original, partial, local, photos=photos),
    }
    # The reasons explain the method's rules only, not custom rules.
    given = words if rules == METHOD_RULES else {}
    return decisions, DatabaseEvidence(photos, strengths, candidates, given, margins)


def measure_strengths(branches: list[DatabaseBranch]) -> SpectralStrengths:
    """Compute c and β of one assignment from how well spectral energy agrees between the database's halves."""
    strengths = SpectralStrengths.of(
        [correlate(*branch.half_energies()) for branch in branches],
        [branch.geometry.participation for branch in branches],
        [branch.half_displacement for branch in branches],
    )
    for branch in branches:
        branch.release()
    return strengths


def _collect_evidence(
    branch: DatabaseBranch, strengths: SpectralStrengths, similar: ScoreBlock | None, backend: Backend
) -> BranchEvidence:
    """Collect top-1 answers under each carrier, and under S_A with the global token.

    The fusion is computed for both assignments, before one is chosen, because it reuses S_A and needs no product.
    """
    count, images, mask = len(branch.split.pseudo), branch.split.images, branch.mask
    tops = {}
    for carrier in ("original", "partial"):
        block = every_score(branch, carrier_terms(carrier), backend)
        tops[carrier] = pseudo_tops(block, mask, count, images)
    block = every_score(branch, carrier_terms("adaptive", strengths.c, strengths.beta), backend)
    facts = pseudo_facts(block, count, mask, images)
    tops["adaptive"] = facts.top
    # σ: median spread of a pseudo query's row, which makes branches of different scale comparable.
    sigma_local, sigma_cls, fused = take_median_spread(facts), 0.0, None
    if similar is not None:
        sigma_cls = take_median_spread(pseudo_facts(similar, count, mask, images))
    if similar is not None and sigma_local > 0 and sigma_cls > 0:  # a zero scale rejects the token
        fused = pseudo_tops(fuse(block, similar, 0.5, sigma_local, sigma_cls), mask, count, images)
    branch.release()
    return BranchEvidence(tops, sigma_local, sigma_cls, fused)
