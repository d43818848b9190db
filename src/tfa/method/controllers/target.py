"""The target-calibrated controller (TFA-C64, any budget, full-query): a few unlabelled target photos decide.

Vocabularies and PCA stay the database's. What the target photos say is always compared with what the database's
own pseudo queries reach, so that a hard map and an easy one are judged alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tfa.base.backend import Backend
from tfa.base.progress import Progress, SilentProgress
from tfa.method.branch import Branches
from tfa.method.carriers import PAPER_CARRIERS, carrier_terms
from tfa.method.controllers.decisions import (
    MIXTURE,
    BranchQuality,
    GlobalEvidence,
    RouteEvidence,
    SpectralStrengths,
    TargetDecisions,
    TargetEvidence,
)
from tfa.method.controllers.reasons import (
    explain_carrier,
    explain_route,
    explain_target_strengths,
    explain_target_token,
)
from tfa.method.controllers.rules import METHOD_RULES, Rules
from tfa.method.controllers.target_kernels import (
    BranchKernel,
    PseudoRows,
    ScoreKernel,
    TargetBranch,
    VectorKernel,
    branch_relation,
)
from tfa.method.evidence.information import bootstrap_interval, extreme_support, measure_information, middle_interval
from tfa.method.evidence.relation import Subsamples
from tfa.method.evidence.rows import ROW_EPSILON, RowFacts, row_facts
from tfa.method.evidence.support import Candidate, Mask, correlate
from tfa.method.pseudo_queries import pseudo_facts, take_median_spread
from tfa.method.residuals import ASSIGNMENT_KINDS, HARD, SOFT, Described
from tfa.method.vocabulary import CONSTRUCTIONS

Targets = Mapping[tuple[str, int], TargetBranch]


def decide_from_target(
    branches: Branches,
    described: Mapping[tuple[str, int], Described],
    cls: np.ndarray | None,
    target_cls: np.ndarray | None,
    backend: Backend,
    progress: Progress | None = None,
    rules: Rules = METHOD_RULES,
) -> tuple[TargetDecisions, TargetEvidence]:
    """All decisions, in the method's order: route, strengths, carrier, global token."""
    with (progress or SilentProgress()).task("calibration", 4) as task:
        targets = {key: TargetBranch.of(branches[key], described[key], backend) for key in branches}
        task.advance()
        counted = select_counted(branches)
        samples = Subsamples.draw(len(targets[SOFT, 0].products), int(counted.sum()))
        route_evidence = judge_route(targets, samples, counted, backend)
        route = rules.route(route_evidence)
        soft_weight = {HARD: 0.0, SOFT: 1.0}.get(route, mixture_weight(route_evidence.m_A))
        weights = {HARD: 1 - soft_weight, SOFT: soft_weight} if route == MIXTURE else {route: 1.0}
        task.advance()

        strengths = {a: target_strengths([targets[a, s] for s in CONSTRUCTIONS]) for a in weights}
        kernels: dict[str, list[ScoreKernel]] = {}
        for m in PAPER_CARRIERS:  # under mixture every carrier is mixed
            terms = {a: carrier_terms(m, strengths[a].c, strengths[a].beta) for a in weights}
            used = [[(weight, targets[a, s], terms[a]) for a, weight in weights.items()] for s in CONSTRUCTIONS]
            kernels[m] = [BranchKernel(branches_used, backend) for branches_used in used]
        scores = {m: [kernel.target_scores() for kernel in kernels[m]] for m in PAPER_CARRIERS}
        candidates = {m: Candidate.of(m, np.stack([rows.argmax(axis=1) for rows in scores[m]])) for m in PAPER_CARRIERS}
        carrier = rules.carrier(*(candidates[m] for m in PAPER_CARRIERS))
        task.advance()

        masks = [Mask.union(*(branches[a, s].mask for a in weights)) for s in CONSTRUCTIONS]
        split = branches[SOFT, 0].split
        pseudo = PseudoRows(split.images, split.pseudo, masks, counted)
        facts = [
            pseudo_facts(kernel.pseudo_block(), len(split.pseudo), mask)
            for kernel, mask in zip(kernels["adaptive"], masks, strict=True)
        ]
        sigma_local = tuple(take_median_spread(rows) for rows in facts)
        sigma_cls: tuple[float, ...] = (0.0, 0.0, 0.0)
        token = None
        if cls is not None and target_cls is not None:
            similar = VectorKernel(cls, target_cls, split.pseudo)
            cls_facts = [pseudo_facts(similar.pseudo_block(), len(split.pseudo), mask) for mask in masks]
            sigma_cls = tuple(take_median_spread(rows) for rows in cls_facts)
            local = ScoreBranch(kernels["adaptive"], scores["adaptive"], facts)
            whole = ScoreBranch([similar] * len(masks), [similar.target_scores()] * len(masks), cls_facts)
            token = judge_global_token(local, whole, pseudo, samples)
        scaled = min(sigma_local) > 0 and min(sigma_cls) > 0  # ours: a zero scale refuses admission
        admit = token is not None and scaled and rules.target_token(token)
        task.advance()
    decisions = TargetDecisions(
        route=route,
        soft_weight=soft_weight,
        strengths={a: {"c": strengths[a].c, "beta": strengths[a].beta} for a in weights},
        carrier=carrier,
        admit_cls=admit,
        local_weight=0.5 if token is None else local_share(token.local.Q, token.cls.Q),
        sigma_local=sigma_local,
        sigma_cls=sigma_cls,
    )
    words = {
        "route": explain_route(route, soft_weight, route_evidence),
        "strengths": explain_target_strengths(strengths),
        "carrier": f"{explain_carrier(carrier, *(candidates[m] for m in PAPER_CARRIERS))} (on the target photos)",
        "admit_cls": explain_target_token(token, admit, scaled),
    }
    # Reasons are those of the method's rules; a decision made by another rule is not explained by them.
    given = words if rules == METHOD_RULES else {}
    count = len(targets[SOFT, 0].products)
    evidence = TargetEvidence(count, int(counted.sum()), route_evidence, strengths, candidates, token, given)
    return decisions, evidence


