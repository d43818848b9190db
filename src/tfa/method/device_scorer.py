"""A scorer on one device: tokens in, the best images out, without a step on another device.

The arithmetic is that of `Scorer`, for batches on any array library; scores differ by rounding only. Metal has no
float64 and no eigendecomposition, so there the logarithm of a covariance is computed on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import numpy as np

from tfa.core.arrays import Array, Backend, array_namespace, l2_normalize, to_numpy
from tfa.core.tokens import Tokens
from tfa.method.carriers import MEAN, Gamma
from tfa.method.residuals import describe_batch
from tfa.method.scorer import GLOBAL, QuerySide, ResidualSide, Scorer, SecondOrderSide
from tfa.method.second_order import COVARIANCE_RIDGE, average_cells, cell_bands, triangle
from tfa.search.gallery import ExactSearch, QueryVectors, Rows

_Features = Callable[[Array], dict[Gamma, Array]]  # patches (q, n, d) to the features (q, D) of a side


class DeviceScorer:
    """A scorer whose rows are on a device."""

    def __init__(self, scorer: Scorer, backend: Backend) -> None:
        self.scorer, self.backend = scorer, backend
        self._rows: dict[int, Array] = {}  # by the identity of the rows on the CPU
        gammas = [{term.gamma for term in scorer.terms if term.side == index} for index in range(len(scorer.sides))]
        self._sides = [_put_side(self, *side) for side in zip(scorer.sides, gammas, strict=True)]
        self._galleries = [self.put_rows(term.gallery.chunks) for term in scorer.terms]
        same = scorer.duplicates
        self._bias, self._duplicates = self.put(scorer.bias), None if same is None else backend.put(same)

    def put_rows(self, chunks: Collection[Rows]) -> Array:
        """Copy rows to the device, once for all terms and sides that share them."""
        for rows in chunks:
            if id(rows) not in self._rows:
                self._rows[id(rows)] = self.put(np.asarray(rows))
        each = [self._rows[id(rows)] for rows in chunks]
        return each[0] if len(each) == 1 else self.backend.xp.concat(each)

    def features(self, patches: Array, cls: Array | None) -> list[Array]:
        """Return the feature of each term, (q, D), of patches (q, n, d) and global tokens (q, d_g) on the device."""
        own, unit = [features(patches) for features in self._sides], None if cls is None else l2_normalize(cls)
        return [unit if term.side == GLOBAL else own[term.side][term.gamma] for term in self.scorer.terms]

    def score_features(self, features: Collection[Array]) -> Array:
        """Return scores (q, m) from the feature of each term."""
        total = self._bias
        for term, gallery, feature in zip(self.scorer.terms, self._galleries, features, strict=True):
            total = total + term.weight * (feature @ gallery.T)
        return total if self._duplicates is None else total[:, self._duplicates]  # duplicates tie to the last bit

    def put(self, array: np.ndarray) -> Array:
        """Copy an array to the device in the scorer's dtype."""
        return self.backend.put(array, self.scorer.dtype)

    def query_vectors(self, tokens: Tokens) -> QueryVectors:
        """Return the search vectors of queries as `Scorer.query_vectors`."""
        each = [map(to_numpy, features) for features in self._describe(tokens)]
        terms = tuple(np.concatenate(term) for term in zip(*each, strict=True))
        return QueryVectors(terms, tuple(term.weight for term in self.scorer.terms))

    def scores(self, tokens: Tokens) -> np.ndarray:
        """Return scores (q, m) as `Scorer.scores`."""
        none = np.empty((0, len(self.scorer.bias)), self.scorer.dtype)
        return np.concatenate([none, *(to_numpy(self.score_features(one)) for one in self._describe(tokens))])

    def _describe(self, tokens: Tokens) -> Iterator[list[Array]]:
        """Yield the features of each batch of queries."""
        self.scorer.check(tokens)
        for batch in tokens.batches():
            cls = None if tokens.cls is None else self.put(tokens.cls[batch.start : batch.stop])
            yield self.features(self.put(batch.patches), cls)


class DeviceSearch(ExactSearch):
    """Exact search whose products are computed on a device."""

    def __init__(self, on_device: DeviceScorer, ids: np.ndarray, alive: np.ndarray) -> None:
        super().__init__(on_device.scorer.rows, ids, alive)
        self._on_device = on_device

    def scores(self, vectors: np.ndarray | QueryVectors) -> np.ndarray:
        """Return scores `(q, n)` of all searched images, in the order of `ids`."""
        terms = [self._on_device.put(term) for term in self.rows.split_terms(vectors).terms]
        return to_numpy(self._on_device.score_features(terms))[:, self.alive]


