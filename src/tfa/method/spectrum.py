"""Gram matrices, spectra and principal axes of descriptors.

`Geometry` is the PCA in dual form. With V the descriptors that it is fitted on (the *anchors*), everything is a
function of inner products:

    G = V Vᵀ,  g = row means of G,  m = mean of g,  G_c = G − g1ᵀ − 1gᵀ + m = E diag(η) Eᵀ,  λ = η/N
    coordinates of an image with products k = V v:   z = η^{-1/2} Eᵀ (k − mean(k) − g + m)
    φ_γ = L2(λ^{-γ/2} z)

so neither the basis U, (d_v, r), nor a second pass over V is needed. `reference.database.Pca` is the form with U.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # loads its parts on first use

from tfa.core.arrays import Array, Backend, array_namespace, l2_normalize, release, to_numpy
from tfa.search.reduced import Moments

COLUMN_BLOCK = 2048  # descriptor columns cast to float64 at a time
_BLOCK_BYTES = 32 << 20  # minimum bytes of a block of columns
IMAGE_BLOCK = 2048  # images whose products with the probes are summed at a time
LARGE = 10_000  # images above which a Gram matrix is computed in blocks and decomposed in place
SPREADING = 100  # cost of adding one product to its place, in multiplied channels
SPREAD_ROWS = 64  # rows added to their places at a time, so that they stay in the cache


def put_beside(values: np.ndarray, other: Array) -> Array:
    """Return `values` with the dtype and device of `other`."""
    if isinstance(other, np.ndarray):
        return np.asarray(values, dtype=other.dtype)
    xp = array_namespace(other)
    return xp.asarray(np.array(values), dtype=other.dtype, device=other.device)


def gram_matrix(descriptors: np.ndarray, backend: Backend, filled: np.ndarray | None = None) -> Array:
    """Return ⟨v_i, v_j⟩ of all images, (m, m), float64.

    Column blocks avoid a float64 copy of the descriptors. Each block is X Xᵀ, which numpy runs as a symmetric rank-k
    update at half the work. `filled`, (m, k), marks the words of each image, if other words are zero blocks; image
    pairs without a common word then cost nothing.
    """
    images, width = descriptors.shape
    if filled is not None and backend.torch_device is None and _sparse_enough(filled, width // filled.shape[1]):
        return _products_by_word(descriptors, filled)
    products = backend.xp.zeros((images, images), dtype=backend.xp.float64, device=backend.torch_device or "cpu")
    added = backend.xp.empty_like(products)
    # Wide blocks multiply fastest, and the larger the sum, the fewer additions to it should be needed.
    columns = max(COLUMN_BLOCK, images, _BLOCK_BYTES // (8 * images))
    for low in range(0, width, columns):
        block = backend.put(descriptors[:, low : low + columns], "float64")
        products += backend.xp.matmul(block, block.T, out=added)
    return products


def probe_products(descriptors: np.ndarray, probes: np.ndarray, backend: Backend, products: np.ndarray) -> None:
    """Write ⟨v_p, v_d⟩ of the probes with the whole database to `products`, (p, m), float64, which may be mapped."""
    images, width = descriptors.shape
    symmetric = len(probes) == images
    for first in range(0, images, IMAGE_BLOCK):
        last = min(first + IMAGE_BLOCK, images)
        below = first if symmetric else 0  # rows above are the transposes of earlier blocks
        total = np.zeros((len(probes) - below, last - first))
        for low in range(0, width, COLUMN_BLOCK):
            columns = slice(low, low + COLUMN_BLOCK)
            left = backend.put(descriptors[probes[below:], columns], "float64")
            total += to_numpy(left @ backend.put(descriptors[first:last, columns], "float64").T)
        products[below:, first:last] = total
        if symmetric:
            products[first:last, last:] = total[last - first :].T
        release(descriptors, products)


def _sparse_enough(filled: np.ndarray, channels: int) -> bool:
    """Return whether multiplying word by word, only images that have it, is less work."""
    pairs = (filled.sum(axis=0, dtype=np.float64) ** 2).sum()
    return bool(pairs * (channels + SPREADING) < len(filled) ** 2 * filled.shape[1] * channels)


def _products_by_word(descriptors: np.ndarray, filled: np.ndarray) -> np.ndarray:
    """Return G = Σ_k B_k B_kᵀ, with B_k the blocks of word k in the images that have it."""
    images, words = filled.shape
    channels = descriptors.shape[1] // words
    products, space = np.zeros((images, images)), np.empty(images * images)
    for word in range(words):
        have = np.flatnonzero(filled[:, word])
        block = np.asarray(descriptors[have, word * channels : (word + 1) * channels], dtype=np.float64)
        square = space[: len(have) ** 2].reshape(len(have), len(have))
        _add_lower(products, have, np.matmul(block, block.T, out=square))
    for low in range(0, images, SPREAD_ROWS):  # copy the lower triangle to the upper one
        rows, later = slice(low, low + SPREAD_ROWS), slice(low + SPREAD_ROWS, None)
        corner = products[rows, rows]
        products[rows, rows] = np.tril(corner) + np.tril(corner, -1).T
        products[rows, later] = products[later, rows].T
    return products


def _add_lower(products: np.ndarray, have: np.ndarray, added: np.ndarray) -> None:
    """Add `added` to products[have, have] on and below the diagonal (and partly above), a few rows at a time."""
    for low in range(0, len(have), SPREAD_ROWS):
        rows = have[low : low + SPREAD_ROWS]
        columns = have[: low + len(rows)]
        block = products[rows, : columns[-1] + 1]
        block[:, columns] += added[low : low + len(rows), : len(columns)]
        products[rows, : columns[-1] + 1] = block


def cross_products(one: np.ndarray, other: np.ndarray, backend: Backend) -> np.ndarray:
    """Return ⟨v, v'⟩, float64, between descriptors (q, D) and (m, D), in column blocks."""
    products = np.zeros((len(one), len(other)))
    for low in range(0, one.shape[1], COLUMN_BLOCK):
        left = backend.put(one[:, low : low + COLUMN_BLOCK], "float64")
        right = left if other is one else backend.put(other[:, low : low + COLUMN_BLOCK], "float64")
        products += to_numpy(left @ right.T)
    return products


