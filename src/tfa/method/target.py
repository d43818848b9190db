"""The target-calibrated controller: kernels of target photos with the map, and all decisions.

Target photos are unlabeled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # loads its parts on first use

from tfa.core.arrays import Backend, Spill, l2_normalize, release, to_numpy
from tfa.core.progress import Progress, SilentProgress
from tfa.method.branch import Branches, DatabaseBranch, ScoreBlock, take_entries
from tfa.method.carriers import PAPER_CARRIERS, KernelTerm, carrier_terms, weighted_sum
from tfa.method.database import (
    METHOD_RULES,
    Rules,
    explain_carrier,
    explain_route,
    explain_target_strengths,
    explain_target_token,
    find_flips,
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
    sampled_terms,
)
from tfa.method.pseudo_queries import every_score, mix_blocks, pseudo_facts, pseudo_tops, take_median_spread
from tfa.method.residuals import ASSIGNMENT_KINDS, HARD, SOFT, Described
from tfa.method.spectrum import IMAGE_BLOCK, cross_products
from tfa.method.vocabulary import CONSTRUCTIONS
from tfa.search.gallery import find_duplicates, join_duplicates, tie_scores

_MANY_SCORES = 1 << 16  # scores after which pages are released; smaller parts are computed often


class VectorKernel:
    """Cosine of one vector per image; its methods are those of every `ScoreKernel`."""

    def __init__(self, database: np.ndarray, target: np.ndarray, pseudo: np.ndarray) -> None:
        self.database, self.target = (l2_normalize(np.asarray(one, np.float64)) for one in (database, target))
        # First of equal database images, (m,); None if all differ.
        self.pseudo, self.duplicates = pseudo, find_duplicates(self.database)
        self.target_duplicates = find_duplicates(self.target)

    def target_block(self) -> ScoreBlock:
        """Return scores of target images with the database, block by block."""
        return lambda start, stop: tie_scores(self.target[start:stop] @ self.database.T, self.duplicates)

    def target_scores(self, rows: np.ndarray, images: np.ndarray) -> np.ndarray:
        """Return scores of some target images with some database images."""
        scores = self.target[rows] @ self.database[images].T
        return tie_some(scores, self.target_duplicates, rows, self.duplicates, images)

    def target_gram(self, rows: np.ndarray) -> np.ndarray:
        """Return scores of some target images with each other."""
        target = self.target[rows]
        return target @ target.T

    def among(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return scores of database images with database images."""
        return self.database[one] @ self.database[other].T

    def pseudo_block(self) -> ScoreBlock:
        """Return scores of pseudo queries with the database, block by block."""
        queries, gallery = self.database[self.pseudo], self.database.T
        return lambda start, stop: tie_scores(queries[start:stop] @ gallery, self.duplicates)