def select_counted(branches: Branches) -> np.ndarray:
    """Which pseudo queries count: those with something left to answer in every branch."""
    split = branches[SOFT, 0].split
    counted = np.ones(len(split.pseudo), dtype=bool)
    for branch in branches.values():
        counted &= np.bincount(branch.mask.rows, minlength=len(counted)) < split.images
    return counted


# --- route -----------------------------------------------------------------------------------------------------


def judge_route(targets: Targets, samples: Subsamples, counted: np.ndarray, backend: Backend) -> RouteEvidence:
    """Capacity of both assignments, and their relation in the views of anchor mass (A) and whole descriptors (G)."""
    original = carrier_terms("original")
    split = targets[SOFT, 0].branch.split
    per_image, reference = {}, {}
    relation: dict[tuple[str, str], np.ndarray] = {}
    for assignment in ASSIGNMENT_KINDS:
        tops, pseudo_tops = [], []
        joint: dict[str, list[np.ndarray]] = {"A": [], "G": []}
        masks = [targets[assignment, s].branch.mask for s in CONSTRUCTIONS]
        rows = PseudoRows(split.images, split.pseudo, masks, counted)
        for s in CONSTRUCTIONS:
            target = targets[assignment, s]
            branch = target.branch
            views: dict[str, ScoreKernel] = {
                "A": VectorKernel(branch.described.mass, target.described.mass, split.pseudo),
                "G": BranchKernel([(1.0, target, original)], backend),
            }
            for name, kernel in views.items():
                joint_values, reached = branch_relation(kernel, kernel.target_scores(), rows, s, samples)
                joint[name].append(joint_values)
            tops.append(target.products.argmax(axis=1))
            pseudo_tops.append(reached)  # in view G, the last one
            branch.release()
        per_image[assignment] = measure_information(np.stack(tops), split.images)
        reference[assignment] = (
            float(measure_information(np.stack(pseudo_tops), split.images).mean()) if counted.any() else 0.0
        )
        for name, values in joint.items():
            relation[assignment, name] = np.mean(values, axis=0)
    gain = {name: relation[SOFT, name] - relation[HARD, name] for name in ("A", "G")}
    mean = {a: float(per_image[a].mean()) for a in ASSIGNMENT_KINDS}
    return RouteEvidence(
        information_target=mean,
        information_database=reference,
        capacity={a: mean[a] / (reference[a] + ROW_EPSILON) for a in ASSIGNMENT_KINDS},
        interval_capacity=bootstrap_interval(per_image[SOFT], per_image[HARD], reference[SOFT], reference[HARD]),
        m_A=float(np.median(gain["A"])),
        m_G=float(np.median(gain["G"])),
        interval_A=middle_interval(gain["A"]),
        interval_G=middle_interval(gain["G"]),
    )