@dataclass(frozen=True)
class Geometry:
    """PCA of the anchors, which maps products with the anchors to coordinates."""

    anchors: np.ndarray  # (a,): database indices that the PCA was fitted on
    vectors: np.ndarray  # (a, r): E
    eta: np.ndarray  # (r,): η, descending
    anchor_means: np.ndarray  # (a,): g
    grand_mean: float  # m = ‖μ‖²
    participation: float  # PR^u of the anchors' uncentered Gram matrix
    data_used: str = "database"
    complete: bool = False  # whether only directions of rounding were left out, so that E diag(η) Eᵀ = G_c

    @property
    def rank(self) -> int:
        return len(self.eta)

    @property
    def eigenvalues(self) -> np.ndarray:
        return self.eta / len(self.anchors)

    def coordinates(self, products: Array) -> Array:
        """Return PCA coordinates (q, r) from inner products with the anchors (q, a)."""
        xp = array_namespace(products)
        means = put_beside(self.anchor_means, products)
        centered = products - xp.mean(products, axis=1, keepdims=True) - means + self.grand_mean
        # Images are columns of the product, see `search.gallery.inner`.
        projected = xp.matrix_transpose(put_beside(self.vectors, products)) @ centered.T
        return projected.T / put_beside(np.sqrt(self.eta), products)

    def anchor_coordinates(self, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
        """Return the coordinates of the anchors, E √η."""
        return self.vectors[rows] * np.sqrt(self.eta)

    def scaled(self, coordinates: Array, gamma: float) -> Array:
        """Return λ^{-γ/2} · coordinates: φ_γ before L2."""
        return coordinates if gamma == 0 else coordinates * put_beside(self.eigenvalues ** (-gamma / 2), coordinates)

    def shaped(self, coordinates: Array, gamma: float) -> Array:
        """Return φ_γ: coordinates scaled by λ^{-γ/2}, then L2."""
        return l2_normalize(self.scaled(coordinates, gamma))


def fit_geometry(gram: Array, width: int, max_rank: int, anchors: np.ndarray) -> Geometry:
    """Decompose the centered Gram matrix (a, a) of anchors with descriptor width `width`.

    `gram` is centered in place, to save the memory of a copy.
    """
    xp = array_namespace(gram)
    count = gram.shape[0]
    means = xp.mean(gram, axis=1)
    grand = float(xp.mean(means))
    trace = float(xp.sum(xp.linalg.diagonal(gram)))
    large = count > LARGE and isinstance(gram, np.ndarray)
    squares = float(np.vdot(gram, gram)) if large else float(xp.linalg.vector_norm(gram)) ** 2  # ‖G‖_F², without a copy
    participation = trace**2 / squares if squares > 0 else 0.0
    gram -= means[:, None]
    gram -= means[None, :]
    gram += grand
    if large:
        # One eigenvalue more than is used shows whether directions are left out. LAPACK overwrites columns: Gᵀ = G.
        wanted = (max(count - max_rank - 1, 0), count - 1)
        eta, vectors = scipy.linalg.eigh(gram.T, subset_by_index=wanted, overwrite_a=True, check_finite=False)
    else:
        eta, vectors = xp.linalg.eigh(gram)
    eta, vectors = to_numpy(eta)[::-1], to_numpy(vectors)[:, ::-1]  # eigh sorts ascending
    tolerance = max(count, width) * np.finfo(np.float64).eps
    kept = eta > max(eta[0], 0.0) * tolerance
    if eta[0] <= trace * tolerance:
        kept[:] = False  # the centered Gram matrix of identical images is rounding and has no direction
    rank = min(int(kept.sum()), max_rank)
    return Geometry(
        anchors=anchors,
        vectors=vectors[:, :rank] if large else np.ascontiguousarray(vectors[:, :rank]),
        eta=np.ascontiguousarray(eta[:rank]),
        anchor_means=to_numpy(means),
        grand_mean=grand,
        participation=participation,
        complete=rank == int(kept.sum()),
    )


_BLOCK = 1024  # descriptors per product


@dataclass(frozen=True)
class PrincipalAxes:
    """PCA of descriptors, computed from their moments."""

    mean: np.ndarray  # (D,), float64
    vectors: np.ndarray  # (D, r), float64
    eigenvalues: np.ndarray  # (r,)
    participation: float  # PR^u

    def coordinates(self, descriptors: np.ndarray) -> np.ndarray:
        """Return z, (m, r), float64."""
        return (np.asarray(descriptors, np.float64) - self.mean) @ self.vectors


def add_moments(total: Moments, descriptors: np.ndarray) -> Moments:
    """Add Σ 1, Σ v and Σ v vᵀ of more descriptors (m, D) to the moments, in place."""
    added = np.empty_like(total.second)
    for start in range(0, len(descriptors), _BLOCK):
        block = np.asarray(descriptors[start : start + _BLOCK], np.float64)
        np.add(total.second, np.matmul(block.T, block, out=added), out=total.second)  # a symmetric rank-k update
        np.add(total.first, block.sum(axis=0), out=total.first)
        release(descriptors)
    return Moments(total.count + len(descriptors), total.first, total.second)


def fit_principal_axes(moments: Moments, max_rank: int) -> PrincipalAxes:
    """Return the leading eigenvectors of the covariance above rounding. `moments` is overwritten."""
    images, width, moment = moments.count, len(moments.first), moments.second
    trace = float(np.trace(moment))
    participation = trace**2 / max(float(np.linalg.norm(moment)) ** 2, 1e-300)
    mean = moments.first / images
    moment /= images
    for row, value in enumerate(mean.tolist()):  # − μ μᵀ, without another matrix of this size
        moment[row] -= value * mean
    wanted = (max(width - max_rank, 0), width - 1)
    values, vectors = scipy.linalg.eigh(moment, subset_by_index=wanted, overwrite_a=True, check_finite=False)
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = values > rounding(trace / images, images, width)
    values, vectors = np.ascontiguousarray(values[kept]), np.ascontiguousarray(vectors[:, kept])
    return PrincipalAxes(mean, vectors, values, participation)


def rounding(trace: float, images: int, width: int) -> float:
    """Return the largest eigenvalue that rounding can produce in a direction without variance.

    Log-covariances of one encoder are similar, so most of the trace belongs to their mean, which centering removes. The
    rounding that remains is proportional to the whole trace, not to the centered one.
    """
    return trace * max(images, width) * float(np.finfo(np.float64).eps)
