"""The second-order space of a map: PCA of its descriptors, and the coordinates of every image.

The PCA is fitted in the smaller of two forms; both are exact:

    dual         N ≤ D    Gram matrix (N, N): E, η;   Uᵀ = η^{-1/2} Eᵀ V,   z = E √η
    covariance   N > D    Σ v vᵀ, (D, D), and Σ v, in one pass over the descriptors; U are its eigenvectors

D = m(m+1)/2 is 8,256 at 128 directions. Every carrier is a function of coordinates: see `SecondOrderSide`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tfa.core.arrays import Array, Backend, Spill, release, to_numpy
from tfa.method.branch import DatabaseSplit, ScoreBlock, row_blocks
from tfa.method.carriers import MEAN, Gamma, KernelTerm, weighted_sum
from tfa.method.evidence import Mask, correlate
from tfa.method.scorer import Scorer, ScoreTerm, SecondOrderSide, shape_coordinates
from tfa.method.spectrum import (
    Geometry,
    PrincipalAxes,
    add_moments,
    cross_products,
    fit_geometry,
    fit_principal_axes,
    gram_matrix,
    rounding,
)
from tfa.search.gallery import BaseRows, Gallery, Rows, ScaledRows, find_duplicates, tie_scores
from tfa.search.reduced import Moments

MAX_RANK = 1280  # maximum number of PCA directions, so that a map of 20,000 images stays below 5 kB per image
MAX_PSEUDO = 1000  # maximum number of pseudo queries
_IN_MEMORY = 256 << 20  # maximum bytes of pseudo-query scores kept in memory instead of a file
_CACHED_COORDINATES = 1 << 21  # maximum number of coordinates with cached features, 16 MB of float64
_BLOCK = 1024  # descriptors per product
MAX_COVARIANCE = 10_000  # rows of the largest matrix that a PCA decomposes, 800 MB; larger ones use a sample
SAMPLE = 5000  # images of that sample
LARGE_ETA = 1e-3  # η of unit descriptors above which a float32 product is exact to 1e-6


@dataclass(frozen=True)
class SpectralFacts:
    """Inputs for the strengths of the adaptive carrier, see `decisions.SpectralStrengths`."""

    correlation: float  # ρ: correlation of the spectral energies of the database's halves
    participation: float  # PR^u
    displacement: float  # ‖μ_0 − μ_1‖ / ‖μ‖


@dataclass(frozen=True)
class SecondOrderSpace:
    """One construction, fitted to the database."""

    side: SecondOrderSide
    coordinates: np.ndarray | ScaledRows  # (m, r); in a map z = n_d λ^{1/4} φ_½, see `normalize_rows`
    pseudo: np.ndarray  # (p,): pseudo queries
    mask: Mask  # the pseudo queries and their duplicates
    duplicates: np.ndarray | None  # (m,): index of the first image with identical tokens; None if all differ
    facts: SpectralFacts | None = None  # None if the space was read from a map
    _cached_features: dict[tuple[int, float | None], np.ndarray] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.coordinates)

    def features(self, gamma: Gamma, dtype: str, spill: Spill | None = None) -> np.ndarray:
        """Return the features of every database image: z (None), 1 (MEAN) or φ_γ."""
        shape = (len(self), 1 if gamma == MEAN else self.coordinates.shape[1])
        features = np.empty(shape, dtype) if spill is None else spill.empty(shape, dtype)
        for start, stop in row_blocks(*shape):
            features[start:stop] = self._features(slice(start, stop), gamma)
            release(features)
            self._release()
        return features

    def _release(self) -> None:
        if isinstance(self.coordinates, np.ndarray):
            release(self.coordinates)

    def _features(self, rows: slice | np.ndarray, gamma: Gamma) -> np.ndarray | float:
        if gamma == MEAN:
            return 1.0
        coordinates = np.asarray(self.coordinates[rows], np.float64)
        if gamma is None:
            return coordinates
        assert isinstance(gamma, float)
        return shape_coordinates(coordinates, self.side.eigenvalues, gamma)

    def gallery(self, gamma: Gamma, dtype: str, spill: Spill | None = None) -> Gallery:
        """Return the features as a gallery; in a map it uses the stored coordinates without a copy."""
        stored = self.coordinates
        if isinstance(stored, ScaledRows):
            return Gallery.of(normalize_rows(stored.base, stored.scale, self.side.eigenvalues, gamma))
        return Gallery.of(self.features(gamma, dtype, spill))

    def scorer(self, kernel: Sequence[KernelTerm], dtype: str, spill: Spill | None = None) -> Scorer:
        """Return the scorer of Σ weight · kernel term over the whole database."""
        terms = []
        for term in kernel:
            for gamma in (None, MEAN) if term.gamma is None else (term.gamma,):
                terms.append(ScoreTerm(term.weight, 0, gamma, self.gallery(gamma, dtype, spill)))
        return Scorer((self.side,), tuple(terms), np.zeros(len(self)), self.duplicates, dtype)

    def scores_of(
        self, coordinates: np.ndarray, level: np.ndarray, kernel: Sequence[KernelTerm], spill: Spill | None = None
    ) -> np.ndarray:
        """Return scores (q, m), float64, of images with coordinates (q, r) and ⟨v, μ⟩ (q,)."""
        eigenvalues, mean = self.side.eigenvalues, self.side.mean_coordinates.astype(np.float64)
        rows = np.asarray(coordinates, np.float64)
        ours = {
            t.gamma: rows + mean if t.gamma is None else shape_coordinates(rows, eigenvalues, t.gamma) for t in kernel
        }
        shape, plain = (len(rows), len(self)), sum(term.weight for term in kernel if term.gamma is None)
        scores = np.empty(shape) if spill is None else spill.empty(shape, np.float64)
        for low in range(0, len(self), _BLOCK):  # blocks, because intermediate arrays are as large as the coordinates
            theirs = {gamma: self._block(low, gamma) for gamma in ours}
            scores[:, low : low + _BLOCK] = weighted_sum((t.weight, ours[t.gamma] @ theirs[t.gamma].T) for t in kernel)
            scores[:, low : low + _BLOCK] += plain * level[:, None]
            self._release()
            release(scores)
        return scores

    def _block(self, low: int, gamma: float | None) -> np.ndarray:
        """Return z (None) or φ_γ of a block of images; cached in small maps, because spreads and scores reuse it."""
        if (low, gamma) in self._cached_features:
            return self._cached_features[low, gamma]
        features = np.asarray(self._features(slice(low, low + _BLOCK), gamma))
        if self.coordinates.shape[0] * self.coordinates.shape[1] <= _CACHED_COORDINATES:
            self._cached_features[low, gamma] = features
        return features

    def pseudo_scores(self, kernel: Sequence[KernelTerm]) -> ScoreBlock:
        """Return scores of the pseudo queries; blocks are copies that the caller may overwrite."""
        coordinates = np.asarray(self.coordinates[self.pseudo], np.float64)
        mean = self.side.mean.astype(np.float64)
        level = mean @ mean + coordinates @ self.side.mean_coordinates  # ⟨v, μ⟩ with v = μ + U z
        every = self.scores_of(coordinates, level, kernel, Spill(_IN_MEMORY))
        return lambda start, stop: tie_scores(np.array(every[start:stop]), self.duplicates)


def normalize_rows(
    halves: BaseRows, lengths: np.ndarray, eigenvalues: np.ndarray, gamma: Gamma, scale: np.ndarray | None = None
) -> Rows:
    """Return the features of a term from stored coordinates: rows φ_½, (m, r), and lengths n = ‖λ^{-1/4} z‖, (m,).

    z = n λ^{1/4} φ_½ and φ_γ = L2(λ^{1/4 − γ/2} φ_½), so every feature is φ_½ with a scale per row and per column.
    `scale` (m,) is the row scale of φ_γ, if known.
    """
    if gamma == MEAN:
        return np.ones((len(halves), 1), np.float32)
    if gamma == 0.5:
        return halves
    if gamma is None:
        return ScaledRows(halves, lengths, eigenvalues**0.25)
    assert isinstance(gamma, float)
    columns, norms = eigenvalues ** (0.25 - gamma / 2), np.empty(len(halves))
    if scale is not None:
        return ScaledRows(halves, scale, columns)
    for start, stop in row_blocks(*halves.shape):
        norms[start:stop] = np.linalg.norm(np.asarray(halves[start:stop], np.float64) * columns, axis=1)
    norms[norms == 0] = 1.0  # the row of an image at the mean is zero
    return ScaledRows(halves, (1 / norms).astype(np.float32), columns)


def fit_space(
    descriptors: np.ndarray,
    patch_directions: np.ndarray,
    split: DatabaseSplit,
    max_rank: int,
    backend: Backend,
    spill: Spill,
    grid: tuple[int, int] | None = None,
) -> SecondOrderSpace:
    """Fit PCA, coordinates, duplicates and spectral facts of one construction's descriptors (m, D)."""
    (images, width), rank = descriptors.shape, min(max_rank, MAX_RANK)
    if min(images, width) > MAX_COVARIANCE:
        chosen = np.linspace(0, images - 1, SAMPLE).astype(np.int64)
        axes = fit_sample_axes(np.asarray(descriptors[chosen]), rank, backend)
        fitted = _along(axes, descriptors, split, backend, spill)
    else:
        principal = _dual if images <= width else _by_covariance
        fitted = principal(descriptors, split, rank, backend, spill)
    return _space(fitted, descriptors, patch_directions, split, grid)


