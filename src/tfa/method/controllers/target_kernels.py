"""Kernels over database and target images: the scores and Gram matrices the target controller needs.

Two kinds with one interface: vectors (block norms, global tokens), and branches under a carrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tfa.base.backend import Backend, l2_normalize, to_numpy
from tfa.method.branch import DatabaseBranch, ScoreBlock, row_blocks
from tfa.method.carriers import KernelTerm, weighted_sum
from tfa.method.evidence.relation import RelationView, Subsamples, joint_scores, relation_terms
from tfa.method.evidence.support import Mask
from tfa.method.gram import cross_products
from tfa.method.pseudo_queries import every_score, mix_blocks
from tfa.method.residuals import Described


class ScoreKernel(Protocol):
    """A similarity of images."""

    def target_scores(self) -> np.ndarray:
        """`q m`: target images with the database."""

    def target_gram(self) -> np.ndarray:
        """`q q`: target images with each other."""

    def among(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Database images with database images."""

    def pseudo_block(self) -> ScoreBlock:
        """Pseudo queries with the database, block by block."""


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
    products: np.ndarray  # q m, float64, with the database
    gram: np.ndarray  # q q, float64
    coordinates: np.ndarray  # q r

    @classmethod
    def of(cls, branch: DatabaseBranch, described: Described, backend: Backend) -> TargetBranch:
        products = cross_products(described.descriptors, branch.described.descriptors, backend)
        gram = cross_products(described.descriptors, described.descriptors, backend)
        with_anchors = products[:, branch.split.anchors]
        return cls(branch, described, products, gram, branch.geometry.coordinates(with_anchors))

    def scores(self, terms: Sequence[KernelTerm], backend: Backend) -> np.ndarray:
        """`q m`: the kernel of the target images with the database."""

        def similarity(gamma: float) -> np.ndarray:
            database = self.branch.features(gamma)
            return to_numpy(backend.put(self._shaped(gamma)) @ backend.put(database).T)

        return weighted_sum((t.weight, self.products if t.gamma is None else similarity(t.gamma)) for t in terms)

    def kernel(self, terms: Sequence[KernelTerm]) -> np.ndarray:
        """`q q`: the kernel of the target images with each other."""
        shaped = {term.gamma: self._shaped(term.gamma) for term in terms if term.gamma is not None}
        return weighted_sum(
            (t.weight, self.gram if t.gamma is None else shaped[t.gamma] @ shaped[t.gamma].T) for t in terms
        )

    def _shaped(self, gamma: float) -> np.ndarray:
        return self.branch.geometry.shaped(self.coordinates, gamma)

    def energies(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean squared coordinate on each axis, over the database and over the target images."""
        one, two = self.branch.half_energies()
        sizes = [len(half) for half in self.branch.split.halves]
        database = (one * sizes[0] + two * sizes[1]) / sum(sizes)
        return database, (self.coordinates**2).mean(axis=0)

    def displacement(self) -> float:
        """‖mean_Q v − μ‖ / ‖μ‖, from products alone: μ is the mean of the anchors."""
        geometry = self.branch.geometry
        mixed = float(self.products[:, self.branch.split.anchors].mean())
        squared = float(self.gram.mean()) - 2 * mixed + geometry.grand_mean
        return float(np.sqrt(max(squared, 0.0)) / max(np.sqrt(max(geometry.grand_mean, 0.0)), 1e-30))


class BranchKernel:
    """Branches under the terms of a carrier, each with its weight: one of weight 1, or (1 − w)·S_hard + w·S_soft."""

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
    """The pseudo queries: which images, what each may not answer in each construction, and which of them count."""

    images: int  # of the database
    pseudo: np.ndarray
    masks: Sequence[Mask]
    counted: np.ndarray


def branch_relation(
    kernel: ScoreKernel, scores: np.ndarray, rows: PseudoRows, construction: int, samples: Subsamples
) -> tuple[np.ndarray, np.ndarray]:
    """J of each subsample under one kernel, and the top-1 answers of the pseudo queries that count.

    `scores` are the kernel's of the target images.
    """
    tops = scores.argmax(axis=1)
    target = RelationView(kernel.target_gram(), kernel.among(tops, tops), scores[:, tops])
    reference, reached = _pseudo_view(kernel, rows, construction)
    return joint_scores(relation_terms(target, samples.target), relation_terms(reference, samples.pseudo)), reached


def _pseudo_view(kernel: ScoreKernel, rows: PseudoRows, construction: int) -> tuple[RelationView, np.ndarray]:
    """The relation of the pseudo queries that count to their answers, those they may not give masked; and these."""
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
