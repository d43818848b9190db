"""Attribute a score to patches and words: exactly for residual heads, linearized for second-order heads.

Residual heads. With the norms of a photo fixed, its feature is affine in its patches, so a term ⟨f(q), f(d)⟩ is a sum
over patches i and words k:

    v = Σ_ik a_ik,   a_ik = w_ik (p̃_i − c_k) / (‖B_k‖ F)  in block k     B_k: residual block, F: root of filled blocks
    original    ⟨v, v'⟩ = Σ_ik ⟨a_ik, v'_k⟩
    shaped      ⟨φ_γ(v), φ'⟩ = ⟨v − μ, g⟩,   g = s V_cᵀ E η^{-1/2} λ^{-γ/2} φ',   s = 1 / ‖λ^{-γ/2} z(v)‖

−⟨μ_k, g_k⟩, which a word subtracts from every photo, is divided among the word's patches by their weight. A word
without patches divides it evenly among all patches.

Second-order heads. log C is not a sum over patches, but C is. With a weight t_i on every patch,
C(t) = Σ_i t_i y_i y_iᵀ / (n − 1) + ε I, and at t = 1 a term T = ⟨f(q), f(d)⟩ changes by

    ∂T/∂t_i = y_iᵀ A y_i / (n − 1)          A = E (Γ ∘ EᵀGE) Eᵀ,   C = E diag(w) Eᵀ
    Γ_kl = (log w_k − log w_l) / (w_k − w_l),  1/w_k on the diagonal: the derivative of the logarithm of a matrix
    G = ∂T/∂(log C) = mat(g − ⟨g, v⟩ v) / ‖log C‖
    original    g = U f'
    shaped      g = s U λ^{-γ/2} (φ' − ⟨φ, φ'⟩ φ),   s = 1 / ‖λ^{-γ/2} z‖

The effect of the weights on the patch mean is of second order. Scaling all weights changes nothing, so the mean
derivative is subtracted and every patch gets an equal share of the term:

    share_i = T / n + ∂T/∂t_i − mean_j ∂T/∂t_j

Shares sum to the term, and the difference of two shares is the term's gain when weight moves between the patches. The
exact sum by log C = C·(C⁻¹ log C) is not used: deleting the patches with its largest shares raised the score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfa.core.arrays import l2_normalize
from tfa.core.tokens import Tokens
from tfa.method.carriers import MEAN, Gamma
from tfa.method.residuals import HARD, hard_weights, residual_blocks, soft_weights
from tfa.method.scorer import ResidualSide, Scorer, ScoreTerm, SecondOrderSide
from tfa.method.second_order import COVARIANCE_RIDGE, covariance, from_half_vector, half_vector, split_depths
from tfa.search.gallery import Rows

_BLOCK = 128  # rows


def multiply_rows(rows: Rows, vectors: np.ndarray) -> np.ndarray:
    """Return products (j, a) of vectors (j, D) with rows (a, D)."""
    blocks = range(0, len(rows), _BLOCK)
    return np.concatenate([vectors @ np.asarray(rows[low : low + _BLOCK], np.float64).T for low in blocks], axis=1)


def weighted_rows(rows: Rows, weights: np.ndarray) -> np.ndarray:
    """Return Σ_a weight · row, (j, D), for weights (j, a)."""
    total = np.zeros((len(weights), rows.shape[1]))
    for low in range(0, len(rows), _BLOCK):
        total += weights[:, low : low + _BLOCK] @ np.asarray(rows[low : low + _BLOCK], np.float64)
    return total


@dataclass(frozen=True)
class ResidualPieces:
    """Residual descriptor of one photo, split into its patches."""

    side: ResidualSide
    unit: np.ndarray  # (n, d)
    weights: np.ndarray  # (n, k): relative to each word's largest under soft assignment
    scale: np.ndarray  # (k,): 1 / (‖B_k‖ F), zero where a block is empty
    centers: np.ndarray  # (k, d)

    @classmethod
    def of(cls, patches: np.ndarray, side: ResidualSide, dtype: str) -> ResidualPieces:
        """Split the descriptor of patches (n, d), in the scorer's dtype, so that ties are broken equally."""
        unit = l2_normalize(np.asarray(patches, dtype))[None]
        centers = np.asarray(side.centers, dtype)
        similarities = unit @ centers.T
        hard = side.assignment == HARD
        weights = hard_weights(similarities) if hard else soft_weights(similarities, side.temperature)[0]
        blocks = residual_blocks(unit, weights, centers)[0].astype(np.float64)
        norms = np.sqrt((blocks * blocks).sum(axis=-1))
        filled = max(int((norms > 0).sum()), 1)
        scale = np.where(norms > 0, 1 / np.where(norms > 0, norms * np.sqrt(filled), 1), 0.0)
        wide = [array.astype(np.float64) for array in (unit[0], weights[0], centers)]
        return cls(side, wide[0], wide[1], scale, wide[2])

    @property
    def descriptor(self) -> np.ndarray:
        """Descriptor v, (k, d)."""
        blocks = self.weights.T @ self.unit - self.weights.sum(axis=0)[:, None] * self.centers
        return blocks * self.scale[:, None]

    @property
    def nearest(self) -> np.ndarray:
        """Most similar word of each patch, (n,)."""
        return np.asarray((self.unit @ self.centers.T).argmax(axis=1))

    @property
    def share(self) -> np.ndarray:
        """Share of each patch in each word, (n, k); columns sum to one."""
        total = self.weights.sum(axis=0)
        even = np.full_like(self.weights, 1 / len(self.weights))
        return np.where(total > 0, self.weights / np.where(total > 0, total, 1), even)

    def table(self, direction: np.ndarray) -> np.ndarray:
        """Return ⟨a_ik, g_k⟩, (n, k), for a direction (k, d); it sums to ⟨v, g⟩."""
        along = self.unit @ direction.T - (self.centers * direction).sum(axis=1)
        return self.weights * along * self.scale

    def tables(self, gammas: Sequence[Gamma], others: Sequence[np.ndarray], *, query: bool) -> list[np.ndarray]:
        """Return ⟨f(photo), other⟩ as tables (n, k), for each γ and feature of the other photo.

        A shift of the side is subtracted from the coordinates z of a query.
        """
        side, shape = self.side, self.side.centers.shape
        shaped = [index for index, gamma in enumerate(gammas) if gamma is not None]
        tables = {i: self.table(others[i].reshape(shape)) for i in range(len(gammas)) if gammas[i] is None}
        if shaped:
            assert side.anchors is not None
            geometry, anchors = side.geometry_in_floats(), side.anchors
            coordinates = geometry.coordinates(multiply_rows(anchors, self.descriptor.reshape(1, -1)))[0]
            shift = side.shift if query and side.shift is not None else np.zeros_like(coordinates)
            vectors = np.asarray(geometry.vectors, np.float64)
            towards, lengths, offs = [np.full(len(anchors), 1 / len(anchors))], [], []
            for index in shaped:
                power = geometry.eigenvalues ** (-float(gammas[index] or 0.0) / 2)
                along = vectors @ (others[index] * power / np.sqrt(geometry.eta))
                towards.append(along - along.mean())  # V_cᵀ: centered over the anchors
                length = float(np.linalg.norm((coordinates - shift) * power))
                offs.append(float(shift @ (others[index] * power)))
                lengths.append(1 / length if length > 0 else 0.0)
            mean, *directions = weighted_rows(anchors, np.stack(towards)).reshape(-1, *shape)
            for index, direction, length, off in zip(shaped, directions, lengths, offs, strict=True):
                direction = direction * length
                # −⟨μ_k, g_k⟩, and the effect of the shift, divided evenly among the words.
                taken_off = -(mean * direction).sum(axis=1) - off * length / shape[0]
                tables[index] = self.table(direction) + self.share * taken_off
        return [tables[index] for index in range(len(gammas))]


