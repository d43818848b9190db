"""A branch: one assignment under one construction, fitted to the database, with the data for its evidence.

Every controller uses six branches (two assignments, three constructions). They are fitted one at a time, and large
arrays are spilled to disk, so that memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tfa.core.arrays import Backend, Spill, release, to_numpy
from tfa.method import spectrum
from tfa.method.carriers import KernelTerm, weighted_sum
from tfa.method.evidence import Mask
from tfa.method.residuals import HARD, Described
from tfa.method.spectrum import Geometry, cross_products, fit_geometry, gram_matrix, probe_products
from tfa.search.gallery import find_duplicates
from tfa.types import HeadSpec

_ROW_BLOCK = 512  # maximum number of rows in a block
_BLOCK_BYTES = 4 << 20  # maximum bytes of float64 in a block, so that it stays in the cache
ScoreBlock = Callable[[int, int], np.ndarray]  # start, stop → scores (p, m) of these pseudo queries


@dataclass(frozen=True)
class DatabaseSplit:
    """Roles of the database images, equal for all branches."""

    images: int
    anchors: np.ndarray  # images that the PCA is fitted on
    pseudo: np.ndarray  # pseudo queries, retrieved against the whole database
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
        """Anchors and pseudo queries: images whose products with the whole database are needed."""
        return np.union1d(self.anchors, self.pseudo)

    @cached_property
    def half_shares(self) -> np.ndarray:
        """Weight of each image in the mean of its half, (2, m)."""
        shares = np.zeros((2, self.images))
        for half, members in enumerate(self.halves):
            shares[half, members] = 1 / max(len(members), 1)
        return shares


@dataclass(frozen=True)
class DatabaseBranch:
    assignment: str
    construction: int
    centers: np.ndarray  # k d
    described: Described
    split: DatabaseSplit
    products: np.ndarray  # (p, m), float64: probes with the database
    geometry: Geometry
    mask: Mask
    duplicates: np.ndarray | None  # (m,): index of the first image with an equal descriptor; None if all differ
    half_displacement: float  # ‖μ_0 − μ_1‖ / ‖μ‖
    projected: np.ndarray | None = None  # (m, r), float64: database coordinates, unless all images are anchors

    def coordinates(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return PCA coordinates (m, r) of some database images, float64."""
        return self.geometry.anchor_coordinates(rows) if self.projected is None else self.projected[rows]

    @property
    def anchors(self) -> np.ndarray:
        """Descriptors (a, k·d) of the anchors."""
        every = len(self.split.anchors) == self.split.images
        return self.described.descriptors if every else self.described.descriptors[self.split.anchors]

    def shaped(self, rows: slice | np.ndarray, gamma: float) -> np.ndarray:
        """Return φ_γ (m, r) of some database images, float64."""
        return self.geometry.shaped(self.coordinates(rows), gamma)

    def features(self, gamma: float | None, dtype: str = "float64", spill: Spill | None = None) -> np.ndarray:
        """Return the features (m, D) of a kernel term: descriptors (None) or φ_γ of the database."""
        if gamma is None:
            return self.described.descriptors
        shape = (self.split.images, self.geometry.rank)
        features = np.empty(shape, dtype) if spill is None else spill.empty(shape, dtype)
        for start, stop in row_blocks(*shape):  # blocks, because intermediate arrays are as large as the result
            features[start:stop] = self.shaped(slice(start, stop), gamma)
            release(features)
            self.release()
        return features

    def half_energies(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean squared coordinate on each axis, over each half of the database."""
        energies = np.zeros((2, self.geometry.rank))
        for start, stop in row_blocks(self.split.images, self.geometry.rank):
            coordinates = self.coordinates(slice(start, stop))
            energies += self.split.half_shares[:, start:stop] @ (coordinates * coordinates)
            self.release()
        return energies[0], energies[1]

    def kernel_among(
        self, terms: Sequence[KernelTerm], one: np.ndarray, other: np.ndarray, backend: Backend
    ) -> np.ndarray:
        """Return the kernel of database images `one` with database images `other`, float64."""

        def similarity(gamma: float | None) -> np.ndarray:
            if gamma is None and len(self.split.probes) == self.split.images:
                return take_entries(self.products, one, other)
            if gamma is None:
                return cross_products(self.described.descriptors[one], self.described.descriptors[other], backend)
            left = backend.put(self.shaped(one, gamma))
            right = left if other is one else backend.put(self.shaped(other, gamma))  # X Xᵀ is half the work
            return to_numpy(left @ right.T)

        return weighted_sum((term.weight, similarity(term.gamma)) for term in terms)

    def release(self) -> None:
        """Release the resident pages of spilled arrays."""
        release(self.described.descriptors, self.products, self.geometry.vectors, self.projected)


Branches = Mapping[tuple[str, int], DatabaseBranch]  # by assignment and construction


def fit_branch(
    assignment: str,
    construction: int,
    centers: np.ndarray,
    described: Described,
    split: DatabaseSplit,
    spec: HeadSpec,
    backend: Backend,
    spill: Spill,
) -> DatabaseBranch:
    """Fit products, geometry and duplicates of one assignment and construction."""
    descriptors = described.descriptors
    if len(split.probes) == split.images <= spectrum.LARGE:
        # A word without patches is a block of zeros. A soft block is never zero, though its norm may underflow.
        filled = described.mass > 0 if assignment == HARD else None
        products = gram_matrix(descriptors, backend, filled)
        whole = len(split.anchors) == split.images
        gram = products if whole else products[backend.put(split.anchors), :][:, backend.put(split.anchors)]
        kept = spill.keep(to_numpy(products))  # before the decomposition, which overwrites its input
        del products
    else:
        kept = spill.empty((len(split.probes), split.images), np.float64)
        probe_products(descriptors, split.probes, backend, kept)
        gram = backend.put(take_entries(kept, np.searchsorted(split.probes, split.anchors), split.anchors))
    release(descriptors)
    geometry = fit_geometry(gram, descriptors.shape[1], spec.max_rank, split.anchors)
    geometry = replace(geometry, vectors=spill.keep(geometry.vectors))  # contiguous
    del gram
    norms, displacement = _norms_and_displacement(descriptors, kept, split)
    mask = _duplicates(kept, norms, split)
    branch = DatabaseBranch(
        assignment=assignment,
        construction=construction,
        centers=centers,
        described=described,
        split=split,
        products=kept,
        geometry=geometry,
        mask=mask,
        duplicates=_find_equal(descriptors, norms, mask, split),
        # ‖μ‖² = m
        half_displacement=displacement / max(np.sqrt(max(geometry.grand_mean, 0.0)), 1e-30),
        projected=None if len(split.anchors) == split.images else _projected(geometry, kept, split, spill),
    )
    branch.release()
    return branch


def _projected(geometry: Geometry, products: np.ndarray, split: DatabaseSplit, spill: Spill) -> np.ndarray:
    """Compute coordinates (m, r) of the whole database from its products with the anchors."""
    projected = spill.empty((split.images, geometry.rank), np.float64)
    anchors = np.searchsorted(split.probes, split.anchors)
    for low in range(0, split.images, _ROW_BLOCK):
        with_anchors = np.ascontiguousarray(products[anchors, low : low + _ROW_BLOCK].T)
        projected[low : low + _ROW_BLOCK] = geometry.coordinates(with_anchors)
        release(products, projected)
    return projected


def _norms_and_displacement(
    descriptors: np.ndarray, products: np.ndarray, split: DatabaseSplit
) -> tuple[np.ndarray, float]:
    """Return float64 norms of the descriptors, and ‖μ_0 − μ_1‖ of the database's halves.

    With w = ±1/|D_h|, ‖μ_0 − μ_1‖² = wᵀGw. If only some rows of G exist, it is summed over the descriptors.
    """
    weights = split.half_shares[0] - split.half_shares[1]
    if len(split.probes) == split.images:
        squared = float(weights @ products @ weights)
        return np.sqrt(np.diagonal(products).clip(min=0)), float(np.sqrt(max(squared, 0.0)))
    norms, difference = np.empty(split.images), np.zeros(descriptors.shape[1])
    for low in range(0, split.images, _ROW_BLOCK):
        block = np.asarray(descriptors[low : low + _ROW_BLOCK], dtype=np.float64)
        norms[low : low + _ROW_BLOCK] = np.sqrt((block * block).sum(axis=1))
        difference += weights[low : low + _ROW_BLOCK] @ block
        release(descriptors)
    return norms, float(np.linalg.norm(difference))


def _duplicates(products: np.ndarray, norms: np.ndarray, split: DatabaseSplit) -> Mask:
    rows = np.searchsorted(split.probes, split.pseudo)
    masks = []
    for start, stop in row_blocks(len(rows), split.images):
        masks.append(Mask.of_duplicates(products[rows[start:stop]], split.pseudo[start:stop], norms, start))
        release(products)
    return Mask(np.concatenate([m.rows for m in masks]), np.concatenate([m.columns for m in masks]))


def _find_equal(descriptors: np.ndarray, norms: np.ndarray, mask: Mask, split: DatabaseSplit) -> np.ndarray | None:
    """Return the first image with an equal descriptor for each image; None if all differ."""
    # If every image is a pseudo query that masks only itself, no two descriptors are equal, except zeros.
    if len(mask.rows) == len(split.pseudo) == split.images and np.count_nonzero(norms == 0) < 2:
        return None
    return find_duplicates(descriptors)


def take_entries(array: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return array[rows][:, columns], reading whole rows, which is fast on disk, a few at a time."""
    taken = np.empty((len(rows), len(columns)), array.dtype)
    for start, stop in row_blocks(len(rows), array.shape[1]):
        taken[start:stop] = array[rows[start:stop]][:, columns]
        if stop - start < len(rows):  # pages of a single block stay resident: few rows are read often
            release(array)
    return taken


def row_blocks(count: int, width: int = 1) -> Iterator[tuple[int, int]]:
    """Yield start and stop of row blocks; the wider the rows, the fewer per block."""
    rows = max(1, min(_ROW_BLOCK, _BLOCK_BYTES // (8 * max(width, 1))))
    return ((start, min(start + rows, count)) for start in range(0, count, rows))
