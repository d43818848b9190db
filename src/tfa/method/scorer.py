"""Scorers: the query side of each branch, the terms of a score, and score calibration.

Query sides turn the tokens of a photo into the features that are compared with a gallery. `describe` computes
descriptors and, if needed, coordinates in the PCA of the database. `features` shapes them for each term of a score. A
shift of the coordinates in between centers a head on the photos of another camera.

    residual       v: residuals of one assignment and vocabulary; z by the dual form, from products with anchors
    second order   v: half-vector of log C; z = Uᵀ(v − μ) with an explicit U, because v is short

Scoring. A fitted head is a sum of weighted inner products, so it is one vector per image:

    score(q, d) = Σ_t weight_t · ⟨f_t(q), f_t(d)⟩ + b_d = ⟨Ψ(q), Ψ(d)⟩ + b_d,   Ψ = ⊕_t √weight_t · f_t

A `ScoreTerm` is one term with its gallery. Heads in memory and maps on disk use the same code.

Score calibration subtracts each database image's mean score on target photos:

    x = S/σ,   score(q, d) = x(q, d) − b_d,   b_d = log mean exp of x(·, d) over target photos, trimmed

b_d is a constant per database image, so the calibrated score is still one inner product and a bias.
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
    inner,
    join_duplicates,
    query_blocks,
)
from tfa.search.quantized import QuantizedRows

# --- query sides ----------------------------------------------------------------------------------

_IN_MEMORY = 64 << 20  # maximum bytes of query descriptors kept in memory instead of a file


@dataclass(frozen=True)
class SideView:
    """Photos as one side describes them, before a carrier shapes them."""

    descriptors: np.ndarray  # (q, D)
    # (q, r), None if no term needs them. Residual sides append padding rows of the last block: sums over a row must
    # have the layout of a full block, or their last bits would depend on the number of queries.
    coordinates: np.ndarray | None = None
    products: np.ndarray | None = None  # (q, a): products with the anchors, if coordinates come from them

    def shifted(self, shift: np.ndarray | None) -> SideView:
        """Subtract `shift` (r,) from the coordinates."""
        if shift is None or self.coordinates is None:
            return self
        return replace(self, coordinates=self.coordinates - shift.astype(self.coordinates.dtype))


@dataclass(frozen=True)
class ResidualSide:
    """Query side of one assignment and vocabulary."""

    assignment: str
    centers: np.ndarray  # (k, d)
    temperature: float
    geometry: Geometry | None = None  # None if no term needs coordinates
    anchors: BaseRows | None = None  # (a, k·d): descriptors that the geometry refers to
    directions: QuantizedRows | None = None  # (r, a): Eᵀ as integers; the geometry then has no vectors
    shift: np.ndarray | None = None  # (r,): shift of query coordinates, if centered on target photos

    @property
    def channels(self) -> int:
        return int(self.centers.shape[1])

    @property
    def width(self) -> int:
        """Number of dimensions of a descriptor."""
        return int(self.centers.size)

    @property
    def eigenvalues(self) -> np.ndarray:
        assert self.geometry is not None
        return self.geometry.eigenvalues

    def describe(self, tokens: Tokens, spectral: bool, dtype: str) -> SideView:
        """Compute descriptors of the images, and their coordinates if a term is `spectral`."""
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
        products = [inner(block, self.anchors) for block in query_blocks(descriptors, self.anchors)]
        coordinates = [self._coordinates(block) for block in products]
        return SideView(descriptors, np.concatenate(coordinates), np.concatenate(products)[: len(descriptors)])

    def features(self, view: SideView, gammas: Collection[Gamma]) -> dict[Gamma, np.ndarray]:
        """Return descriptors (None) and φ_γ, (q, D), of described images."""
        features: dict[Gamma, np.ndarray] = {None: view.descriptors}
        for gamma in gammas:
            if gamma is not None:
                assert self.geometry is not None
                assert isinstance(gamma, float)
                features[gamma] = self.geometry.shaped(view.coordinates, gamma)[: len(view.descriptors)]
        return features

    def _coordinates(self, products: np.ndarray) -> np.ndarray:
        """Return `geometry.coordinates`, computed with an integer E if there is one."""
        assert self.geometry is not None
        if self.directions is None:
            return self.geometry.coordinates(products)
        means = self.geometry.anchor_means.astype(products.dtype)
        grand_mean = products.dtype.type(self.geometry.grand_mean)
        centered = products - products.mean(axis=1, keepdims=True) - means + grand_mean
        return self.directions.inner(centered) / np.sqrt(self.geometry.eta).astype(products.dtype)

    def geometry_in_floats(self) -> Geometry:
        """Return the geometry with E as floats, also if it is stored as integers."""
        assert self.geometry is not None
        if self.directions is None:
            return self.geometry
        return replace(self.geometry, vectors=np.asarray(self.directions, np.float32).T)

    def prepare(self) -> None:
        """Pack integer rows for their kernel."""
        for rows in (self.anchors, self.directions):
            if isinstance(rows, QuantizedRows):
                rows.prepare()


@dataclass(frozen=True)
class SecondOrderSide:
    """Query side that describes how the patches of a photo vary together.

    S_0 does not need database rows as long as a descriptor. With v' = μ + U z' for every database image,

        S_0 = ⟨v, v'⟩ = ⟨v, μ⟩ + ⟨z + Uᵀμ, z'⟩

    so the gallery of S_0 has coordinates, and `MEAN` is the part that is equal for all database images.
    """

    patch_directions: np.ndarray  # (m, d); (2, m, d) for two depths
    mean: np.ndarray  # (D,): μ
    axes: BaseRows  # (r, D): Uᵀ
    eigenvalues: np.ndarray  # (r,)
    shift: np.ndarray | None = None  # (r,): shift of query coordinates, if centered on target photos
    grid: tuple[int, int] | None = None  # rows and columns of patches, for two depths

    @property
    def assignment(self) -> str:
        return SECOND_ORDER

    @property
    def depths(self) -> int:
        """Number of encoder blocks whose patches are described."""
        return 1 if self.patch_directions.ndim == 2 else len(self.patch_directions)

    @property
    def channels(self) -> int:
        return self.depths * int(self.patch_directions.shape[-1])

    @property
    def width(self) -> int:
        """Number of dimensions of a descriptor."""
        return len(self.mean)

    @cached_property
    def mean_coordinates(self) -> np.ndarray:
        """Uᵀμ, (r,), float32."""
        return inner(self.mean.astype(np.float32)[None], self.axes)[0]

    def describe(self, tokens: Tokens, spectral: bool, dtype: str) -> SideView:
        """Compute descriptors and coordinates of the images."""
        [descriptors] = describe_second_order(tokens, [self.patch_directions], dtype=dtype, spill=Spill(_IN_MEMORY))
        return SideView(descriptors, self.coordinates(descriptors))

    def coordinates(self, descriptors: np.ndarray) -> np.ndarray:
        """Return z = Uᵀ(v − μ), (q, r)."""
        if not len(descriptors):
            return np.empty((0, len(self.eigenvalues)), descriptors.dtype)
        centered = descriptors - self.mean.astype(descriptors.dtype)
        blocks = [inner(block, self.axes) for block in query_blocks(centered, self.axes)]
        return np.ascontiguousarray(np.concatenate(blocks)[: len(descriptors)])

    def features(self, view: SideView, gammas: Collection[Gamma]) -> dict[Gamma, np.ndarray]:
        """Return z + Uᵀμ (None), ⟨v, μ⟩ (MEAN) and φ_γ, (q, r), of described images."""
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
        """Pack integer rows for their kernel."""
        if isinstance(self.axes, QuantizedRows):
            self.axes.prepare()


QuerySide = ResidualSide | SecondOrderSide


def as_residual_side(side: QuerySide) -> ResidualSide:
    """Narrow the type of a side that is known to be residual."""
    assert isinstance(side, ResidualSide), "this is for residual heads"
    return side


def shape_coordinates(coordinates: np.ndarray, eigenvalues: np.ndarray, gamma: float) -> np.ndarray:
    """Return φ_γ = L2(λ^{-γ/2} z)."""
    scale = (eigenvalues ** (-gamma / 2)).astype(coordinates.dtype)
    return l2_normalize(coordinates if gamma == 0 else coordinates * scale)


# --- scorer ---------------------------------------------------------------------------------------

TRIMMED = 0.05  # share of the largest entries of a column that score calibration ignores
GLOBAL = -1  # "side" of terms that compare global tokens
INTEGER_BLOCK = 64  # queries scored at a time


@dataclass(frozen=True)
class ScoreTerm:
    """One term of the score: weight · ⟨f(q), f(d)⟩ over the gallery."""

    weight: float
    side: int  # index of a QuerySide, or GLOBAL
    gamma: Gamma  # None: the descriptor (or the global token)
    gallery: Gallery  # (m, D)
    member: int = 0  # replica of an ensemble


@dataclass(frozen=True)
class Scorer:
    """A scorer of query tokens against a gallery."""

    sides: tuple[QuerySide, ...]
    terms: tuple[ScoreTerm, ...]
    bias: np.ndarray  # (m,)
    duplicates: np.ndarray | None = None  # (m,): index of the first image with identical tokens
    dtype: str = "float32"
    # Features of the calibration images, (c, D) per term, if scores were calibrated: images added later get their
    # bias from them, without the share `trimmed` of largest scores.
    calibrators: tuple[np.ndarray, ...] | None = None
    trimmed: float = TRIMMED

    @property
    def rows(self) -> WeightedGalleries:
        """Weighted galleries of all terms."""
        weights, galleries = tuple(term.weight for term in self.terms), tuple(term.gallery for term in self.terms)
        return WeightedGalleries(weights, galleries, self.bias, self.duplicates, self.dtype)

    def scores(self, tokens: Tokens) -> np.ndarray:
        """Return scores (q, m)."""
        rows = self.rows
        blocks = [
            rows.scores(self.query_vectors(tokens.select(slice(start, start + INTEGER_BLOCK))))
            for start in range(0, len(tokens), INTEGER_BLOCK)
        ]
        return np.concatenate(blocks) if blocks else np.empty((0, len(self.bias)), self.dtype)

    def scores_of(self, features: Sequence[np.ndarray]) -> np.ndarray:
        """Return scores (q, m) of queries from their feature of each term."""
        return self.rows.scores(QueryVectors(tuple(features), tuple(term.weight for term in self.terms)))

    def query_vectors(self, tokens: Tokens) -> QueryVectors:
        """Return the search vectors of queries: the feature of each term, (q, D)."""
        return self.vectors_of(self.describe(tokens), tokens.cls, [side.shift for side in self.sides])

    def describe(self, tokens: Tokens) -> list[SideView]:
        """Describe queries with each side, before any shift."""
        self.check(tokens)
        spectral = {term.side for term in self.terms if term.gamma is not None}
        return [side.describe(tokens, index in spectral, self.dtype) for index, side in enumerate(self.sides)]

    def vectors_of(
        self, views: Sequence[SideView], cls: np.ndarray | None, shifts: Sequence[np.ndarray | None]
    ) -> QueryVectors:
        """Return the feature of each term of described queries, with the coordinates of each side shifted."""
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
        """Return search vectors of database images, from their rows, without a calibration's shift.

        `MEAN`, the part of second-order scores that is equal for all images, is 0: it does not change a ranking.
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
        """Return the scorer as one vector per image and a bias per database image."""
        rows = self.rows
        galleries = [gallery.take(np.arange(len(rows))).astype(self.dtype, copy=False) for gallery in rows.galleries]
        return Compiled(self, direct_sum(rows.weights, galleries), self.bias.astype(self.dtype))

    def prepare(self) -> None:
        """Pack integer rows for their kernel; scores do not change."""
        for term in self.terms:
            term.gallery.prepare()
        for side in self.sides:
            side.prepare()

    def check(self, tokens: Tokens) -> None:
        widths = [term.gallery.width for term in self.terms if term.side == GLOBAL]
        check_token_channels(tokens, self.sides[0].channels, widths[0] if widths else None)
        if widths and len(tokens) and tokens.cls is None:
            raise BadTokens("this head compares global tokens and the query has none; pass cls")