@dataclass(frozen=True)
class _Covariance:
    """Patch covariance of one photo at one depth."""

    projected: np.ndarray  # (n, m): Y, centered patches on the directions
    values: np.ndarray  # (m,): w, eigenvalues of C
    vectors: np.ndarray  # (m, m): E

    @classmethod
    def of(cls, unit: np.ndarray, directions: np.ndarray) -> _Covariance:
        unit = unit.astype(np.float64)
        projected = (unit - unit.mean(axis=0)) @ np.asarray(directions, np.float64).T
        values, vectors = np.linalg.eigh(covariance(projected))
        return cls(projected, values.clip(min=COVARIANCE_RIDGE), vectors)

    @property
    def half(self) -> np.ndarray:
        """Half-vector of log C, (D,); normalized, it is v."""
        return half_vector((self.vectors * np.log(self.values)) @ self.vectors.T)

    def derivative(self, direction: np.ndarray) -> np.ndarray:
        """Return ∂⟨v, g⟩/∂t_i, (n,), for a direction g, (D,); v = half / ‖half‖."""
        length = np.linalg.norm(self.half)
        unit = self.half / length
        towards = from_half_vector((direction - (direction @ unit) * unit) / length)
        turned = self.projected @ self.vectors
        inner = self.vectors.T @ towards @ self.vectors * log_differences(self.values)
        return ((turned @ inner) * turned).sum(axis=1) / max(len(turned) - 1, 1)


