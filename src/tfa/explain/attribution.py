"""Attribution (ours): how much each word and each patch contributes to the score of two photos.

A term of a score is weight · ⟨f(q), f(d)⟩. With the norms of one photo held at their values its feature is affine in
its patches, so the term is a sum over patches i and words k:

    v = Σ_ik a_ik,   a_ik = w_ik (p̃_i − c_k) / (‖B_k‖ F)  in block k     B_k: residual block, F: root of filled blocks
    original    ⟨v, v'⟩ = Σ_ik ⟨a_ik, v'_k⟩
    shaped      ⟨φ_γ(v), φ'⟩ = ⟨v − μ, g⟩,   g = s V_cᵀ E η^{-1/2} λ^{-γ/2} φ',   s = 1 / ‖λ^{-γ/2} z(v)‖

−⟨μ_k, g_k⟩, what a word takes off every photo, is shared by the patches of the word by their weight in it; of a word
without a patch by all patches alike. What rounding leaves over is shared in the same way over all words. So the
entries of a table always add up to the term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfa.base.backend import l2
from tfa.base.tokens import Tokens
from tfa.method.carriers import Gamma
from tfa.method.query_sides import ResidualSide, residual
from tfa.method.residuals import HARD, hard_weights, residual_blocks, soft_weights
from tfa.method.scorer import GLOBAL, Scorer, ScoreTerm
from tfa.search.gallery import Rows

ANCHOR_BLOCK = 128  # anchors widened to float64 at a time


@dataclass(frozen=True)
class Pieces:
    """One photo as its side sees it: unit patches and how they add up to its descriptor."""

    unit: np.ndarray  # n d
    weights: np.ndarray  # n k: relative to each word's largest under soft assignment
    scale: np.ndarray  # k: 1 / (‖B_k‖ F), zero where a block is empty
    centers: np.ndarray  # k d

    @classmethod
    def of(cls, patches: np.ndarray, side: ResidualSide, dtype: str) -> Pieces:
        """Of patches `n d`. Weights are computed in the scorer's dtype, so that ties fall as they do there."""
        unit = l2(np.asarray(patches, dtype))[None]
        centers = np.asarray(side.centers, dtype)
        similarities = unit @ centers.T
        hard = side.assignment == HARD
        weights = hard_weights(similarities) if hard else soft_weights(similarities, side.temperature)[0]
        blocks = residual_blocks(unit, weights, centers)[0].astype(np.float64)
        norms = np.sqrt((blocks * blocks).sum(axis=-1))
        filled = max(int((norms > 0).sum()), 1)
        scale = np.where(norms > 0, 1 / np.where(norms > 0, norms * np.sqrt(filled), 1), 0.0)
        wide = [array.astype(np.float64) for array in (unit[0], weights[0], centers)]
        return cls(wide[0], wide[1], scale, wide[2])

    @property
    def descriptor(self) -> np.ndarray:
        """v, `k d`."""
        blocks = self.weights.T @ self.unit - self.weights.sum(axis=0)[:, None] * self.centers
        return blocks * self.scale[:, None]

    @property
    def nearest(self) -> np.ndarray:
        """The word of each patch, `n`: the most similar."""
        return np.asarray((self.unit @ self.centers.T).argmax(axis=1))

    @property
    def share(self) -> np.ndarray:
        """`n k`: of what belongs to a word, how much each patch answers for; columns add up to one."""
        total = self.weights.sum(axis=0)
        even = np.full_like(self.weights, 1 / len(self.weights))
        return np.where(total > 0, self.weights / np.where(total > 0, total, 1), even)

    def table(self, direction: np.ndarray) -> np.ndarray:
        """⟨a_ik, g_k⟩ `n k` for a direction `k d`; it adds up to ⟨v, g⟩."""
        along = self.unit @ direction.T - (self.centers * direction).sum(axis=1)
        return self.weights * along * self.scale