@dataclass(frozen=True)
class Compiled:
    """A head as one vector per image, for any inner-product search."""

    scorer: Scorer
    database: np.ndarray  # (m, D)
    bias: np.ndarray  # (m,)

    def query(self, tokens: Tokens) -> np.ndarray:
        """Return query vectors (q, D)."""
        return np.asarray(self.scorer.query_vectors(tokens))


def check_token_channels(tokens: Tokens, channels: int, width: int | None) -> None:
    """Raise if `tokens` do not have `channels` patch channels and `width` global-token channels."""
    if len(tokens) and tokens.channels != channels:
        raise ChannelMismatch(
            f"tokens have {tokens.channels} channels, this head was fitted on {channels}; "
            "encode them with the database's encoder"
        )
    if len(tokens) and tokens.cls is not None and width is not None and tokens.cls.shape[1] != width:
        raise ChannelMismatch(f"global tokens have {tokens.cls.shape[1]} channels, must have {width}")


def join_scorers(scorers: Sequence[Scorer]) -> Scorer:
    """Return the sum of several scorers over one gallery as one scorer."""
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
    duplicates = join_duplicates([scorer.duplicates for scorer in scorers])
    known, first = tuple(calibrators) or None, scorers[0]
    return Scorer(tuple(sides), tuple(terms), bias, duplicates, first.dtype, known, first.trimmed)


