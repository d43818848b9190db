"""Scoring: a fitted head is a sum of weighted inner products, so it is one vector per image.

    score(q, d) = Σ_t weight_t · ⟨f_t(q), f_t(d)⟩ + b_d = ⟨Ψ(q), Ψ(d)⟩ + b_d,   Ψ = ⊕_t √weight_t · f_t

A `QuerySide` turns tokens into the features of one assignment and vocabulary; a `ScoreTerm` is one term with its
gallery. The head in memory and the map on disk score through the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfa.base.backend import l2_normalize
from tfa.base.tokens import Tokens
from tfa.errors import BadTokens, ChannelMismatch
from tfa.method.carriers import MEAN, Gamma
from tfa.method.query_sides import QuerySide, ResidualSide, SecondOrderSide, SideView
from tfa.search.exact import QueryVectors, WeightedGalleries, direct_sum
from tfa.search.gallery import Gallery, find_duplicates

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
