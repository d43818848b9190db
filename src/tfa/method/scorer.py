"""Scorers: the query side of each branch, the terms of a score, and robust score calibration (beyond the paper).

Query sides: what turns the tokens of a photo into the features that are compared with a gallery.

A side describes photos once (`describe`): descriptors, and where the spectrum is used, coordinates in the PCA of the
database. `features` shapes them for each term of a score. Between the two, coordinates may be shifted: that is how a
head is centred on the photos of another camera (ours, beyond the paper).

    residual       v: residuals of one assignment and vocabulary; z by the dual form, from products with anchors
    second order   v: half-vector of log C; z = Uᵀ(v − μ), U kept as it is because v is short

Scoring: a fitted head is a sum of weighted inner products, so it is one vector per image.

    score(q, d) = Σ_t weight_t · ⟨f_t(q), f_t(d)⟩ + b_d = ⟨Ψ(q), Ψ(d)⟩ + b_d,   Ψ = ⊕_t √weight_t · f_t

A `QuerySide` turns tokens into the features of one assignment and vocabulary; a `ScoreTerm` is one term with its
gallery. The head in memory and the map on disk score through the same code.

Robust score calibration (ours, beyond the paper): subtracts each database image's mean score on target photos.

    x = S/σ,   score(q, d) = x(q, d) − b_d,   b_d = log mean exp of x(·, d) over target photos, trimmed

A constant per database image: the calibrated score is still one inner product and a bias.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tfa.core.arrays import Spill, backend_for, l2_normalize
from tfa.core.tokens import Tokens
from tfa.errors import BadTokens, ChannelMismatch
from tfa.method.carriers import MEAN, Gamma
from tfa.method.residuals import describe_residuals
from tfa.method.second_order import SECOND_ORDER, describe_second_order
from tfa.method.spectrum import Geometry
from tfa.search.gallery import (
    BaseRows,
    Gallery,
    QueryVectors,
    Rows,
    WeightedGalleries,
    direct_sum,
    find_duplicates,
    inner,
    query_blocks,
)
from tfa.search.quantized import QuantizedRows

# --- query sides ----------------------------------------------------------------------------------

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


# --- scorer ---------------------------------------------------------------------------------------

GLOBAL = -1  # the "side" of terms that compare global tokens
INTEGER_BLOCK = 64  # queries at a time where rows are integers: their products are exact, so nothing is padded


@dataclass(frozen=True)
class ScoreTerm:
    """One term of the score: weight · ⟨f(q), f(d)⟩ over the gallery."""

    weight: float
    side: int  # index of a QuerySide, or GLOBAL
    gamma: Gamma  # None: the descriptor itself (or the global token)
    gallery: Gallery  # m D
    member: int = 0  # which replica of an ensemble it belongs to


@dataclass(frozen=True)
class Scorer:
    """Tokens in, scores against a gallery out."""

    sides: tuple[QuerySide, ...]
    terms: tuple[ScoreTerm, ...]
    bias: np.ndarray  # m
    duplicates: np.ndarray | None = None  # m: index of the first image with the very same tokens
    dtype: str = "float32"
    # Features of the calibration images, one array `c D` per term, where scores were calibrated: an image that
    # joins the gallery later gets its bias from them.
    calibrators: tuple[np.ndarray, ...] | None = None

    @property
    def rows(self) -> WeightedGalleries:
        """What scoring needs of the database."""
        weights, galleries = tuple(term.weight for term in self.terms), tuple(term.gallery for term in self.terms)
        return WeightedGalleries(weights, galleries, self.bias, self.duplicates, self.dtype)

    def scores(self, tokens: Tokens) -> np.ndarray:
        """`q m` scores."""
        rows = self.rows
        blocks = [
            rows.scores(self.query_vectors(tokens.select(slice(start, start + INTEGER_BLOCK))))
            for start in range(0, len(tokens), INTEGER_BLOCK)
        ]
        return np.concatenate(blocks) if blocks else np.empty((0, len(self.bias)), self.dtype)

    def scores_of(self, features: Sequence[np.ndarray]) -> np.ndarray:
        """`q m` scores of queries whose feature of each term is given."""
        return self.rows.scores(QueryVectors(tuple(features), tuple(term.weight for term in self.terms)))

    def query_vectors(self, tokens: Tokens) -> QueryVectors:
        """The queries as a search takes them: the feature of each term, `q D`."""
        return self.vectors_of(self.describe(tokens), tokens.cls, [side.shift for side in self.sides])

    def describe(self, tokens: Tokens) -> list[SideView]:
        """The queries as each side describes them, before any shift."""
        self.check(tokens)
        views = []
        for index, side in enumerate(self.sides):
            spectral = any(term.side == index and term.gamma is not None for term in self.terms)
            views.append(side.describe(tokens, spectral, self.dtype))
        return views

    def vectors_of(
        self, views: Sequence[SideView], cls: np.ndarray | None, shifts: Sequence[np.ndarray | None]
    ) -> QueryVectors:
        """The feature of each term of queries that were described; coordinates of each side are shifted, if given."""
        features, known = [], []
        for index, (side, view, shift) in enumerate(zip(self.sides, views, shifts, strict=True)):
            gammas = {term.gamma for term in self.terms if term.side == index}
            features.append(side.features(view.shifted(shift), gammas))
            if isinstance(side, ResidualSide) and side.anchors is not None and view.products is not None:
                known.append((side.anchors, view.products))
        every = tuple(
            l2_normalize(np.asarray(cls, self.dtype)) if term.side == GLOBAL else features[term.side][term.gamma]
            for term in self.terms
        )
        return QueryVectors(every, tuple(term.weight for term in self.terms), known)

    def image_vectors(self, images: np.ndarray) -> QueryVectors:
        """Images of the database as queries, from their rows; nothing is centred on other photos.

        Of second-order scores the part that all images share (`MEAN`) is 0: it ranks nothing.
        """
        features = []
        for term in self.terms:
            rows, side = term.gallery.take(images).astype(self.dtype, copy=False), self.sides[term.side]
            if term.side != GLOBAL and isinstance(side, SecondOrderSide):
                if term.gamma is None:
                    rows = rows + side.mean_coordinates.astype(self.dtype)
                elif term.gamma == MEAN:
                    rows = np.zeros_like(rows)
            features.append(rows)
        return QueryVectors(tuple(features), tuple(term.weight for term in self.terms))

    def compile(self) -> Compiled:
        """The scorer as one vector per image and a bias per database image."""
        rows = self.rows
        galleries = [gallery.take(np.arange(len(rows))).astype(self.dtype, copy=False) for gallery in rows.galleries]
        return Compiled(self, direct_sum(rows.weights, galleries), self.bias.astype(self.dtype))

    def prepare(self) -> None:
        """Pack rows of integers for their kernel; scores stay as they are."""
        for term in self.terms:
            term.gallery.prepare()
        for side in self.sides:
            side.prepare()

    def check(self, tokens: Tokens) -> None:
        widths = [term.gallery.width for term in self.terms if term.side == GLOBAL]
        check_token_channels(tokens, self.sides[0].channels, widths[0] if widths else None)
        if widths and len(tokens) and tokens.cls is None:
            raise BadTokens("this head compares global tokens and the query has none; give cls")


@dataclass(frozen=True)
class Compiled:
    """A head as one vector per image: any inner-product search can use it."""

    scorer: Scorer
    database: np.ndarray  # m D
    bias: np.ndarray  # m

    def query(self, tokens: Tokens) -> np.ndarray:
        """`q D`."""
        return np.asarray(self.scorer.query_vectors(tokens))


def check_token_channels(tokens: Tokens, channels: int, width: int | None) -> None:
    """Raise if `tokens` do not come from the encoder of a head of so many channels, of patches and global tokens."""
    if len(tokens) and tokens.channels != channels:
        raise ChannelMismatch(
            f"tokens have {tokens.channels} channels, this head was fitted on {channels}; "
            "encode them with the encoder of the database"
        )
    if len(tokens) and tokens.cls is not None and width is not None and tokens.cls.shape[1] != width:
        raise ChannelMismatch(f"global tokens have {tokens.cls.shape[1]} channels, must have {width}")


def join_scorers(scorers: Sequence[Scorer]) -> Scorer:
    """The sum of several scorers over one gallery, as one scorer."""
    terms: list[ScoreTerm] = []
    sides: list[QuerySide] = []
    calibrators: list[np.ndarray] = []
    for member, scorer in enumerate(scorers):
        for term in scorer.terms:
            side = term.side if term.side == GLOBAL else term.side + len(sides)
            terms.append(replace(term, side=side, member=member))
        sides.extend(scorer.sides)
        calibrators.extend(scorer.calibrators or ())
    bias = np.sum([scorer.bias for scorer in scorers], axis=0)
    each = [scorer.duplicates for scorer in scorers if scorer.duplicates is not None]
    # Images are duplicates of the sum only if they are duplicates in every scorer.
    duplicates = find_duplicates(np.stack(each, axis=1)) if len(each) == len(scorers) else None
    return Scorer(tuple(sides), tuple(terms), bias, duplicates, scorers[0].dtype, tuple(calibrators) or None)


# --- score calibration ----------------------------------------------------------------------------

_TRIMMED = 0.05  # share of the largest entries of a column that do not count


def calibrate_scorer(scorer: Scorer, sigma: float, target: Tokens) -> Scorer:
    """The scorer scaled by 1/σ, less the mean score of each database image on the target photos."""
    terms = tuple(replace(term, weight=term.weight / sigma) for term in scorer.terms)
    scaled = replace(scorer, terms=terms, bias=scorer.bias / sigma)
    features = scaled.query_vectors(target).terms
    return replace(scaled, calibrators=features, bias=scaled.bias - usual_scores(scaled.scores_of(features)))


def usual_scores(scores: np.ndarray) -> np.ndarray:
    """b_d `m`: log mean exp of each column over target rows `c m`, without its ⌈5 %⌉ largest entries.

    Dropping the largest keeps a place from being punished because a target photo happens to show it.
    """
    count = max(len(scores) - math.ceil(_TRIMMED * len(scores)), 1)
    kept = np.partition(scores, count - 1, axis=0)[:count].astype(np.float64)
    top = kept[-1]  # the largest that is kept; log mean exp = top + log mean exp(x − top): no overflow
    return top + np.log(np.exp(kept - top).mean(axis=0))


def compute_row_bias(scorer: Scorer, rows: Sequence[Rows]) -> np.ndarray:
    """Bias of images that join the gallery with feature rows `m D` per term."""
    bias = np.zeros(len(rows[0]))
    if scorer.calibrators is None:
        return bias
    for member in sorted({term.member for term in scorer.terms}):
        chosen = [i for i, term in enumerate(scorer.terms) if term.member == member]
        scores = sum(scorer.terms[i].weight * inner(scorer.calibrators[i], rows[i]) for i in chosen)
        bias -= usual_scores(np.asarray(scores))
    return bias
