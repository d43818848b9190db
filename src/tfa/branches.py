"""A branch: one assignment under one construction, fitted to the database, with what its evidence needs.

Six branches (two assignments, three constructions) are the raw material of every controller. They are fitted
one at a time; what is large is spilled to disk, so memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tfa.arrays import Array, Backend, Spill, l2, release, to_numpy
from tfa.config import HeadSpec
from tfa.evidence import Mask, RowFacts, row_facts
from tfa.geometry import Geometry, KernelTerm, cross_products, fit_geometry, inner_products
from tfa.residuals import Described

ROW_BLOCK = 512  # pseudo queries scored at a time
ScoreBlock = Callable[[int, int], np.ndarray]  # scores `p m` of pseudo queries start to stop


@dataclass(frozen=True)
class DatabaseSplit:
    """Which database images play which part; the same for all branches."""

    images: int
    anchors: np.ndarray  # the PCA is fitted on these
    pseudo: np.ndarray  # these are retrieved against the whole database
    halves: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, images: int, spec: HeadSpec) -> DatabaseSplit:
        shuffled = np.random.default_rng(0).permutation(images)
        sampled = images > spec.max_pca
        return cls(
            images=images,
            anchors=np.sort(shuffled[: spec.pca_sample]) if sampled else np.arange(images),
            pseudo=np.sort(shuffled[: spec.max_pseudo]) if images > spec.max_pseudo else np.arange(images),
            halves=(shuffled[0::2], shuffled[1::2]),
        )

    @cached_property
    def probes(self) -> np.ndarray:
        """The images whose products with the whole database are needed: anchors and pseudo queries."""
        return np.union1d(self.anchors, self.pseudo)


@dataclass(frozen=True)
class Branch:
    assignment: str
    construction: int
    centers: np.ndarray  # k d
    described: Described
    split: DatabaseSplit
    products: np.ndarray  # p m, float64, of the probes with the database
    geometry: Geometry
    mask: Mask
    half_displacement: float  # ‖μ_0 − μ_1‖ / ‖μ‖

    def coordinates(self, start: int, stop: int) -> np.ndarray:
        """PCA coordinates `m r` of database images start to stop, float64."""
        if len(self.split.anchors) == self.split.images:
            return self.geometry.anchor_coordinates(slice(start, stop))
        rows = np.searchsorted(self.split.probes, self.split.anchors)
        return self.geometry.coordinates(np.ascontiguousarray(self.products[rows, start:stop].T))

    def features(self, gamma: float | None, dtype: str = "float64", spill: Spill | None = None) -> np.ndarray:
        """What a kernel term compares: descriptors (None) or φ_γ of the database, `m D`."""
        if gamma is None:
            return self.described.descriptors
        shape = (self.split.images, self.geometry.rank)
        features = np.empty(shape, dtype) if spill is None else spill.empty(shape, dtype)
        for start, stop in row_blocks(self.split.images):  # blocks: the steps between are as large as the result
            features[start:stop] = self.geometry.shaped(self.coordinates(start, stop), gamma)
        return features

    def half_energies(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean squared coordinate on each axis, over each half of the database."""
        half_of = np.zeros(self.split.images, np.int64)
        half_of[self.split.halves[1]] = 1
        energies = np.zeros((2, self.geometry.rank))
        for start, stop in row_blocks(self.split.images):
            squared = self.coordinates(start, stop) ** 2
            for half in (0, 1):
                energies[half] += squared[half_of[start:stop] == half].sum(axis=0)
        first, second = (energies[h] / max(len(self.split.halves[h]), 1) for h in (0, 1))
        return first, second

    def kernel_among(
        self, terms: Sequence[KernelTerm], one: np.ndarray, other: np.ndarray, backend: Backend
    ) -> np.ndarray:
        """The kernel of database images `one` with database images `other`, float64."""
        total = np.zeros((len(one), len(other)))
        for term in terms:
            if term.gamma is not None:
                features = self.features(term.gamma)
                similarity = to_numpy(backend.put(features[one]) @ backend.put(features[other]).T)
            elif len(self.split.probes) == self.split.images:
                similarity = self.products[np.ix_(one, other)]
            else:
                similarity = cross_products(self.described.descriptors[one], self.described.descriptors[other], backend)
            total += term.weight * similarity
        return total

    def release(self) -> None:
        """Give back the resident pages of what was spilled."""
        for array in (self.described.descriptors, self.products, self.geometry.vectors):
            release(array)


def fit_branch(
    assignment: str,
    construction: int,
    centers: np.ndarray,
    described: Described,
    split: DatabaseSplit,
    spec: HeadSpec,
    backend: Backend,
    spill: Spill,
) -> Branch:
    """Products, geometry and duplicates of one assignment and construction."""
    everything = len(split.probes) == split.images
    products = inner_products(described.descriptors, None if everything else split.probes, backend)
    rows = np.searchsorted(split.probes, split.anchors)
    gram = products if everything and len(rows) == split.images else _submatrix(products, rows, split.anchors, backend)
    release(described.descriptors)
    kept = spill.keep(to_numpy(products))  # before the decomposition, which overwrites and needs the memory
    del products
    geometry = fit_geometry(gram, described.descriptors.shape[1], spec.max_rank, split.anchors)
    del gram
    norms, displacement = _norms_and_displacement(described.descriptors, kept, split)
    branch = Branch(
        assignment=assignment,
        construction=construction,
        centers=centers,
        described=described,
        split=split,
        products=kept,
        geometry=_spilled(geometry, spill),
        mask=_duplicates(kept, norms, split),
        # ‖μ‖² = m
        half_displacement=displacement / max(np.sqrt(max(geometry.grand_mean, 0.0)), 1e-30),
    )
    branch.release()
    return branch


