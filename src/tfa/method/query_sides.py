"""Query sides: what turns the tokens of a photo into the features that are compared with a gallery.

A side describes photos once (`describe`): descriptors, and where the spectrum is used, coordinates in the PCA of the
database. `features` shapes them for each term of a score. Between the two, coordinates may be shifted: that is how a
head is centred on the photos of another camera (ours, beyond the paper).

    residual       v: residuals of one assignment and vocabulary; z by the dual form, from products with anchors
    second order   v: half-vector of log C; z = Uᵀ(v − μ), U kept as it is because v is short
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tfa.base.backend import backend_for, l2_normalize
from tfa.base.spill import Spill
from tfa.base.tokens import Tokens
from tfa.method.carriers import MEAN, Gamma
from tfa.method.residuals import describe_residuals
from tfa.method.second_order import SECOND_ORDER, describe_second_order
from tfa.method.spectrum import Geometry
from tfa.search.gallery import BaseRows, inner, query_blocks
from tfa.search.quantized import QuantizedRows

_IN_MEMORY = 64 << 20  # bytes of queries' descriptors that are not worth a file


@dataclass(frozen=True)
class SideView:
    """Photos as one side describes them, before a carrier shapes them."""

    descriptors: np.ndarray  # q D
    # q r, None if no term needs them. Of residuals the rows of the last block's filling stand below: what is summed
    # over a row must lie as it does in a full block, or its last bits would depend on the number of queries.
    coordinates: np.ndarray | None = None
    products: np.ndarray | None = None  # q a: with the anchors, where coordinates come from them

    def shifted(self, shift: np.ndarray | None) -> SideView:
        """With coordinates taken from another mean, `r` away from the database's."""
        if shift is None or self.coordinates is None:
            return self
        return replace(self, coordinates=self.coordinates - shift.astype(self.coordinates.dtype))


@dataclass(frozen=True)
class ResidualSide:
    """How a query is described under one assignment and vocabulary."""

    assignment: str
    centers: np.ndarray  # k d
    temperature: float
    geometry: Geometry | None = None  # None when no term needs coordinates
    anchors: BaseRows | None = None  # a k·d: descriptors that carry the geometry
    directions: QuantizedRows | None = None  # r a: Eᵀ in integers, where rows are; the geometry then has no vectors
    shift: np.ndarray | None = None  # r: of the queries' coordinates, where the head is centred on target photos

    @property
    def channels(self) -> int:
        return int(self.centers.shape[1])

    @property
    def width(self) -> int:
        """Return the number of values in a descriptor."""
        return int(self.centers.size)

    @property
    def eigenvalues(self) -> np.ndarray:
        assert self.geometry is not None
        return self.geometry.eigenvalues

    def describe(self, tokens: Tokens, spectral: bool, dtype: str) -> SideView:
        """Descriptors of the images, and their coordinates if a term is `spectral`."""
        described = describe_residuals(
            tokens,
            [self.centers],
            [self.assignment],
            self.temperature,
            backend_for("cpu"),
            dtype=dtype,
            spill=Spill(_IN_MEMORY),
        )
        descriptors = described[self.assignment, 0].descriptors
        if not spectral:
            return SideView(descriptors)
        assert self.geometry is not None
        assert self.anchors is not None
        products, coordinates = [], []
        for block in query_blocks(descriptors, self.anchors):
            products.append(inner(block, self.anchors))
            coordinates.append(self._coordinates(products[-1]))
        count = len(descriptors)
        return SideView(descriptors, np.concatenate(coordinates), np.concatenate(products)[:count])

    def features(self, view: SideView, gammas: Collection[Gamma]) -> dict[Gamma, np.ndarray]:
        """Descriptors (None) and φ_γ `q D` of images that were described."""
        features: dict[Gamma, np.ndarray] = {None: view.descriptors}
        for gamma in gammas:
            if gamma is not None:
                assert self.geometry is not None
                assert isinstance(gamma, float)
                features[gamma] = self.geometry.shaped(view.coordinates, gamma)[: len(view.descriptors)]
        return features

    def _coordinates(self, products: np.ndarray) -> np.ndarray:
        """`geometry.coordinates`, or the same with integers for E."""
        assert self.geometry is not None
        if self.directions is None:
            return self.geometry.coordinates(products)
        means = self.geometry.anchor_means.astype(products.dtype)
        centred = (
            products - products.mean(axis=1, keepdims=True) - means + products.dtype.type(self.geometry.grand_mean)
        )
        return self.directions.inner(centred) / np.sqrt(self.geometry.eta).astype(products.dtype)

    def geometry_in_floats(self) -> Geometry:
        """The geometry with its E, also where that is kept as integers."""
        assert self.geometry is not None
        if self.directions is None:
            return self.geometry
        return replace(self.geometry, vectors=np.asarray(self.directions, np.float32).T)

    def prepare(self) -> None:
        """Pack rows of integers for their kernel."""
        for rows in (self.anchors, self.directions):
            if isinstance(rows, QuantizedRows):
                rows.prepare()


