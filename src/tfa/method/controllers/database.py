"""The database-only controller (TFA): every decision from the database's own photos, before any query exists.

It takes fitted database branches and database global tokens; it has no parameter that could take a query.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfa.base.backend import Backend
from tfa.base.progress import Progress, SilentProgress, track_progress
from tfa.method.branch import Branches, DatabaseBranch, ScoreBlock
from tfa.method.carriers import PAPER_CARRIERS, carrier_terms
from tfa.method.controllers.decisions import DatabaseEvidence, Decisions, SpectralStrengths
from tfa.method.controllers.reasons import explain_assignment, explain_carrier, explain_global_token, explain_strengths
from tfa.method.controllers.rules import METHOD_RULES, Rules
from tfa.method.evidence.support import Candidate, correlate
from tfa.method.pseudo_queries import every_cosine, every_score, pseudo_facts, pseudo_tops, take_median_spread
from tfa.method.pseudo_queries import fuse_blocks as fuse
from tfa.method.residuals import ASSIGNMENT_KINDS, HARD
from tfa.method.vocabulary import CONSTRUCTIONS


@dataclass(frozen=True)
class BranchEvidence:
    """What the pseudo queries say of one assignment under one construction."""

    tops: dict[str, np.ndarray]  # carrier → p
    sigma_local: float
    sigma_cls: float
    fused: np.ndarray | None  # p: of S_A and the global token; None where there is none or a scale is zero


def decide_from_database(
    branches: Branches,
    cls: np.ndarray | None,
    backend: Backend,
    progress: Progress | None = None,
    rules: Rules = METHOD_RULES,
) -> tuple[Decisions, DatabaseEvidence]:
    """All decisions, in the method's order: strengths, assignment, global token, carrier."""
    strengths = {a: measure_strengths([branches[a, s] for s in CONSTRUCTIONS]) for a in ASSIGNMENT_KINDS}

    split = branches[HARD, 0].split
    similar = None if cls is None else every_cosine(cls, split)
    seen: dict[tuple[str, int], BranchEvidence] = {}
    keys = [(assignment, s) for assignment in ASSIGNMENT_KINDS for s in CONSTRUCTIONS]
    for a, s in track_progress(keys, len(keys), "evidence", progress or SilentProgress()):
        seen[a, s] = _collect_evidence(branches[a, s], strengths[a], similar, backend)
    candidates = {
        f"{a}/{m}": Candidate.of(f"{a}/{m}", np.stack([seen[a, s].tops[m] for s in CONSTRUCTIONS]))
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
        fused = candidates[name] = Candidate.of(name, np.stack(fused_tops))
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
    # Reasons are those of the method's rules; a decision made by another rule is not explained by them.
    given = words if rules == METHOD_RULES else {}
    return decisions, DatabaseEvidence(len(split.pseudo), strengths, candidates, given)


def measure_strengths(branches: list[DatabaseBranch]) -> SpectralStrengths:
    """c and β of one assignment, from the reproducibility of spectral energy between the database's halves."""
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
    """Top-1 answers under each carrier, and under S_A together with the global token.

    All from one computation of S_A: which assignment is chosen, and so whether its fusion is needed, is only
    known at the end, but fusing costs no product.
    """
    count, images, mask = len(branch.split.pseudo), branch.split.images, branch.mask
    tops = {}
    for carrier in ("original", "partial"):
        block = every_score(branch, carrier_terms(carrier), backend)
        tops[carrier] = pseudo_tops(block, mask, count, images)
    block = every_score(branch, carrier_terms("adaptive", strengths.c, strengths.beta), backend)
    facts = pseudo_facts(block, count, mask, images)
    tops["adaptive"] = facts.top
    # σ: median over pseudo queries of a row's spread, so that two branches of unlike scale can be added.
    sigma_local, sigma_cls, fused = take_median_spread(facts), 0.0, None
    if similar is not None:
        sigma_cls = take_median_spread(pseudo_facts(similar, count, mask, images))
    if similar is not None and sigma_local > 0 and sigma_cls > 0:  # ours: a zero scale refuses admission
        fused = pseudo_tops(fuse(block, similar, 0.5, sigma_local, sigma_cls), mask, count, images)
    branch.release()
    return BranchEvidence(tops, sigma_local, sigma_cls, fused)
