"""Scoring: a fitted head is a sum of weighted inner products, so it is one vector per image.

    score(q, d) = Σ_t weight_t · ⟨f_t(q), f_t(d)⟩ + b_d = ⟨Ψ(q), Ψ(d)⟩ + b_d,   Ψ = ⊕_t √weight_t · f_t

A `QuerySide` turns tokens into the features of one assignment and vocabulary; a `ScoreTerm` is one term with its
gallery. The head in memory and the map on disk score through the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfa.base.backend import backend_for, l2
from tfa.base.spill import Spill
from tfa.base.tokens import Tokens
from tfa.errors import BadTokens, ChannelMismatch
from tfa.method.residuals import describe
from tfa.method.spectrum import Geometry
from tfa.search.engine import QueryVectors
from tfa.search.exact import WeightedGalleries
from tfa.search.gallery import QUERY_BLOCK, Gallery, Rows, inner, query_blocks
from tfa.search.quantised_rows import QuantisedRows
from tfa.search.ties import find_duplicates

GLOBAL = -1  # the "side" of terms that compare global tokens
IN_MEMORY = 64 << 20  # bytes of queries' descriptors that are not worth a file
INTEGER_BLOCK = 64  # queries at a time where rows are integers: their products are exact, so nothing is padded


@dataclass(frozen=True)
class QuerySide:
    """How a query is described under one assignment and vocabulary."""

    assignment: str
    centers: np.ndarray  # k d
    temperature: float
    geometry: Geometry | None = None  # None when no term needs coordinates
    anchors: Rows | None = None  # a k·d: descriptors that carry the geometry
    directions: QuantisedRows | None = None  # r a: Eᵀ in integers, where rows are; the geometry then has no vectors

    def features(self, tokens: Tokens, gammas: set[float | None], dtype: str) -> Features:
        """Descriptors (None) and φ_γ of the tokens' images, for the asked γ, and products with the anchors."""
        described = describe(
            tokens,
            [self.centers],
            [self.assignment],
            self.temperature,
            backend_for("cpu"),
            dtype=dtype,
            spill=Spill(IN_MEMORY),
        )
        descriptors = described[self.assignment, 0].descriptors
        features: dict[float | None, np.ndarray] = {None: descriptors}
        shaped = [gamma for gamma in gammas if gamma is not None]
        if not shaped:
            return Features(features)
        assert self.geometry is not None
        assert self.anchors is not None
        products, coordinates = [], []
        for block in query_blocks(descriptors, self.anchors):
            products.append(inner(block, self.anchors))
            coordinates.append(self._coordinates(products[-1]))
        z, count = np.concatenate(coordinates), len(descriptors)
        for gamma in shaped:
            features[gamma] = self.geometry.shaped(z, gamma)[:count]
        return Features(features, np.concatenate(products)[:count])

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


@dataclass(frozen=True)
class Features:
    """What one side makes of queries."""

    by_gamma: dict[float | None, np.ndarray]  # q D each
    with_anchors: np.ndarray | None = None  # q a: products of the descriptors with the anchors, if they were needed


@dataclass(frozen=True)
class ScoreTerm:
    """One term of the score: weight · ⟨f(q), f(d)⟩ over the gallery."""

    weight: float
    side: int  # index of a QuerySide, or GLOBAL
    gamma: float | None  # None: the descriptor itself (or the global token)
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
        """The queries as an engine takes them."""
        self.check(tokens)
        sides = self._sides(tokens)
        known = [
            (side.anchors, one.with_anchors)
            for side, one in zip(self.sides, sides, strict=True)
            if side.anchors is not None and one.with_anchors is not None
        ]
        return QueryVectors(tuple(self._features(tokens, sides)), tuple(term.weight for term in self.terms), known)

    def query_features(self, tokens: Tokens) -> list[np.ndarray]:
        """The query's feature of each term, `q D` each."""
        return self._features(tokens, self._sides(tokens))

    def _sides(self, tokens: Tokens) -> list[Features]:
        gammas: list[set[float | None]] = [set() for _ in self.sides]
        for term in self.terms:
            if term.side != GLOBAL:
                gammas[term.side].add(term.gamma)
        return [side.features(tokens, asked, self.dtype) for side, asked in zip(self.sides, gammas, strict=True)]

    def _features(self, tokens: Tokens, sides: Sequence[Features]) -> list[np.ndarray]:
        return [
            l2(np.asarray(tokens.cls, self.dtype)) if term.side == GLOBAL else sides[term.side].by_gamma[term.gamma]
            for term in self.terms
        ]

    def prepare(self) -> None:
        """Pack rows of integers for their kernel; scores stay as they are."""
        for term in self.terms:
            term.gallery.prepare()
        for rows in (*(side.anchors for side in self.sides), *(side.directions for side in self.sides)):
            if isinstance(rows, QuantisedRows):
                rows.prepare()

    def check(self, tokens: Tokens) -> None:
        channels = self.sides[0].centers.shape[1]
        if len(tokens) and tokens.channels != channels:
            raise ChannelMismatch(
                f"query tokens have {tokens.channels} channels, this head was fitted on {channels}; "
                "encode the query with the encoder of the database"
            )
        for term in self.terms:
            if term.side == GLOBAL and len(tokens):
                width = term.gallery.width
                if tokens.cls is None:
                    raise BadTokens("this head compares global tokens and the query has none; give cls")
                if tokens.cls.shape[1] != width:
                    raise ChannelMismatch(f"global tokens have {tokens.cls.shape[1]} channels, must have {width}")


def joined(scorers: Sequence[Scorer]) -> Scorer:
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
    return Scorer(
        tuple(sides), tuple(terms), bias, _common_duplicates(scorers), scorers[0].dtype, tuple(calibrators) or None
    )


def _common_duplicates(scorers: Sequence[Scorer]) -> np.ndarray | None:
    """Images are duplicates of the sum only if they are duplicates in every scorer."""
    if any(scorer.duplicates is None for scorer in scorers):
        return None
    return find_duplicates(np.stack([scorer.duplicates for scorer in scorers if scorer.duplicates is not None], axis=1))


def padded(tokens: Tokens, start: int) -> tuple[Tokens, int]:
    """The block of queries at `start`, filled up with its first query, and how many of it are real."""
    count = min(QUERY_BLOCK, len(tokens) - start)
    return tokens.select(np.r_[np.arange(start, start + count), np.full(QUERY_BLOCK - count, start)]), count