def mixture_weight(m_A: float) -> float:
    """w_S = sin²(π(δ+1)/4), δ = clip(m_A, −1, 1): equal shares when the views see no difference."""
    return float(np.sin(np.pi * (np.clip(m_A, -1, 1) + 1) / 4) ** 2)


# --- strengths -------------------------------------------------------------------------------------------------


def target_strengths(targets: list[TargetBranch]) -> SpectralStrengths:
    """c and β of one assignment, from how far the target photos keep the database's spectral energy and mean."""
    return SpectralStrengths.of(
        [correlate(*target.energies()) for target in targets],
        [target.branch.geometry.participation for target in targets],
        [target.displacement() for target in targets],
    )


# --- global token: quality, retention, and a rescue for what complements -----------------------------------------


@dataclass(frozen=True)
class ScoreBranch:
    """Local patches or the global token: in each construction its kernel, target scores and pseudo-query rows."""

    kernels: Sequence[ScoreKernel]
    scores: Sequence[np.ndarray]
    pseudo_facts: Sequence[RowFacts]


def judge_global_token(local: ScoreBranch, cls: ScoreBranch, pseudo: PseudoRows, samples: Subsamples) -> GlobalEvidence:
    """Both branches' qualities, their ratios, and the correlation of their row spreads."""
    local_rows, cls_rows = ([row_facts(scores.copy()) for scores in branch.scores] for branch in (local, cls))
    ours, theirs = _quality(local, local_rows, pseudo, samples), _quality(cls, cls_rows, pseudo, samples)
    return GlobalEvidence(
        local=ours,
        cls=theirs,
        r_T=theirs.T / (ours.T + ROW_EPSILON),
        r_C=theirs.B / (ours.B + ROW_EPSILON),
        r_J=float(np.sqrt(theirs.B * theirs.J) / (np.sqrt(ours.B * ours.J) + ROW_EPSILON)),
        corr=tuple(correlate(a.spread, b.spread) for a, b in zip(local_rows, cls_rows, strict=True)),
    )


def _quality(
    branch: ScoreBranch, target_rows: Sequence[RowFacts], pseudo: PseudoRows, samples: Subsamples
) -> BranchQuality:
    images, counted = pseudo.images, pseudo.counted
    tops = np.stack([rows.top for rows in target_rows])
    pseudo_tops = np.stack([rows.top[counted] for rows in branch.pseudo_facts])
    kept = measure_information(tops, images).mean()
    reference = measure_information(pseudo_tops, images).mean() if pseudo_tops.shape[1] else 0.0
    information_kept = max(float(min(kept, reference)), 0.0)
    joint = [
        branch_relation(kernel, scores, pseudo, s, samples)[0]
        for s, (kernel, scores) in enumerate(zip(branch.kernels, branch.scores, strict=True))
    ]
    relation = float(np.median(np.mean(joint, axis=0)))
    support = extreme_support(tops, images)
    retention = [
        float(target.peak.mean() / (rows.peak[counted].mean() + ROW_EPSILON)) if counted.any() else 0.0
        for target, rows in zip(target_rows, branch.pseudo_facts, strict=True)
    ]
    quality = float(np.cbrt(information_kept * relation * support))
    return BranchQuality(information_kept, relation, support, quality, float(np.mean(retention)))


def local_share(local: float, cls: float) -> float:
    """Q_l / (Q_l + Q_g); ½ if both are zero."""
    return local / (local + cls) if local + cls > 0 else 0.5
