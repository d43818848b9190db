"""Spectral geometry of the database descriptors, in its dual form.

With `V` the descriptors the PCA is fitted on (the *anchors*), everything is a function of inner products:

    G = V Vᵀ,  g = row means of G,  m = mean of g,  G_c = G − g1ᵀ − 1gᵀ + m = E diag(η) Eᵀ,  λ = η/N
    coordinates of an image with products k = V v:   z = η^{-1/2} Eᵀ (k − mean(k) − g + m)
    φ_γ = L2(λ^{-γ/2} z)

so neither the basis U (d_v × r) nor a second pass over V is needed. `reference.Pca` writes the same with U.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from tfa.arrays import Array, Backend, l2, to_numpy

COLUMN_BLOCK = 2048  # descriptor columns cast to float64 at a time


@dataclass(frozen=True)
class Geometry:
    """PCA of the anchors: enough to give any descriptor its coordinates from its products with them."""

    anchors: np.ndarray  # a: database indices the PCA was fitted on
    vectors: np.ndarray  # E, a r
    eta: np.ndarray  # η, r, descending
    anchor_means: np.ndarray  # g, a
    grand_mean: float  # m = ‖μ‖²
    participation: float  # PR^u of the anchors' uncentred Gram matrix
    saw: str = "database"

    @property
    def rank(self) -> int:
        return len(self.eta)

    @property
    def eigenvalues(self) -> np.ndarray:
        return self.eta / len(self.anchors)

    def coordinates(self, products: Array) -> Array:
        """PCA coordinates `q r` from inner products with the anchors `q a`."""
        xp = array_namespace(products)
        means = _like(self.anchor_means, products)
        centred = products - xp.mean(products, axis=1, keepdims=True) - means + self.grand_mean
        # Images are columns of the product: see scoring.inner.
        projected = xp.matrix_transpose(_like(self.vectors, products)) @ centred.T
        return projected.T / _like(np.sqrt(self.eta), products)

    def anchor_coordinates(self, rows: slice = slice(None)) -> np.ndarray:
        """The anchors' own coordinates, E √η."""
        return self.vectors[rows] * np.sqrt(self.eta)

    def shaped(self, coordinates: Array, gamma: float) -> Array:
        """φ_γ: coordinates scaled by λ^{-γ/2}, then L2."""
        if gamma == 0:
            return l2(coordinates)
        return l2(coordinates * _like(self.eigenvalues ** (-gamma / 2), coordinates))


def _like(values: np.ndarray, other: Array) -> Array:
    """`values` with the dtype, and where, `other` lives."""
    if isinstance(other, np.ndarray):
        return np.asarray(values, dtype=other.dtype)
    xp = array_namespace(other)
    return xp.asarray(np.array(values), dtype=other.dtype, device=other.device)


def inner_products(descriptors: np.ndarray, probes: np.ndarray | None, backend: Backend) -> Array:
    """⟨v_p, v_d⟩ in float64 of the probes (None: all images) with the whole database, `p m`.

    In column blocks, so that no float64 copy of the descriptors exists. With all images as probes each block
    is `X Xᵀ`, which numpy runs as a symmetric rank-k update at half the work.
    """
    images, width = descriptors.shape
    count = images if probes is None else len(probes)
    products = backend.xp.zeros((count, images), dtype=backend.xp.float64, device=backend.torch_device or "cpu")
    for low in range(0, width, COLUMN_BLOCK):
        block = backend.put(descriptors[:, low : low + COLUMN_BLOCK], "float64")
        products += block @ block.T if probes is None else block[backend.put(probes), :] @ block.T
    return products


def cross_products(one: np.ndarray, other: np.ndarray, backend: Backend) -> np.ndarray:
    """⟨v, v'⟩ in float64 between two sets of descriptors `q D` and `m D`, in column blocks."""
    products = np.zeros((len(one), len(other)))
    for low in range(0, one.shape[1], COLUMN_BLOCK):
        left = backend.put(one[:, low : low + COLUMN_BLOCK], "float64")
        right = left if other is one else backend.put(other[:, low : low + COLUMN_BLOCK], "float64")
        products += to_numpy(left @ right.T)
    return products


def fit_geometry(gram: Array, width: int, max_rank: int, anchors: np.ndarray) -> Geometry:
    """Eigendecomposition of the centred Gram matrix `a a` of anchors of descriptor width `width`.

    `gram` is overwritten: it is centred in place, since a copy would be as large as the decomposition's own.
    """
    xp = array_namespace(gram)
    count = gram.shape[0]
    means = xp.mean(gram, axis=1)
    grand = float(xp.mean(means))
    trace = float(xp.sum(xp.linalg.diagonal(gram)))
    squares = float(xp.linalg.vector_norm(gram)) ** 2  # ‖G‖_F²
    participation = trace**2 / squares if squares > 0 else 0.0
    gram -= means[:, None]
    gram -= means[None, :]
    gram += grand
    eta, vectors = xp.linalg.eigh(gram)
    eta, vectors = to_numpy(eta)[::-1], to_numpy(vectors)[:, ::-1]  # eigh sorts ascending
    tolerance = max(count, width) * np.finfo(np.float64).eps
    kept = eta > max(eta[0], 0.0) * tolerance
    if eta[0] <= trace * tolerance:
        kept[:] = False  # identical images: the centred Gram matrix is rounding and has no direction
    rank = min(int(kept.sum()), max_rank)
    return Geometry(
        anchors=anchors,
        vectors=np.ascontiguousarray(vectors[:, :rank]),
        eta=np.ascontiguousarray(eta[:rank]),
        anchor_means=to_numpy(means),
        grand_mean=grand,
        participation=participation,
    )


def smooth_step(t: float) -> float:
    """ℓ(t) = sin²(πt/2): from 0 to 1 with flat ends."""
    return math.sin(math.pi * t / 2) ** 2


@dataclass(frozen=True)
class KernelTerm:
    """One term of a score: `weight · ⟨f, f'⟩` with f = v (gamma None) or φ_γ."""

    weight: float
    gamma: float | None


def carrier_terms(carrier: str, c: float = 0.0, beta: float = 0.0) -> tuple[KernelTerm, ...]:
    """The terms of S_0, S_P = S_w(1/2) or S_A = (1−ℓ(c))[(1−ℓ(β)) S_0 + ℓ(β) S_c] + ℓ(c) S_w(c).

    Terms of weight zero are left out, so that S_A at c = β = 0 is S_0 bit for bit.
    """
    if carrier == "original":
        return (KernelTerm(1.0, None),)
    if carrier == "partial":
        return (KernelTerm(1.0, 0.5),)
    shaping, centring = smooth_step(c), smooth_step(beta)
    terms = (
        KernelTerm((1 - shaping) * (1 - centring), None),
        KernelTerm((1 - shaping) * centring, 0.0),
        KernelTerm(shaping, c),
    )
    return tuple(term for term in terms if term.weight > 0)


CARRIERS = ("original", "partial", "adaptive")
