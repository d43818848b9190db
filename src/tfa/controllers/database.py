"""The database-only controller (TFA): every decision from the database's own photos, before any query exists.

It takes fitted database branches and database global tokens; there is no argument a query could come in by.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfa.arrays import Backend
from tfa.branches import Branch, PseudoScores, global_similarities, median_spread, pseudo_facts
from tfa.branches import fused as fuse
from tfa.controllers import reasons
from tfa.controllers.decisions import DatabaseEvidence, Decisions, SpectralStrengths
from tfa.controllers.rules import METHOD, Rules
from tfa.evidence import Candidate, RowFacts, correlation
from tfa.geometry import CARRIERS, carrier_terms
from tfa.progress import Progress, SilentProgress, tracked
from tfa.residuals import ASSIGNMENTS
from tfa.vocabulary import CONSTRUCTIONS

Branches = Mapping[tuple[str, int], Branch]


def decide(
    branches: Branches,
    cls: np.ndarray | None,
    backend: Backend,
    progress: Progress | None = None,
    rules: Rules = METHOD,
) -> tuple[Decisions, DatabaseEvidence]:
    """All decisions, in the method's order: strengths, assignment, global token, carrier."""
    strengths = {a: spectral_strengths([branches[a, s] for s in CONSTRUCTIONS]) for a in ASSIGNMENTS}

    facts: dict[tuple[str, str], list[RowFacts]] = {}
    pairs = [(assignment, carrier) for assignment in ASSIGNMENTS for carrier in CARRIERS]
    for assignment, carrier in tracked(pairs, len(pairs), "evidence", progress or SilentProgress()):
        c, beta = strengths[assignment].c, strengths[assignment].beta
        facts[assignment, carrier] = [
            _branch_facts(branches[assignment, s], carrier, c, beta, backend) for s in CONSTRUCTIONS
        ]
    candidates = {f"{a}/{m}": Candidate.of(f"{a}/{m}", _tops(rows)) for (a, m), rows in facts.items()}

    assignment = rules.assignment(candidates["hard/adaptive"], candidates["soft/adaptive"])
    chosen = [branches[assignment, s] for s in CONSTRUCTIONS]
    c, beta = strengths[assignment].c, strengths[assignment].beta

    local = candidates[f"{assignment}/adaptive"]
    # σ: median over pseudo queries of a row's spread, so that two branches of unlike scale can be added.
    sigma_local = tuple(median_spread(rows) for rows in facts[assignment, "adaptive"])
    sigma_cls: tuple[float, ...] = (0.0, 0.0, 0.0)
    fused = None
    if cls is not None:
        similar = global_similarities(cls, chosen[0].split.pseudo)
        count = len(chosen[0].split.pseudo)
        sigma_cls = tuple(median_spread(pseudo_facts(similar, count, branch.mask)) for branch in chosen)
        if min(sigma_local) > 0 and min(sigma_cls) > 0:
            name = f"{assignment}/adaptive+cls"
            terms = carrier_terms("adaptive", c, beta)
            rows = []
            for branch, of_local, of_cls in zip(chosen, sigma_local, sigma_cls, strict=True):
                block = fuse(PseudoScores(branch, terms, backend).block, similar, 0.5, of_local, of_cls)
                rows.append(pseudo_facts(block, count, branch.mask))
                branch.release()
            fused = candidates[name] = Candidate.of(name, _tops(rows))
    admit_cls = fused is not None and rules.global_token(fused, local)

    original, partial = candidates[f"{assignment}/original"], candidates[f"{assignment}/partial"]
    carrier = rules.carrier(original, partial, local)
    decisions = Decisions(
        assignment=assignment,
        carrier=carrier,
        admit_cls=admit_cls,
        c=c,
        beta=beta,
        sigma_local=sigma_local,
        sigma_cls=sigma_cls,
    )
    words = {
        "assignment": reasons.of_assignment(candidates["hard/adaptive"], candidates["soft/adaptive"]),
        "strengths": reasons.of_strengths(strengths[assignment]),
        "admit_cls": reasons.of_global_token(cls is not None, fused, local),
        "carrier": reasons.of_carrier(carrier, original, partial, local),
    }
    # Reasons are those of the method's rules; a decision made by another rule is not explained by them.
    told = words if rules == METHOD else {}
    return decisions, DatabaseEvidence(len(chosen[0].split.pseudo), strengths, candidates, told)


def spectral_strengths(branches: list[Branch]) -> SpectralStrengths:
    """c and β of one assignment, from the reproducibility of spectral energy between the database's halves."""
    strengths = SpectralStrengths.of(
        [correlation(*branch.half_energies()) for branch in branches],
        [branch.geometry.participation for branch in branches],
        [branch.half_displacement for branch in branches],
    )
    for branch in branches:
        branch.release()
    return strengths


def _branch_facts(branch: Branch, carrier: str, c: float, beta: float, backend: Backend) -> RowFacts:
    scores = PseudoScores(branch, carrier_terms(carrier, c, beta), backend)
    facts = pseudo_facts(scores.block, len(branch.split.pseudo), branch.mask)
    branch.release()
    return facts


def _tops(rows: list[RowFacts]) -> np.ndarray:
    return np.stack([facts.top for facts in rows])