def sample_space(
    axes: PrincipalAxes,
    descriptors: np.ndarray,
    old: SecondOrderSide,
    split: DatabaseSplit,
    backend: Backend,
    spill: Spill,
) -> SecondOrderSpace:
    """Return the space of a sample (m, D) of the images that the axes were fitted on; `old` has its directions."""
    fitted = _along(axes, descriptors, split, backend, spill)
    return _space(fitted, descriptors, old.patch_directions, split, old.grid)


def _space(
    fitted: _Principal,
    descriptors: np.ndarray,
    patch_directions: np.ndarray,
    split: DatabaseSplit,
    grid: tuple[int, int] | None,
) -> SecondOrderSpace:
    side = SecondOrderSide(patch_directions, fitted.mean, fitted.axes, fitted.eigenvalues, grid=grid)
    energies = np.zeros((2, len(fitted.eigenvalues)))
    for start, stop in row_blocks(len(descriptors), len(fitted.eigenvalues)):
        block = fitted.coordinates[start:stop]
        energies += split.half_shares[:, start:stop] @ (block * block)
    facts = replace(fitted.facts, correlation=correlate(energies[0], energies[1]))
    return SecondOrderSpace(side, fitted.coordinates, split.pseudo, fitted.mask, find_duplicates(descriptors), facts)