def _put_side(owner: DeviceScorer, side: QuerySide, gammas: Collection[Gamma]) -> _Features:
    scales = {gamma: owner.put(side.eigenvalues ** (-gamma / 2)) for gamma in gammas if isinstance(gamma, float)}
    shift = 0.0 if side.shift is None else owner.put(side.shift)
    if isinstance(side, ResidualSide):
        return _put_residuals(owner, side, scales, shift)
    return _put_covariance(owner, side, scales, shift)


def _put_residuals(owner: DeviceScorer, side: ResidualSide, scales: dict[float, Array], shift: Array) -> _Features:
    centers = owner.put(side.centers)
    if scales:
        assert side.anchors is not None
        geometry, anchors = side.geometry_in_floats(), owner.put_rows([side.anchors])
        # z = η^{-1/2} Eᵀ (k − mean(k) − g + m), with η^{-1/2} in the basis.
        basis = owner.put(geometry.vectors / np.sqrt(geometry.eta))
        means = owner.put(geometry.anchor_means - geometry.grand_mean)

    def features(patches: Array) -> dict[Gamma, Array]:
        described = describe_batch(patches, [centers], [side.assignment], side.temperature)
        descriptors, _ = described[side.assignment, 0]
        plain: dict[Gamma, Array] = {None: descriptors}
        if not scales:
            return plain
        products, xp = descriptors @ anchors.T, array_namespace(descriptors)
        coordinates = (products - xp.mean(products, axis=1, keepdims=True) - means) @ basis - shift
        return plain | {gamma: l2_normalize(coordinates * scale) for gamma, scale in scales.items()}

    return features


def _put_covariance(owner: DeviceScorer, side: SecondOrderSide, scales: dict[float, Array], shift: Array) -> _Features:
    places, weights = triangle(side.patch_directions.shape[-2])
    axes, at = owner.put_rows([side.axes]), owner.backend.put(places)
    constants = (side.patch_directions, side.mean, side.mean_coordinates, weights)
    directions, mean, mean_coordinates, spread = map(owner.put, constants)
    bands = None if side.grid is None else tuple(map(owner.put, cell_bands(side.grid)))
    xp, d = owner.backend.xp, side.patch_directions.shape[-1]

    def vectors(unit: Array, onto: Array) -> Array:
        projected = (unit - xp.mean(unit, axis=1, keepdims=True)) @ onto.T  # (q, n, m)
        return l2_normalize(_logarithm(projected)[:, at] * spread)

    def described(patches: Array) -> Array:
        if bands is None:
            return vectors(l2_normalize(patches), directions)
        earlier, later = l2_normalize(patches[:, :, :d]), average_cells(l2_normalize(patches[:, :, d:]), bands)
        return xp.concat([vectors(earlier, directions[0]), vectors(later, directions[1])], axis=1) * 0.5**0.5

    def features(patches: Array) -> dict[Gamma, Array]:
        own = described(patches)
        coordinates = (own - mean) @ axes.T - shift
        level = xp.sum(own * mean, axis=1, keepdims=True)
        plain: dict[Gamma, Array] = {None: coordinates + mean_coordinates, MEAN: level}
        return plain | {gamma: l2_normalize(coordinates * scale) for gamma, scale in scales.items()}

    return features


def _logarithm(projected: Array) -> Array:
    """Return log C, (q, m·m), of centered patches on directions, (q, n, m); see `second_order.covariance`."""
    (images, patches, size), home, dtype = projected.shape, projected.device, projected.dtype
    xp = array_namespace(projected)
    if str(home).startswith("mps"):
        projected = projected.cpu()
    if patches < 2 * size:
        projected = xp.astype(projected, xp.float64)
    squares = xp.astype(xp.matrix_transpose(projected) @ projected, xp.float64) / max(patches - 1, 1)
    ridge = COVARIANCE_RIDGE * xp.eye(size, dtype=xp.float64, device=squares.device)
    values, basis = xp.linalg.eigh(squares + ridge)
    wide = (basis * xp.log(xp.clip(values, COVARIANCE_RIDGE, None))[:, None, :]) @ xp.matrix_transpose(basis)
    return xp.reshape(xp.astype(wide, dtype), (images, size * size)).to(home)