def split_scorer(scorer: Scorer) -> list[Scorer]:
    """Return the members of a joined scorer, without calibration; each has one side."""
    parts = []
    for member in sorted({term.member for term in scorer.terms}):
        own = [term for term in scorer.terms if term.member == member]
        [side] = {term.side for term in own}
        terms = tuple(replace(term, side=0, member=0) for term in own)
        bias = np.zeros_like(scorer.bias)
        parts.append(Scorer((scorer.sides[side],), terms, bias, scorer.duplicates, scorer.dtype))
    return parts


# --- score calibration ----------------------------------------------------------------------------


def calibrate_scorer(scorer: Scorer, sigma: float, target: Tokens) -> Scorer:
    """Return the scorer scaled by 1/σ, minus each database image's mean score on the target photos."""
    terms = tuple(replace(term, weight=term.weight / sigma) for term in scorer.terms)
    scaled = replace(scorer, terms=terms, bias=scorer.bias / sigma)
    features = scaled.query_vectors(target).terms
    return replace(scaled, calibrators=features, bias=scaled.bias - usual_scores(scaled.scores_of(features)))


def usual_scores(scores: np.ndarray, trimmed: float = TRIMMED) -> np.ndarray:
    """Return b_d, (m,): log mean exp of each column over target rows (c, m), without its ⌈5 %⌉ largest entries.

    Without them, a place is not penalized because some target photos show it.
    """
    count = max(len(scores) - math.ceil(trimmed * len(scores)), 1)
    kept = np.partition(scores, count - 1, axis=0)[:count].astype(np.float64)
    top = kept[-1]  # log mean exp(x) = top + log mean exp(x − top) avoids overflow
    return top + np.log(np.exp(kept - top).mean(axis=0))


def compute_row_bias(scorer: Scorer, rows: Sequence[Rows]) -> np.ndarray:
    """Return the bias of images that are added to the gallery, from feature rows (m, D) per term."""
    bias = np.zeros(len(rows[0]))
    if scorer.calibrators is None:
        return bias
    for member in sorted({term.member for term in scorer.terms}):
        chosen = [i for i, term in enumerate(scorer.terms) if term.member == member]
        scores = sum(scorer.terms[i].weight * inner(scorer.calibrators[i], rows[i]) for i in chosen)
        bias -= usual_scores(np.asarray(scores), scorer.trimmed)
    return bias
