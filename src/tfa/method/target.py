"""The target-calibrated controller: kernels of target photos with the map, and all decisions.

Target photos are unlabeled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tfa.core.arrays import Backend, l2_normalize, to_numpy
from tfa.core.progress import Progress, SilentProgress
from tfa.method.branch import Branches, DatabaseBranch, ScoreBlock, row_blocks
from tfa.method.carriers import PAPER_CARRIERS, KernelTerm, carrier_terms, weighted_sum
from tfa.method.database import (
    METHOD_RULES,
    Rules,
    explain_carrier,
    explain_route,
    explain_target_strengths,
    explain_target_token,
)
from tfa.method.decisions import (
    MIXTURE,
    BranchQuality,
    GlobalEvidence,
    RouteEvidence,
    SpectralStrengths,
    TargetDecisions,
    TargetEvidence,
)
from tfa.method.evidence import (
    ROW_EPSILON,
    Candidate,
    Mask,
    RelationView,
    RowFacts,
    Subsamples,
    bootstrap_interval,
    correlate,
    extreme_support,
    joint_scores,
    measure_information,
    middle_interval,
    relation_terms,
    row_facts,
)
from tfa.method.pseudo_queries import every_score, mix_blocks, pseudo_facts, take_median_spread
from tfa.method.residuals import ASSIGNMENT_KINDS, HARD, SOFT, Described
from tfa.method.spectrum import cross_products
from tfa.method.vocabulary import CONSTRUCTIONS

# --- target kernels -------------------------------------------------------------------------------


class ScoreKernel(Protocol):
    """A similarity of images."""

    def target_scores(self) -> np.ndarray:
        """Return scores (q, m) of target images with the database."""

    def target_gram(self) -> np.ndarray:
        """Return scores (q, q) of target images with each other."""

    def among(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return scores of database images with database images."""

    def pseudo_block(self) -> ScoreBlock:
        """Return scores of pseudo queries with the database, block by block."""