@dataclass(frozen=True)
class TermShares:
    """One term of a score, and what words and patches of either photo have in it."""

    term: ScoreTerm
    contribution: float  # weight · ⟨f(q), f(d)⟩
    query: np.ndarray | None = None  # n k, adds up to the contribution; None for the global token
    image: np.ndarray | None = None
    residue: tuple[float, ...] = ()  # what rounding left over on either side, already shared out

    def with_table(self, of: str, table: np.ndarray, pieces: Pieces) -> TermShares:
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
    nearest: dict[int, tuple[np.ndarray, np.ndarray]]  # of each side: the word of the query's and image's patches

    @property
    def score(self) -> float:
        return self.local + self.of_global + self.bias

    @property
    def local(self) -> float:
        return sum(one.contribution for one in self.terms if one.term.side != GLOBAL)

    @property
    def of_global(self) -> float:
        return sum(one.contribution for one in self.terms if one.term.side == GLOBAL)

    def patches(self, of: str) -> np.ndarray:
        """Contribution of each patch `n` of the "query" or the "image", over all local terms."""
        return np.sum([table.sum(axis=1) for _, table in self._tables(of)], axis=0)

    def words(self, of: str) -> dict[int, np.ndarray]:
        """Contribution of each word `k`, for each member of an ensemble."""
        found: dict[int, np.ndarray] = {}
        for term, table in self._tables(of):
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
    for number, side in enumerate(map(residual, scorer.sides)):
        pieces = [Pieces.of(patches, side, scorer.dtype) for patches in photos]
        nearest[number] = (pieces[0].nearest, pieces[1].nearest)
        chosen = [index for index, term in enumerate(scorer.terms) if term.side == number]
        gammas = [scorer.terms[index].gamma for index in chosen]
        # The query's side is read against the gallery's features, the image's against the query's.
        for of, piece, others in (("query", pieces[0], rows), ("image", pieces[1], features)):
            tables = _tables(side, piece, gammas, [others[index] for index in chosen])
            for index, table in zip(chosen, tables, strict=True):
                shares[index] = shares[index].with_table(of, table, piece)
    return Attribution(tuple(shares), float(scorer.bias[row]), nearest)


def _tables(
    side: ResidualSide, pieces: Pieces, gammas: Sequence[Gamma], others: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """⟨f(photo), other⟩ as tables `n k`, for each γ and the other photo's feature."""
    shape = side.centers.shape
    shaped = [index for index, gamma in enumerate(gammas) if gamma is not None]
    tables = {i: pieces.table(others[i].reshape(shape)) for i in range(len(gammas)) if gammas[i] is None}
    if shaped:
        assert side.anchors is not None
        geometry, anchors = side.geometry_in_floats(), side.anchors
        coordinates = geometry.coordinates(_products(anchors, pieces.descriptor.reshape(1, -1)))[0]
        vectors = np.asarray(geometry.vectors, np.float64)
        towards, lengths = [np.full(len(anchors), 1 / len(anchors))], []
        for index in shaped:
            power = geometry.eigenvalues ** (-float(gammas[index] or 0.0) / 2)
            along = vectors @ (others[index] * power / np.sqrt(geometry.eta))
            towards.append(along - along.mean())  # V_cᵀ: the mean over anchors is taken off the products
            length = float(np.linalg.norm(coordinates * power))
            lengths.append(1 / length if length > 0 else 0.0)
        mean, *directions = _sums(anchors, np.stack(towards)).reshape(-1, *shape)
        for index, direction, length in zip(shaped, directions, lengths, strict=True):
            direction = direction * length
            taken_off = -(mean * direction).sum(axis=1)  # −⟨μ_k, g_k⟩
            tables[index] = pieces.table(direction) + pieces.share * taken_off
    return [tables[index] for index in range(len(gammas))]


def _products(anchors: Rows, vectors: np.ndarray) -> np.ndarray:
    """`j a` products of vectors `j D` with the anchors `a D`."""
    blocks = range(0, len(anchors), ANCHOR_BLOCK)
    return np.concatenate(
        [vectors @ np.asarray(anchors[low : low + ANCHOR_BLOCK], np.float64).T for low in blocks], axis=1
    )


def _sums(anchors: Rows, weights: np.ndarray) -> np.ndarray:
    """Σ_a weight · anchor, for weights `j a` → `j D`."""
    total = np.zeros((len(weights), anchors.shape[1]))
    for low in range(0, len(anchors), ANCHOR_BLOCK):
        total += weights[:, low : low + ANCHOR_BLOCK] @ np.asarray(anchors[low : low + ANCHOR_BLOCK], np.float64)
    return total