@dataclass(frozen=True)
class SecondOrderSpread:
    """Patch covariances of one photo, at one or two depths. An averaged patch counts for its own cell."""

    side: SecondOrderSide
    parts: tuple[_Covariance, ...]

    @classmethod
    def of(cls, patches: np.ndarray, side: SecondOrderSide, dtype: str) -> SecondOrderSpread:
        """Decompose patches (n, d), normalized in the scorer's dtype."""
        if side.grid is None:
            return cls(side, (_Covariance.of(l2_normalize(np.asarray(patches, dtype)), side.patch_directions),))
        depths = split_depths(Tokens(patches[None], grid=side.grid), dtype)
        each = zip(depths, side.patch_directions, strict=True)
        return cls(side, tuple(_Covariance.of(depth.patches[0], directions) for depth, directions in each))

    @property
    def unit(self) -> np.ndarray:
        """The descriptor v, (D,)."""
        halves = [part.half for part in self.parts]
        return np.concatenate([half / np.linalg.norm(half) for half in halves]) / np.sqrt(len(halves))

    @property
    def share(self) -> np.ndarray:
        """Even shares (n, 1)."""
        count = len(self.parts[0].projected)
        return np.full((count, 1), 1 / count)

    def table(self, term: float, direction: np.ndarray) -> np.ndarray:
        """Return shares (n, 1) of a term whose derivative by v is `direction`."""
        each = zip(self.parts, np.split(direction, len(self.parts)), strict=True)
        slopes = np.sum([part.derivative(own) for part, own in each], axis=0) / np.sqrt(len(self.parts))
        return (term / len(slopes) + slopes - slopes.mean())[:, None]

    def tables(self, gammas: Sequence[Gamma], others: Sequence[np.ndarray], *, query: bool) -> list[np.ndarray]:
        """Return ⟨f(photo), other⟩ as tables (n, 1), for each γ and feature of the other photo."""
        side = self.side
        coordinates = multiply_rows(side.axes, (self.unit - side.mean)[None])[0]
        plain = coordinates
        if query:  # see SecondOrderSide: a query's f is z + Uᵀμ, an image's z; only queries are shifted
            coordinates = coordinates if side.shift is None else coordinates - side.shift
            plain = coordinates + side.mean_coordinates
        towards, terms = [], []
        for gamma, other in zip(gammas, others, strict=True):
            if gamma is None:
                terms.append(float(plain @ other))
                towards.append(other)
                continue
            assert isinstance(gamma, float)
            power = side.eigenvalues ** (-gamma / 2)
            length = float(np.linalg.norm(coordinates * power))
            shaped = coordinates * power / (length or 1.0)
            terms.append(float(shaped @ other))
            towards.append(power * (other - terms[-1] * shaped) / (length or 1.0))
        directions = weighted_rows(side.axes, np.stack(towards))
        return [self.table(term, direction) for term, direction in zip(terms, directions, strict=True)]


