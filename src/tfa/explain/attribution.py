"""Attribution (ours): how much each patch, and each word where there are words, contributes to the score of two photos.

A term of a score is weight · ⟨f(q), f(d)⟩. `residual_shares` and `second_order_shares` give each patch of either photo
its share in it: tables `n k` of patches and words, `n 1` where there are no words. What rounding leaves over is shared
out too, so the entries of a table always add up to the term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfa.base.tokens import Tokens
from tfa.explain.residual_shares import ResidualPieces, residual_tables
from tfa.explain.second_order_shares import SecondOrderSpread, second_order_tables
from tfa.method.carriers import MEAN
from tfa.method.query_sides import QuerySide, ResidualSide
from tfa.method.scorer import GLOBAL, Scorer, ScoreTerm


@dataclass(frozen=True)
class TermShares:
    """One term of a score, and what patches (and words) of either photo have in it."""

    term: ScoreTerm
    contribution: float  # weight · ⟨f(q), f(d)⟩
    # n k, adds up to the contribution; None for the global token and for MEAN. What every image has of a query is by
    # far the largest part of the likeness of any two photos, and would drown what tells images apart.
    query: np.ndarray | None = None
    image: np.ndarray | None = None
    residue: tuple[float, ...] = ()  # what rounding left over on either side, already shared out

    def with_table(self, of: str, table: np.ndarray, pieces: ResidualPieces | SecondOrderSpread) -> TermShares:
        """With the table of the "query" or the "image", to which what rounding left over is added."""
        weighted = self.term.weight * table
        left = self.contribution - float(weighted.sum())
        shared = weighted + pieces.share * (left / table.shape[1])
        changes: dict[str, Any] = {of: shared, "residue": (*self.residue, left)}
        return replace(self, **changes)


@dataclass(frozen=True)
class Attribution:
    """The score of a query and one image of a gallery, taken apart."""

    terms: tuple[TermShares, ...]
    bias: float
    # Of each side that has words: the word of the query's and image's patches.
    nearest: dict[int, tuple[np.ndarray, np.ndarray]]

    @property
    def score(self) -> float:
        return self.local + self.of_global + self.shared + self.bias

    @property
    def local(self) -> float:
        """What the patches answer for."""
        return sum(one.contribution for one in self.terms if one.query is not None)

    @property
    def of_global(self) -> float:
        return sum(one.contribution for one in self.terms if one.term.side == GLOBAL)

    @property
    def shared(self) -> float:
        """What every image has of this query."""
        return sum(one.contribution for one in self.terms if one.term.gamma == MEAN)

    @property
    def linearised(self) -> bool:
        """Whether shares are derivatives, not exact sums: those of second-order terms are."""
        return any(one.term.side not in self.nearest for one in self.terms if one.query is not None)

    def patches(self, of: str) -> np.ndarray:
        """Contribution of each patch `n` of the "query" or the "image", over all local terms."""
        return np.sum([table.sum(axis=1) for _, table in self._tables(of)], axis=0)

    def words(self, of: str) -> dict[int, np.ndarray]:
        """Contribution of each word `k`, for each member of an ensemble whose side has words."""
        found: dict[int, np.ndarray] = {}
        for term, table in self._tables(of):
            if term.side in self.nearest:
                found[term.member] = found.get(term.member, 0.0) + table.sum(axis=0)
        return found

    def _tables(self, of: str) -> list[tuple[ScoreTerm, np.ndarray]]:
        return [(one.term, getattr(one, of)) for one in self.terms if one.query is not None]


def attribute(scorer: Scorer, query: Tokens, image: Tokens, row: int) -> Attribution:
    """Take apart the score of a query (one photo) with gallery row `row`, whose own tokens are `image`."""
    row = row if scorer.duplicates is None else int(scorer.duplicates[row])
    features = [feature[0].astype(np.float64) for feature in scorer.query_vectors(query).terms]
    rows = [term.gallery.take([row])[0].astype(np.float64) for term in scorer.terms]
    photos = [tokens.load(0, 1)[0] for tokens in (query, image)]
    shares = [
        TermShares(term, term.weight * float(ours @ theirs))
        for term, ours, theirs in zip(scorer.terms, features, rows, strict=True)
    ]
    nearest: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for number, side in enumerate(scorer.sides):
        pieces = [_pieces(side, patches, scorer.dtype) for patches in photos]
        if isinstance(pieces[0], ResidualPieces) and isinstance(pieces[1], ResidualPieces):
            nearest[number] = (pieces[0].nearest, pieces[1].nearest)
        chosen = [i for i, term in enumerate(scorer.terms) if term.side == number and term.gamma != MEAN]
        terms = [scorer.terms[index] for index in chosen]
        # The query's side is read against the gallery's features, the image's against the query's.
        for of, piece, others in (("query", pieces[0], rows), ("image", pieces[1], features)):
            tables = _tables(side, piece, terms, [others[index] for index in chosen], query=of == "query")
            for index, table in zip(chosen, tables, strict=True):
                shares[index] = shares[index].with_table(of, table, piece)
    return Attribution(tuple(shares), float(scorer.bias[row]), nearest)


def _pieces(side: QuerySide, patches: np.ndarray, dtype: str) -> ResidualPieces | SecondOrderSpread:
    return (
        ResidualPieces.of(patches, side, dtype)
        if isinstance(side, ResidualSide)
        else SecondOrderSpread.of(patches, side, dtype)
    )


def _tables(
    side: QuerySide,
    pieces: ResidualPieces | SecondOrderSpread,
    terms: Sequence[ScoreTerm],
    others: Sequence[np.ndarray],
    *,
    query: bool,
) -> list[np.ndarray]:
    gammas = [term.gamma for term in terms]
    if isinstance(side, ResidualSide):
        assert isinstance(pieces, ResidualPieces)
        return residual_tables(side, pieces, gammas, others, side.shift if query else None)
    assert isinstance(pieces, SecondOrderSpread)
    return second_order_tables(side, pieces, gammas, others, query=query)
