"""Kernels over database and target images: the scores and Gram matrices the target controller needs.

Three kinds with one interface: vectors (block norms, global tokens), one branch under a carrier, and a mixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tfa.base.backend import Backend, l2, to_numpy
from tfa.method.branch import Branch, ScoreBlock, row_blocks
from tfa.method.carriers import KernelTerm
from tfa.method.evidence import Mask, View
from tfa.method.gram import cross_products
from tfa.method.pseudo_queries import every_score
from tfa.method.residuals import Described


class Kernel(Protocol):
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
        self.database, self.target = l2(np.asarray(database, np.float64)), l2(np.asarray(target, np.float64))
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

    branch: Branch
    described: Described
    products: np.ndarray  # q m, float64, with the database
    gram: np.ndarray  # q q, float64
    coordinates: np.ndarray  # q r

    @classmethod
    def of(cls, branch: Branch, described: Described, backend: Backend) -> TargetBranch:
        products = cross_products(described.descriptors, branch.described.descriptors, backend)
        gram = cross_products(described.descriptors, described.descriptors, backend)
        with_anchors = products[:, branch.split.anchors]
        return cls(branch, described, products, gram, branch.geometry.coordinates(with_anchors))

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
    """One branch under the terms of a carrier."""

    def __init__(self, target: TargetBranch, terms: Sequence[KernelTerm], backend: Backend) -> None:
        self.target, self.terms, self.backend = target, terms, backend

    def target_scores(self) -> np.ndarray:
        total = np.zeros_like(self.target.products)
        for term in self.terms:
            if term.gamma is None:
                total += term.weight * self.target.products
            else:
                database = self.target.branch.features(term.gamma)
                query = self.target.branch.geometry.shaped(self.target.coordinates, term.gamma)
                total += term.weight * to_numpy(self.backend.put(query) @ self.backend.put(database).T)
        return total

    def target_gram(self) -> np.ndarray:
        total = np.zeros_like(self.target.gram)
        for term in self.terms:
            if term.gamma is None:
                total += term.weight * self.target.gram
            else:
                query = self.target.branch.geometry.shaped(self.target.coordinates, term.gamma)
                total += term.weight * (query @ query.T)
        return total

    def among(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return self.target.branch.kernel_among(self.terms, one, other, self.backend)

    def pseudo_block(self) -> ScoreBlock:
        return every_score(self.target.branch, self.terms, self.backend)


class MixedKernel:
    """(1 − w)·S_hard + w·S_soft."""

    def __init__(self, weighted: Sequence[tuple[float, Kernel]]) -> None:
        self.weighted = weighted

    def target_scores(self) -> np.ndarray:
        return np.sum([weight * kernel.target_scores() for weight, kernel in self.weighted], axis=0)

    def target_gram(self) -> np.ndarray:
        return np.sum([weight * kernel.target_gram() for weight, kernel in self.weighted], axis=0)

    def among(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.sum([weight * kernel.among(one, other) for weight, kernel in self.weighted], axis=0)

    def pseudo_block(self) -> ScoreBlock:
        blocks = [(weight, kernel.pseudo_block()) for weight, kernel in self.weighted]
        return lambda start, stop: np.sum([weight * block(start, stop) for weight, block in blocks], axis=0)


def target_view(kernel: Kernel, scores: np.ndarray) -> View:
    """The relation of target images to their answers; `scores` are the kernel's."""
    tops = scores.argmax(axis=1)
    return View(kernel.target_gram(), kernel.among(tops, tops), scores[:, tops])


@dataclass(frozen=True)
class PseudoRows:
    """The pseudo queries: which images, what each may not answer in each construction, and which of them count."""

    images: int  # of the database
    pseudo: np.ndarray
    masks: Sequence[Mask]
    counted: np.ndarray


def pseudo_view(kernel: Kernel, rows: PseudoRows, construction: int) -> tuple[View, np.ndarray]:
    """The same of the pseudo queries that count, with what they may not answer masked; and their top-1 answers."""
    pseudo, mask = rows.pseudo, rows.masks[construction]
    block = kernel.pseudo_block()
    scores = np.empty((len(pseudo), rows.images))
    for start, stop in row_blocks(len(pseudo)):
        scores[start:stop] = block(start, stop)
    scores[mask.rows, mask.columns] = -np.inf
    scores = scores[rows.counted]
    tops = scores.argmax(axis=1)
    queries = pseudo[rows.counted]
    return View(kernel.among(queries, queries), kernel.among(tops, tops), scores[:, tops]), tops