def log_differences(values: np.ndarray) -> np.ndarray:
    """Return Γ, (m, m): (log w_k − log w_l) / (w_k − w_l), and its limit 1/w_l if both are equal."""
    ratio = (values[:, None] - values) / values
    equal = ratio == 0
    # log1p avoids the cancellation between logarithms of nearly equal numbers.
    return np.where(equal, 1.0, np.log1p(ratio) / np.where(equal, 1.0, ratio)) / values


@dataclass(frozen=True)
class TermShares:
    """One term of a score, and the shares of both photos' patches and words in it."""

    term: ScoreTerm
    contribution: float  # weight · ⟨f(q), f(d)⟩
    # (n, k), sums to the contribution; None for the global token and for MEAN. MEAN is the largest part of the score,
    # but equal for all images: it would hide the differences between them.
    query: np.ndarray | None = None
    image: np.ndarray | None = None
    residue: tuple[float, ...] = ()  # rounding error of both sides, already included in the shares

    def with_table(self, of: str, table: np.ndarray, pieces: ResidualPieces | SecondOrderSpread) -> TermShares:
        """Return the term with the table of the "query" or the "image", plus its rounding error in even shares."""
        weighted = self.term.weight * table
        left = self.contribution - float(weighted.sum())
        shared = weighted + pieces.share * (left / table.shape[1])
        changes: dict[str, Any] = {of: shared, "residue": (*self.residue, left)}
        return replace(self, **changes)


@dataclass(frozen=True)
class Attribution:
    """The score of a query with one map image, split into contributions."""

    terms: tuple[TermShares, ...]
    bias: float
    nearest: dict[int, tuple[np.ndarray, np.ndarray]]  # by side with words: word of each query and image patch

    @property
    def score(self) -> float:
        return sum(one.contribution for one in self.terms) + self.bias

    @property
    def linearized(self) -> bool:
        """Whether shares are derivatives (second-order terms) instead of exact sums."""
        return any(one.term.side not in self.nearest for one in self.terms if one.query is not None)

    def patches(self, of: str) -> np.ndarray:
        """Return the contribution of each patch (n,) of the "query" or the "image" over all local terms."""
        return np.sum([table.sum(axis=1) for _, table in self._tables(of)], axis=0)

    def words(self, of: str) -> dict[int, np.ndarray]:
        """Return the contribution of each word (k,), by ensemble member whose side has words."""
        found: dict[int, np.ndarray] = {}
        for term, table in self._tables(of):
            if term.side in self.nearest:
                found[term.member] = found.get(term.member, 0.0) + table.sum(axis=0)
        return found

    def _tables(self, of: str) -> list[tuple[ScoreTerm, np.ndarray]]:
        return [(one.term, getattr(one, of)) for one in self.terms if one.query is not None]


def attribute(scorer: Scorer, query: Tokens, image: Tokens, row: int) -> Attribution:
    """Split the score of a query (one photo) with gallery row `row`, whose tokens are `image`."""
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
        pieces: list[ResidualPieces] | list[SecondOrderSpread]
        if isinstance(side, ResidualSide):
            pieces = [ResidualPieces.of(patches, side, scorer.dtype) for patches in photos]
            nearest[number] = (pieces[0].nearest, pieces[1].nearest)
        else:
            pieces = [SecondOrderSpread.of(patches, side, scorer.dtype) for patches in photos]
        chosen = [i for i, term in enumerate(scorer.terms) if term.side == number and term.gamma != MEAN]
        gammas = [scorer.terms[index].gamma for index in chosen]
        # Query patches are multiplied with gallery features, image patches with query features.
        for of, piece, others in (("query", pieces[0], rows), ("image", pieces[1], features)):
            tables = piece.tables(gammas, [others[index] for index in chosen], query=of == "query")
            for index, table in zip(chosen, tables, strict=True):
                shares[index] = shares[index].with_table(of, table, piece)
    return Attribution(tuple(shares), float(scorer.bias[row]), nearest)
