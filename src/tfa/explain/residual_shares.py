"""Residual heads: how much each word and each patch of a photo has in a term of a score.

With the norms of a photo held at their values its feature is affine in its patches, so a term ⟨f(q), f(d)⟩ is a sum
over patches i and words k:

    v = Σ_ik a_ik,   a_ik = w_ik (p̃_i − c_k) / (‖B_k‖ F)  in block k     B_k: residual block, F: root of filled blocks
    original    ⟨v, v'⟩ = Σ_ik ⟨a_ik, v'_k⟩
    shaped      ⟨φ_γ(v), φ'⟩ = ⟨v − μ, g⟩,   g = s V_cᵀ E η^{-1/2} λ^{-γ/2} φ',   s = 1 / ‖λ^{-γ/2} z(v)‖

−⟨μ_k, g_k⟩, what a word takes off every photo, is shared by the patches of the word by their weight in it; of a word
without a patch by all patches alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfa.base.backend import l2_normalize
from tfa.explain.row_products import multiply_rows, weighted_rows
from tfa.method.carriers import Gamma
from tfa.method.query_sides import ResidualSide
from tfa.method.residuals import HARD, hard_weights, residual_blocks, soft_weights


@dataclass(frozen=True)
class ResidualPieces:
    """One photo as its side sees it: unit patches and how they add up to its descriptor."""

    unit: np.ndarray  # n d
    weights: np.ndarray  # n k: relative to each word's largest under soft assignment
    scale: np.ndarray  # k: 1 / (‖B_k‖ F), zero where a block is empty
    centers: np.ndarray  # k d

    @classmethod
    def of(cls, patches: np.ndarray, side: ResidualSide, dtype: str) -> ResidualPieces:
        """Split the descriptor of patches `n d`.

        Weights are computed in the scorer's dtype, so that ties fall as they do there.
        """
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


def residual_tables(
    side: ResidualSide,
    pieces: ResidualPieces,
    gammas: Sequence[Gamma],
    others: Sequence[np.ndarray],
    shift: np.ndarray | None = None,
) -> list[np.ndarray]:
    """⟨f(photo), other⟩ as tables `n k`, for each γ and the other photo's feature; `shift` of the photo's z, if any."""
    shape = side.centers.shape
    shaped = [index for index, gamma in enumerate(gammas) if gamma is not None]
    tables = {i: pieces.table(others[i].reshape(shape)) for i in range(len(gammas)) if gammas[i] is None}
    if shaped:
        assert side.anchors is not None
        geometry, anchors = side.geometry_in_floats(), side.anchors
        coordinates = geometry.coordinates(multiply_rows(anchors, pieces.descriptor.reshape(1, -1)))[0]
        shift = np.zeros_like(coordinates) if shift is None else shift
        vectors = np.asarray(geometry.vectors, np.float64)
        towards, lengths, offs = [np.full(len(anchors), 1 / len(anchors))], [], []
        for index in shaped:
            power = geometry.eigenvalues ** (-float(gammas[index] or 0.0) / 2)
            along = vectors @ (others[index] * power / np.sqrt(geometry.eta))
            towards.append(along - along.mean())  # V_cᵀ: the mean over anchors is taken off the products
            length = float(np.linalg.norm((coordinates - shift) * power))
            offs.append(float(shift @ (others[index] * power)))
            lengths.append(1 / length if length > 0 else 0.0)
        mean, *directions = weighted_rows(anchors, np.stack(towards)).reshape(-1, *shape)
        for index, direction, length, off in zip(shaped, directions, lengths, offs, strict=True):
            direction = direction * length
            # −⟨μ_k, g_k⟩, and what the shift takes off, of which no word has more than another
            taken_off = -(mean * direction).sum(axis=1) - off * length / shape[0]
            tables[index] = pieces.table(direction) + pieces.share * taken_off
    return [tables[index] for index in range(len(gammas))]
