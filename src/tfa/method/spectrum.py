"""Spectral geometry of the database descriptors, in its dual form.

With `V` the descriptors the PCA is fitted on (the *anchors*), everything is a function of inner products:

    G = V Vᵀ,  g = row means of G,  m = mean of g,  G_c = G − g1ᵀ − 1gᵀ + m = E diag(η) Eᵀ,  λ = η/N
    coordinates of an image with products k = V v:   z = η^{-1/2} Eᵀ (k − mean(k) − g + m)
    φ_γ = L2(λ^{-γ/2} z)

so neither the basis U (d_v × r) nor a second pass over V is needed. `reference.database.Pca` writes the same with U.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from tfa.base.backend import Array, l2_normalize, to_numpy
from tfa.method.gram import put_beside


@dataclass(frozen=True)
class Geometry:
    """PCA of the anchors: enough to give any descriptor its coordinates from its products with them."""

    anchors: np.ndarray  # a: database indices the PCA was fitted on
    vectors: np.ndarray  # E, a r
    eta: np.ndarray  # η, r, descending
    anchor_means: np.ndarray  # g, a
    grand_mean: float  # m = ‖μ‖²
    participation: float  # PR^u of the anchors' uncentred Gram matrix
    data_used: str = "database"
    complete: bool = False  # no direction was left out but those of rounding: E diag(η) Eᵀ is all of G_c

    @property
    def rank(self) -> int:
        return len(self.eta)

    @property
    def eigenvalues(self) -> np.ndarray:
        return self.eta / len(self.anchors)

    def coordinates(self, products: Array) -> Array:
        """PCA coordinates `q r` from inner products with the anchors `q a`."""
        xp = array_namespace(products)
        means = put_beside(self.anchor_means, products)
        centred = products - xp.mean(products, axis=1, keepdims=True) - means + self.grand_mean
        # Images are columns of the product: see `inner` of search.gallery.
        projected = xp.matrix_transpose(put_beside(self.vectors, products)) @ centred.T
        return projected.T / put_beside(np.sqrt(self.eta), products)

    def anchor_coordinates(self, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
        """The anchors' own coordinates, E √η."""
        return self.vectors[rows] * np.sqrt(self.eta)

    def scaled(self, coordinates: Array, gamma: float) -> Array:
        """λ^{-γ/2} · coordinates: φ_γ before L2."""
        return coordinates if gamma == 0 else coordinates * put_beside(self.eigenvalues ** (-gamma / 2), coordinates)

    def shaped(self, coordinates: Array, gamma: float) -> Array:
        """φ_γ: coordinates scaled by λ^{-γ/2}, then L2."""
        return l2_normalize(self.scaled(coordinates, gamma))


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
        complete=rank == int(kept.sum()),
    )


def smooth_step(t: float) -> float:
    """ℓ(t) = sin²(πt/2): from 0 to 1 with flat ends."""
    return math.sin(math.pi * t / 2) ** 2