@dataclass(frozen=True)
class TargetBranch:
    """Target images under the assignment and construction of a database branch. Large arrays are on disk."""

    branch: DatabaseBranch
    described: Described
    products: np.ndarray  # (q, m), float64, with the database
    coordinates: np.ndarray  # (q, r)
    displacement: float  # ‖mean_Q v − μ‖ / ‖μ‖; μ is the mean of the anchors
    duplicates: np.ndarray | None  # (q,): first target image with an equal descriptor; None if all differ

    @classmethod
    def of(cls, branch: DatabaseBranch, described: Described, backend: Backend) -> TargetBranch:
        spill, geometry, descriptors = Spill(), branch.geometry, described.descriptors
        count, anchors = len(descriptors), branch.split.anchors
        products = spill.empty((count, branch.split.images), np.float64)
        coordinates = spill.empty((count, geometry.rank), np.float64)
        mean, mixed = np.zeros(descriptors.shape[1]), 0.0
        for low in range(0, count, IMAGE_BLOCK):
            rows = slice(low, low + IMAGE_BLOCK)
            some = cross_products(descriptors[rows], branch.described.descriptors, backend)
            with_anchors = some if len(anchors) == branch.split.images else some[:, anchors]
            products[rows] = tie_scores(some, branch.duplicates)
            coordinates[rows] = geometry.coordinates(with_anchors)
            mean += descriptors[rows].sum(axis=0, dtype=np.float64) / count
            mixed += float(with_anchors.sum()) / (count * len(anchors))
            release(products, coordinates, descriptors)
            branch.release()
        squared = float(mean @ mean) - 2 * mixed + geometry.grand_mean
        displacement = float(np.sqrt(max(squared, 0.0)) / max(np.sqrt(max(geometry.grand_mean, 0.0)), 1e-30))
        return cls(branch, described, products, coordinates, displacement, find_duplicates(descriptors))

    def score_block(self, terms: Sequence[KernelTerm], backend: Backend) -> ScoreBlock:
        """Return the kernel (q, m) of the target images with the database, block by block."""
        gammas = {term.gamma for term in terms if term.gamma is not None}
        features = {gamma: backend.put(self.branch.features(gamma, spill=Spill())) for gamma in gammas}

        def similarity(gamma: float | None, start: int, stop: int) -> np.ndarray:
            if gamma is None:
                return self.products[start:stop]
            scores = to_numpy(backend.put(self._shaped(slice(start, stop), gamma)) @ features[gamma].T)
            return tie_scores(scores, self.branch.duplicates)

        def block(start: int, stop: int) -> np.ndarray:
            scores = weighted_sum((term.weight, similarity(term.gamma, start, stop)) for term in terms)
            self.release()
            return scores

        return block

    def scores(self, terms: Sequence[KernelTerm], rows: np.ndarray, images: np.ndarray, backend: Backend) -> np.ndarray:
        """Return the kernel of some target images with some database images."""

        def similarity(gamma: float | None) -> np.ndarray:
            if gamma is None:
                return take_entries(self.products, rows, images)
            return to_numpy(backend.put(self._shaped(rows, gamma)) @ backend.put(self.branch.shaped(images, gamma)).T)

        scores = weighted_sum((term.weight, similarity(term.gamma)) for term in terms)
        return tie_some(scores, self.duplicates, rows, self.branch.duplicates, images)

    def kernel(self, terms: Sequence[KernelTerm], rows: np.ndarray, backend: Backend) -> np.ndarray:
        """Return the kernel of some target images with each other."""

        def similarity(gamma: float | None) -> np.ndarray:
            if gamma is None:
                descriptors = self.described.descriptors[rows]
                return cross_products(descriptors, descriptors, backend)
            shaped = self._shaped(rows, gamma)
            return shaped @ shaped.T

        return weighted_sum((term.weight, similarity(term.gamma)) for term in terms)

    def _shaped(self, rows: slice | np.ndarray, gamma: float) -> np.ndarray:
        return self.branch.geometry.shaped(self.coordinates[rows], gamma)

    def energies(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean squared coordinate on each axis, over the database and over the target images."""
        one, two = self.branch.half_energies()
        sizes = [len(half) for half in self.branch.split.halves]
        database = (one * sizes[0] + two * sizes[1]) / sum(sizes)
        return database, np.einsum("ij,ij->j", self.coordinates, self.coordinates) / len(self.coordinates)

    def release(self) -> None:
        """Release the resident pages of arrays on disk."""
        release(self.products, self.coordinates, self.described.descriptors)
        self.branch.release()


class BranchKernel:
    """Weighted sum of branches under a carrier: one branch, or (1 − w)·S_hard + w·S_soft."""

    def __init__(self, used: Sequence[tuple[float, TargetBranch, Sequence[KernelTerm]]], backend: Backend) -> None:
        self.used, self.backend = used, backend
        self.duplicates = join_duplicates([target.branch.duplicates for _, target, _ in used])

    def target_block(self) -> ScoreBlock:
        return mix_blocks([(weight, target.score_block(terms, self.backend)) for weight, target, terms in self.used])

    def target_scores(self, rows: np.ndarray, images: np.ndarray) -> np.ndarray:
        return self._sum(lambda target, terms: target.scores(terms, rows, images, self.backend))

    def target_gram(self, rows: np.ndarray) -> np.ndarray:
        return self._sum(lambda target, terms: target.kernel(terms, rows, self.backend))

    def among(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return self._sum(lambda target, terms: target.branch.kernel_among(terms, one, other, self.backend))

    def pseudo_block(self) -> ScoreBlock:
        return mix_blocks(
            [(weight, every_score(target.branch, terms, self.backend)) for weight, target, terms in self.used]
        )

    def _sum(self, compute: Callable[[TargetBranch, Sequence[KernelTerm]], np.ndarray]) -> np.ndarray:
        summed = weighted_sum((weight, compute(target, terms)) for weight, target, terms in self.used)
        if summed.size > _MANY_SCORES:
            for _, target, _ in self.used:
                target.release()
        return summed


# A similarity of images. Scores of equal images are equal. Matrices of all target images are computed in parts, because
# there may be thousands.
ScoreKernel = VectorKernel | BranchKernel


@dataclass(frozen=True)
class PseudoRows:
    """Pseudo queries, their masks in each construction, and which of them count."""

    images: int  # database images
    pseudo: np.ndarray
    masks: Sequence[Mask]
    counted: np.ndarray

    def excluded(self, construction: int) -> scipy.sparse.csr_array:
        """Return the mask of one construction as a matrix (p, m)."""
        mask = self.masks[construction]
        pairs = np.ones(len(mask.rows), dtype=bool), (mask.rows, mask.columns)
        return scipy.sparse.csr_array(pairs, shape=(len(self.pseudo), self.images))


def branch_relation(
    kernel: ScoreKernel, tops: np.ndarray, reached: np.ndarray, rows: PseudoRows, construction: int, samples: Subsamples
) -> np.ndarray:
    """Return J of each subsample under one kernel.

    `tops` are the top-1 answers of the target images, `reached` those of the pseudo queries that count.
    """
    queries = rows.pseudo[rows.counted]
    masked = rows.excluded(construction)[np.flatnonzero(rows.counted)]

    def view_target(chosen: np.ndarray) -> RelationView:
        answers = tops[chosen]
        crossed = kernel.target_scores(chosen, answers)
        return RelationView(kernel.target_gram(chosen), kernel.among(answers, answers), crossed)

    def view_pseudo(chosen: np.ndarray) -> RelationView:
        return view_pseudo_queries(kernel, queries[chosen], reached[chosen], masked[chosen])

    return joint_scores(
        sampled_terms(view_target, len(tops), samples.target), sampled_terms(view_pseudo, len(queries), samples.pseudo)
    )


def view_pseudo_queries(
    kernel: ScoreKernel, queries: np.ndarray, answers: np.ndarray, masked: scipy.sparse.csr_array
) -> RelationView:
    """Return the relation of pseudo queries to their answers; `masked` (p, m) marks images excluded for each query."""
    crossed = tie_some(kernel.among(queries, answers), kernel.duplicates, queries, kernel.duplicates, answers)
    crossed[masked[:, answers].toarray()] = -np.inf
    return RelationView(kernel.among(queries, queries), kernel.among(answers, answers), crossed)


def tie_some(
    scores: np.ndarray, same_rows: np.ndarray | None, rows: np.ndarray, same: np.ndarray | None, images: np.ndarray
) -> np.ndarray:
    """Copy scores of some rows with some images between equal rows and images, so that ranks do not split a tie."""
    first_images = None if same is None else find_duplicates(same[images, None])
    return tie_scores(scores, first_images, None if same_rows is None else find_duplicates(same_rows[rows, None]))


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
        counted, count = select_counted(branches), len(described[SOFT, 0].descriptors)
        samples = Subsamples.draw(count, int(counted.sum()))
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
        answers = {m: [target_facts(kernel, count) for kernel in kernels[m]] for m in PAPER_CARRIERS}
        candidates = {m: Candidate.of(np.stack([rows.top for rows in answers[m]])) for m in PAPER_CARRIERS}
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
            local = ScoreBranch(kernels["adaptive"], answers["adaptive"], facts)
            whole = ScoreBranch([similar] * len(masks), [target_facts(similar, count)] * len(masks), cls_facts)
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
    margins = {
        "route": find_flips(rules.route, route_evidence),
        "carrier": find_flips(rules.carrier, *(candidates[m] for m in PAPER_CARRIERS), photos=count),
        "admit_cls": find_flips(rules.target_token, token) if token is not None and scaled else {},
    }
    # The reasons explain the method's rules only, not custom rules.
    given = words if rules == METHOD_RULES else {}
    evidence = TargetEvidence(count, int(counted.sum()), route_evidence, strengths, candidates, token, given, margins)
    return decisions, evidence


def target_facts(kernel: ScoreKernel, count: int) -> RowFacts:
    """Return the row facts of the target images under a kernel."""
    return pseudo_facts(kernel.target_block(), count, None)


def select_counted(branches: Branches) -> np.ndarray:
    """Return which pseudo queries count: those with an unmasked image in every branch."""
    split = branches[SOFT, 0].split
    counted = np.ones(len(split.pseudo), dtype=bool)
    for branch in branches.values():
        counted &= np.bincount(branch.mask.rows, minlength=len(counted)) < split.images
    return counted


def judge_route(targets: Targets, samples: Subsamples, counted: np.ndarray, backend: Backend) -> RouteEvidence:
    """Measure capacity of both assignments, and relation in the views of anchor mass (A) and whole descriptors (G)."""
    original = carrier_terms("original")
    split = targets[SOFT, 0].branch.split
    per_image, reference = {}, {}
    relation: dict[tuple[str, str], np.ndarray] = {}
    for assignment in ASSIGNMENT_KINDS:
        tops, reached = [], []
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
                answers = target_facts(kernel, len(target.products)).top
                found = pseudo_tops(kernel.pseudo_block(), masks[s], len(split.pseudo), split.images)[counted]
                joint[name].append(branch_relation(kernel, answers, found, rows, s, samples))
            tops.append(answers)  # in view G, the last one
            reached.append(found)
            target.release()
        per_image[assignment] = measure_information(np.stack(tops), split.images)
        known = measure_information(np.stack(reached), split.images)
        reference[assignment] = float(known.mean()) if counted.any() else 0.0
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
        [target.displacement for target in targets],
    )


@dataclass(frozen=True)
class ScoreBranch:
    """Local patches or the global token: kernel, target rows and pseudo-query rows in each construction."""

    kernels: Sequence[ScoreKernel]
    target_facts: Sequence[RowFacts]
    pseudo_facts: Sequence[RowFacts]


def judge_global_token(local: ScoreBranch, cls: ScoreBranch, pseudo: PseudoRows, samples: Subsamples) -> GlobalEvidence:
    """Measure the quality of both branches, their ratios, and the correlation of their row spreads."""
    ours, theirs = _quality(local, pseudo, samples), _quality(cls, pseudo, samples)
    return GlobalEvidence(
        local=ours,
        cls=theirs,
        r_T=theirs.T / (ours.T + ROW_EPSILON),
        r_C=theirs.B / (ours.B + ROW_EPSILON),
        r_J=float(np.sqrt(theirs.B * theirs.J) / (np.sqrt(ours.B * ours.J) + ROW_EPSILON)),
        corr=tuple(correlate(a.spread, b.spread) for a, b in zip(local.target_facts, cls.target_facts, strict=True)),
    )


def _quality(branch: ScoreBranch, pseudo: PseudoRows, samples: Subsamples) -> BranchQuality:
    images, counted = pseudo.images, pseudo.counted
    tops = np.stack([rows.top for rows in branch.target_facts])
    reached = np.stack([rows.top[counted] for rows in branch.pseudo_facts])
    kept = measure_information(tops, images).mean()
    reference = measure_information(reached, images).mean() if reached.shape[1] else 0.0
    information_kept = max(float(min(kept, reference)), 0.0)
    joint = [
        branch_relation(kernel, tops[s], reached[s], pseudo, s, samples) for s, kernel in enumerate(branch.kernels)
    ]
    relation = float(np.median(np.mean(joint, axis=0)))
    support = extreme_support(tops, images)
    retention = [
        float(target.peak.mean() / (rows.peak[counted].mean() + ROW_EPSILON)) if counted.any() else 0.0
        for target, rows in zip(branch.target_facts, branch.pseudo_facts, strict=True)
    ]
    quality = float(np.cbrt(information_kept * relation * support))
    return BranchQuality(information_kept, relation, support, quality, float(np.mean(retention)))


def local_share(local: float, cls: float) -> float:
    """Return Q_l / (Q_l + Q_g); ½ if both are zero."""
    return local / (local + cls) if local + cls > 0 else 0.5