class VectorKernel:
    """Cosine of one vector per image."""

    def __init__(self, database: np.ndarray, target: np.ndarray, pseudo: np.ndarray) -> None:
        self.database, self.target = (
            l2_normalize(np.asarray(database, np.float64)),
            l2_normalize(np.asarray(target, np.float64)),
        )
        self.pseudo = pseudo

    def target_scores(self) -> np.ndarray:
        return self.target @ self.database.T

    def target_gram(self) -> np.ndarray:
        return self.target @ self.target.T

    def among(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return self.database[one] @ self.database[other].T

    def pseudo_block(self) -> ScoreBlock:
        return lambda start, stop: self.database[self.pseudo[start:stop]] @ self.database.T


@dataclass(frozen=True)
class TargetBranch:
    """Target images under the assignment and construction of a database branch."""

    branch: DatabaseBranch
    described: Described
    products: np.ndarray  # (q, m), float64, with the database
    gram: np.ndarray  # (q, q), float64
    coordinates: np.ndarray  # (q, r)

    @classmethod
    def of(cls, branch: DatabaseBranch, described: Described, backend: Backend) -> TargetBranch:
        products = cross_products(described.descriptors, branch.described.descriptors, backend)
        gram = cross_products(described.descriptors, described.descriptors, backend)
        with_anchors = products[:, branch.split.anchors]
        return cls(branch, described, products, gram, branch.geometry.coordinates(with_anchors))

    def scores(self, terms: Sequence[KernelTerm], backend: Backend) -> np.ndarray:
        """Return the kernel (q, m) of the target images with the database."""

        def similarity(gamma: float) -> np.ndarray:
            database = self.branch.features(gamma)
            return to_numpy(backend.put(self._shaped(gamma)) @ backend.put(database).T)

        return weighted_sum((t.weight, self.products if t.gamma is None else similarity(t.gamma)) for t in terms)

    def kernel(self, terms: Sequence[KernelTerm]) -> np.ndarray:
        """Return the kernel (q, q) of the target images with each other."""
        shaped = {term.gamma: self._shaped(term.gamma) for term in terms if term.gamma is not None}
        return weighted_sum(
            (t.weight, self.gram if t.gamma is None else shaped[t.gamma] @ shaped[t.gamma].T) for t in terms
        )

    def _shaped(self, gamma: float) -> np.ndarray:
        return self.branch.geometry.shaped(self.coordinates, gamma)

    def energies(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean squared coordinate on each axis, over the database and over the target images."""
        one, two = self.branch.half_energies()
        sizes = [len(half) for half in self.branch.split.halves]
        database = (one * sizes[0] + two * sizes[1]) / sum(sizes)
        return database, (self.coordinates**2).mean(axis=0)

    def displacement(self) -> float:
        """Return ‖mean_Q v − μ‖ / ‖μ‖ from products only; μ is the mean of the anchors."""
        geometry = self.branch.geometry
        mixed = float(self.products[:, self.branch.split.anchors].mean())
        squared = float(self.gram.mean()) - 2 * mixed + geometry.grand_mean
        return float(np.sqrt(max(squared, 0.0)) / max(np.sqrt(max(geometry.grand_mean, 0.0)), 1e-30))


class BranchKernel:
    """Weighted sum of branches under a carrier: one branch, or (1 − w)·S_hard + w·S_soft."""

    def __init__(self, used: Sequence[tuple[float, TargetBranch, Sequence[KernelTerm]]], backend: Backend) -> None:
        self.used, self.backend = used, backend

    def target_scores(self) -> np.ndarray:
        return weighted_sum((weight, target.scores(terms, self.backend)) for weight, target, terms in self.used)

    def target_gram(self) -> np.ndarray:
        return weighted_sum((weight, target.kernel(terms)) for weight, target, terms in self.used)

    def among(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return weighted_sum(
            (weight, target.branch.kernel_among(terms, one, other, self.backend)) for weight, target, terms in self.used
        )

    def pseudo_block(self) -> ScoreBlock:
        return mix_blocks(
            [(weight, every_score(target.branch, terms, self.backend)) for weight, target, terms in self.used]
        )


@dataclass(frozen=True)
class PseudoRows:
    """Pseudo queries, their masks in each construction, and which of them count."""

    images: int  # database images
    pseudo: np.ndarray
    masks: Sequence[Mask]
    counted: np.ndarray


def branch_relation(
    kernel: ScoreKernel, scores: np.ndarray, rows: PseudoRows, construction: int, samples: Subsamples
) -> tuple[np.ndarray, np.ndarray]:
    """Return J of each subsample under one kernel, and the top-1 answers of the pseudo queries that count.

    `scores` are `kernel.target_scores()`.
    """
    tops = scores.argmax(axis=1)
    target = RelationView(kernel.target_gram(), kernel.among(tops, tops), scores[:, tops])
    reference, reached = _pseudo_view(kernel, rows, construction)
    return joint_scores(relation_terms(target, samples.target), relation_terms(reference, samples.pseudo)), reached


def _pseudo_view(kernel: ScoreKernel, rows: PseudoRows, construction: int) -> tuple[RelationView, np.ndarray]:
    """Return the relation of the pseudo queries that count to their unmasked answers, and these answers."""
    pseudo, mask = rows.pseudo, rows.masks[construction]
    block = kernel.pseudo_block()
    scores = np.empty((len(pseudo), rows.images))
    for start, stop in row_blocks(len(pseudo)):
        scores[start:stop] = block(start, stop)
    scores[mask.rows, mask.columns] = -np.inf
    scores = scores[rows.counted]
    tops = scores.argmax(axis=1)
    queries = pseudo[rows.counted]
    return RelationView(kernel.among(queries, queries), kernel.among(tops, tops), scores[:, tops]), tops


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
    """Decide route, strengths, carrier and global token, in this order."""
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
        candidates = {m: Candidate.of(np.stack([rows.argmax(axis=1) for rows in scores[m]])) for m in PAPER_CARRIERS}
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
        scaled = min(sigma_local) > 0 and min(sigma_cls) > 0  # a zero scale rejects the token
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
    # The reasons explain the method's rules only, not custom rules.
    given = words if rules == METHOD_RULES else {}
    count = len(targets[SOFT, 0].products)
    evidence = TargetEvidence(count, int(counted.sum()), route_evidence, strengths, candidates, token, given)
    return decisions, evidence


def select_counted(branches: Branches) -> np.ndarray:
    """Return which pseudo queries count: those with an unmasked image in every branch."""
    split = branches[SOFT, 0].split
    counted = np.ones(len(split.pseudo), dtype=bool)
    for branch in branches.values():
        counted &= np.bincount(branch.mask.rows, minlength=len(counted)) < split.images
    return counted


# --- route -----------------------------------------------------------------------------------------------------


def judge_route(targets: Targets, samples: Subsamples, counted: np.ndarray, backend: Backend) -> RouteEvidence:
    """Measure capacity of both assignments, and relation in the views of anchor mass (A) and whole descriptors (G)."""
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
    """Return w_S = sin²(π(δ+1)/4), δ = clip(m_A, −1, 1); equal shares at m_A = 0."""
    return float(np.sin(np.pi * (np.clip(m_A, -1, 1) + 1) / 4) ** 2)


def target_strengths(targets: list[TargetBranch]) -> SpectralStrengths:
    """Compute c and β of one assignment from how well target photos keep the database's spectral energy and mean."""
    return SpectralStrengths.of(
        [correlate(*target.energies()) for target in targets],
        [target.branch.geometry.participation for target in targets],
        [target.displacement() for target in targets],
    )


# --- global token ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoreBranch:
    """Local patches or the global token: kernel, target scores and pseudo-query rows in each construction."""

    kernels: Sequence[ScoreKernel]
    scores: Sequence[np.ndarray]
    pseudo_facts: Sequence[RowFacts]


def judge_global_token(local: ScoreBranch, cls: ScoreBranch, pseudo: PseudoRows, samples: Subsamples) -> GlobalEvidence:
    """Measure the quality of both branches, their ratios, and the correlation of their row spreads."""
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
    """Return Q_l / (Q_l + Q_g); ½ if both are zero."""
    return local / (local + cls) if local + cls > 0 else 0.5