@dataclass(frozen=True)
class _Principal:
    mean: np.ndarray  # (D,)
    axes: np.ndarray  # (r, D)
    eigenvalues: np.ndarray  # (r,)
    coordinates: np.ndarray  # (m, r), float64
    mask: Mask
    facts: SpectralFacts


def _dual(descriptors: np.ndarray, split: DatabaseSplit, max_rank: int, backend: Backend, spill: Spill) -> _Principal:
    gram = gram_matrix(descriptors, backend)
    products = to_numpy(gram)
    norms = np.sqrt(np.diagonal(products).clip(min=0))
    mask = Mask.of_duplicates(products[split.pseudo], split.pseudo, norms)
    between = split.half_shares[0] - split.half_shares[1]
    displaced = float(np.sqrt(max(float(between @ products @ between), 0.0)))  # ‖μ_0 − μ_1‖² = wᵀGw
    geometry = _without_rounding(gram, float(norms @ norms), descriptors.shape[1], max_rank)
    axes, mean = _axes(descriptors, geometry)
    facts = SpectralFacts(0.0, geometry.participation, displaced / max(float(np.linalg.norm(mean)), 1e-30))
    coordinates = spill.keep(geometry.anchor_coordinates())
    return _Principal(mean.astype(descriptors.dtype), axes, geometry.eigenvalues, coordinates, mask, facts)