def _submatrix(products: Array, rows: np.ndarray, columns: np.ndarray, backend: Backend) -> Array:
    return products[backend.put(rows), :][:, backend.put(columns)]


def _spilled(geometry: Geometry, spill: Spill) -> Geometry:
    return Geometry(**{**geometry.__dict__, "vectors": spill.keep(geometry.vectors)})


def _norms_and_displacement(
    descriptors: np.ndarray, products: np.ndarray, split: DatabaseSplit
) -> tuple[np.ndarray, float]:
    """Float64 norms of the descriptors, and ‖μ_0 − μ_1‖ of the database's halves.

    With w = ±1/|D_h|, ‖μ_0 − μ_1‖² = wᵀGw; where only some rows of G exist it is summed over the descriptors.
    """
    weights = np.empty(split.images)
    for half, sign in zip(split.halves, (1.0, -1.0), strict=True):
        weights[half] = sign / max(len(half), 1)
    if len(split.probes) == split.images:
        squared = float(weights @ products @ weights)
        return np.sqrt(np.diagonal(products).clip(min=0)), float(np.sqrt(max(squared, 0.0)))
    norms, difference = np.empty(split.images), np.zeros(descriptors.shape[1])
    for low in range(0, split.images, ROW_BLOCK):
        block = np.asarray(descriptors[low : low + ROW_BLOCK], dtype=np.float64)
        norms[low : low + ROW_BLOCK] = np.sqrt((block * block).sum(axis=1))
        difference += weights[low : low + ROW_BLOCK] @ block
    return norms, float(np.linalg.norm(difference))


def _duplicates(products: np.ndarray, norms: np.ndarray, split: DatabaseSplit) -> Mask:
    rows = np.searchsorted(split.probes, split.pseudo)
    masks = [
        Mask.of_duplicates(products[rows[low : low + ROW_BLOCK]], split.pseudo[low : low + ROW_BLOCK], norms, low)
        for low in range(0, len(rows), ROW_BLOCK)
    ]
    return Mask(np.concatenate([m.rows for m in masks]), np.concatenate([m.columns for m in masks]))


def row_blocks(count: int) -> Iterator[tuple[int, int]]:
    """Start and stop of blocks of rows."""
    return ((start, min(start + ROW_BLOCK, count)) for start in range(0, count, ROW_BLOCK))


class PseudoScores:
    """Scores of the pseudo queries of one branch under a kernel, block by block, in float64."""

    def __init__(self, branch: Branch, terms: Sequence[KernelTerm], backend: Backend) -> None:
        self.branch, self.terms, self.backend = branch, terms, backend
        self.rows = np.searchsorted(branch.split.probes, branch.split.pseudo)
        self.shaped = {t.gamma: backend.put(branch.features(t.gamma)) for t in terms if t.gamma is not None}

    def block(self, start: int, stop: int) -> np.ndarray:
        """`p m` scores of pseudo queries start to stop."""
        pseudo = self.branch.split.pseudo[start:stop]
        total = np.zeros((len(pseudo), self.branch.split.images))
        for term in self.terms:
            if term.gamma is None:
                similarity = self.branch.products[self.rows[start:stop]]
            else:
                features = self.shaped[term.gamma]
                similarity = to_numpy(features[self.backend.put(pseudo), :] @ features.T)
            total += term.weight * similarity
        return total


def mixed(weighted: Sequence[tuple[float, ScoreBlock]]) -> ScoreBlock:
    """Σ weight · scores, block by block; one block of weight 1 is passed on as it is."""
    if len(weighted) == 1 and weighted[0][0] == 1:
        return weighted[0][1]

    def block(start: int, stop: int) -> np.ndarray:
        return np.sum([weight * scores(start, stop) for weight, scores in weighted], axis=0)

    return block


def fused(
    local: ScoreBlock, similar: ScoreBlock, local_weight: float, sigma_local: float, sigma_cls: float
) -> ScoreBlock:
    """w·S/σ_local + (1 − w)·S_cls/σ_cls, block by block."""
    one, other = local_weight / sigma_local, (1 - local_weight) / sigma_cls
    return lambda start, stop: one * local(start, stop) + other * similar(start, stop)


def global_similarities(cls: np.ndarray, pseudo: np.ndarray) -> ScoreBlock:
    """Cosines of the pseudo queries' global tokens with the database's, block by block."""
    unit = l2(np.asarray(cls, dtype=np.float64))
    return lambda start, stop: unit[pseudo[start:stop]] @ unit.T


def pseudo_facts(block: ScoreBlock, count: int, mask: Mask | None) -> RowFacts:
    """Row facts of `count` pseudo queries whose scores `block(start, stop)` gives."""
    facts = []
    for start, stop in row_blocks(count):
        facts.append(row_facts(block(start, stop), None if mask is None else mask.within(start, stop)))
    return RowFacts.join(facts)


def median_spread(facts: RowFacts) -> float:
    """σ: median over pseudo queries of a row's spread, so that scores of unlike scale can be added."""
    counted = facts.top >= 0
    return float(np.median(facts.spread[counted])) if counted.any() else 0.0