@dataclass(frozen=True)
class SecondOrderSide:
    """How a query is described by how its patches vary together (ours, beyond the paper).

    The descriptors' own product needs no row as long as a descriptor. With v' = μ + U z' for every database image,

        S_0 = ⟨v, v'⟩ = ⟨v, μ⟩ + ⟨z + Uᵀμ, z'⟩

    so the gallery of S_0 are coordinates, and `MEAN` is the part that all images of the database share.
    """

    patch_directions: np.ndarray  # m d
    mean: np.ndarray  # D: μ
    axes: BaseRows  # r D: Uᵀ
    eigenvalues: np.ndarray  # r
    shift: np.ndarray | None = None  # r: as above

    @property
    def assignment(self) -> str:
        return SECOND_ORDER

    @property
    def channels(self) -> int:
        return int(self.patch_directions.shape[1])

    @property
    def width(self) -> int:
        """Return the number of values in a descriptor."""
        return len(self.mean)

    @cached_property
    def mean_coordinates(self) -> np.ndarray:
        """Uᵀμ and Uᵀμ alone, `r`, float32: what coordinates are taken from."""
        return inner(self.mean.astype(np.float32)[None], self.axes)[0]

    def describe(self, tokens: Tokens, spectral: bool, dtype: str) -> SideView:
        """Descriptors and coordinates of the images."""
        [descriptors] = describe_second_order(tokens, [self.patch_directions], dtype=dtype, spill=Spill(_IN_MEMORY))
        return SideView(descriptors, self.coordinates(descriptors))

    def coordinates(self, descriptors: np.ndarray) -> np.ndarray:
        """z = Uᵀ(v − μ) `q r`."""
        if not len(descriptors):
            return np.empty((0, len(self.eigenvalues)), descriptors.dtype)
        centred = descriptors - self.mean.astype(descriptors.dtype)
        blocks = [inner(block, self.axes) for block in query_blocks(centred, self.axes)]
        return np.ascontiguousarray(np.concatenate(blocks)[: len(descriptors)])

    def features(self, view: SideView, gammas: Collection[Gamma]) -> dict[Gamma, np.ndarray]:
        """z + Uᵀμ (None), ⟨v, μ⟩ (MEAN) and φ_γ `q r` of images that were described."""
        assert view.coordinates is not None
        features: dict[Gamma, np.ndarray] = {}
        for gamma in gammas:
            if gamma is None:
                features[gamma] = view.coordinates + self.mean_coordinates.astype(view.coordinates.dtype)
            elif gamma == MEAN:
                features[gamma] = (view.descriptors * self.mean.astype(view.descriptors.dtype)).sum(axis=1)[:, None]
            else:
                assert isinstance(gamma, float)
                features[gamma] = shape_coordinates(view.coordinates, self.eigenvalues, gamma)
        return features

    def prepare(self) -> None:
        """Pack rows of integers for their kernel."""
        if isinstance(self.axes, QuantizedRows):
            self.axes.prepare()


QuerySide = ResidualSide | SecondOrderSide


def as_residual_side(side: QuerySide) -> ResidualSide:
    """A side that is known to be of residuals."""
    assert isinstance(side, ResidualSide), "this is for residual heads"
    return side


def shape_coordinates(coordinates: np.ndarray, eigenvalues: np.ndarray, gamma: float) -> np.ndarray:
    """φ_γ = L2(λ^{-γ/2} z)."""
    scale = (eigenvalues ** (-gamma / 2)).astype(coordinates.dtype)
    return l2_normalize(coordinates if gamma == 0 else coordinates * scale)