def _without_rounding(gram: Array, trace: float, width: int, max_rank: int) -> Geometry:
    """Fit a geometry to the Gram matrix of all anchors, which it overwrites."""
    geometry = fit_geometry(gram, width, max_rank, np.arange(len(gram)))
    kept = geometry.eta > rounding(trace, len(gram), width)
    return replace(geometry, vectors=np.ascontiguousarray(geometry.vectors[:, kept]), eta=geometry.eta[kept])


def fit_sample_axes(descriptors: np.ndarray, max_rank: int, backend: Backend) -> PrincipalAxes:
    """Fit the PCA to the Gram matrix of a sample of descriptors (m, D) with m < D."""
    gram = gram_matrix(descriptors, backend)
    trace = float(np.trace(to_numpy(gram)))
    geometry = _without_rounding(gram, trace, descriptors.shape[1], min(max_rank, MAX_RANK))
    axes, mean = _axes(descriptors, geometry)
    return PrincipalAxes(mean, axes.T.astype(np.float64), geometry.eigenvalues, geometry.participation)


def _axes(descriptors: np.ndarray, geometry: Geometry) -> tuple[np.ndarray, np.ndarray]:
    """Return Uᵀ = η^{-1/2} Eᵀ (V − μ), (r, D), in the dtype of the descriptors, and μ, (D,).

    The rounding error of a float32 product is divided by √η, so it is used only for directions with large η.
    """
    width = descriptors.shape[1]
    weights = (geometry.vectors / np.sqrt(geometry.eta)).T  # (r, m)
    axes, mean = np.empty((geometry.rank, width), descriptors.dtype), np.empty(width)
    large = int(np.searchsorted(-geometry.eta, -LARGE_ETA))
    first, others = weights[:large].astype(descriptors.dtype), weights[large:]
    for low in range(0, width, _BLOCK):
        columns = slice(low, low + _BLOCK)
        block = np.array(descriptors[:, columns])
        mean[columns] = block.mean(axis=0, dtype=np.float64)
        block -= mean[columns].astype(block.dtype)  # its rounding cancels, because weights sum to 0
        np.matmul(first, block, out=axes[:large, columns])
        axes[large:, columns] = others @ block.astype(np.float64, copy=False)
    release(descriptors)
    return axes, mean


def _by_covariance(
    descriptors: np.ndarray, split: DatabaseSplit, max_rank: int, backend: Backend, spill: Spill
) -> _Principal:
    moments = add_moments(Moments.empty(descriptors.shape[1]), descriptors)
    return _along(fit_principal_axes(moments, max_rank), descriptors, split, backend, spill)


def _along(
    axes: PrincipalAxes, descriptors: np.ndarray, split: DatabaseSplit, backend: Backend, spill: Spill
) -> _Principal:
    """Compute coordinates of descriptors on axes fitted on them or on more, and the mask of the pseudo queries."""
    images, width = descriptors.shape
    sums, norms = np.zeros((2, width)), np.empty(images)
    coordinates = spill.empty((images, len(axes.eigenvalues)), np.float64)
    products = np.empty((len(split.pseudo), images), np.float64)
    probes = np.asarray(descriptors[split.pseudo])
    for start in range(0, images, _BLOCK):
        rows = slice(start, start + _BLOCK)
        block = np.asarray(descriptors[rows], np.float64)
        sums += split.half_shares[:, rows] @ block
        norms[rows] = np.sqrt((block * block).sum(axis=1))
        coordinates[rows] = axes.coordinates(block)
        products[:, rows] = cross_products(probes, np.asarray(descriptors[rows]), backend)
        release(descriptors, coordinates)
    mask = Mask.of_duplicates(products, split.pseudo, norms)
    displaced = float(np.linalg.norm(sums[0] - sums[1])) / max(float(np.linalg.norm(axes.mean)), 1e-30)
    facts = SpectralFacts(0.0, axes.participation, displaced)
    own = np.ascontiguousarray(axes.vectors.T, descriptors.dtype)
    return _Principal(axes.mean.astype(descriptors.dtype), own, axes.eigenvalues, coordinates, mask, facts)
