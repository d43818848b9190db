"""Second-order heads (ours, beyond the paper): how much each patch of a photo has in a term of a score, linearised.

log C is no sum over patches. But C is: with a weight t_i on every patch, C(t) = Σ_i t_i y_i y_iᵀ / (n − 1) + ε I, and
at t = 1 a term T = ⟨f(q), f(d)⟩ changes by

    ∂T/∂t_i = y_iᵀ A y_i / (n − 1)          A = E (Γ ∘ EᵀGE) Eᵀ,   C = E diag(w) Eᵀ
    Γ_kl = (log w_k − log w_l) / (w_k − w_l),  1/w_k on the diagonal: the derivative of the logarithm of a matrix
    G = ∂T/∂(log C) = mat(g − ⟨g, v⟩ v) / ‖log C‖
    original    g = U f'
    shaped      g = s U λ^{-γ/2} (φ' − ⟨φ, φ'⟩ φ),   s = 1 / ‖λ^{-γ/2} z‖

That the mean of the patches moves with the weights is of second order. Twice the weight of all patches is no change:
the mean of the derivatives is taken off, and every patch is given the same share of the term,

    share_i = T / n + ∂T/∂t_i − mean_j ∂T/∂t_j

so that shares add up to the term, and a patch has more than another by what the term gains when weight moves to it.
An exact sum over patches exists, by log C = C·(C⁻¹ log C), and was dropped: who deletes the patches that it gives most
finds the score raised. What was measured stands in docs/exports.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfa.base.backend import l2_normalize
from tfa.explain.row_products import multiply_rows, weighted_rows
from tfa.method.carriers import Gamma
from tfa.method.query_sides import SecondOrderSide
from tfa.method.second_order import COVARIANCE_RIDGE, covariance, from_half_vector, half_vector


@dataclass(frozen=True)
class SecondOrderSpread:
    """One photo as its side sees it: how its patches spread over the directions."""

    projected: np.ndarray  # n m: Y, centred patches on the directions
    values: np.ndarray  # m: w, eigenvalues of C
    vectors: np.ndarray  # m m: E

    @classmethod
    def of(cls, patches: np.ndarray, side: SecondOrderSide, dtype: str) -> SecondOrderSpread:
        """Spread the descriptor over patches `n d`; unit patches are of the scorer's dtype, as there."""
        unit = l2_normalize(np.asarray(patches, dtype)).astype(np.float64)
        projected = (unit - unit.mean(axis=0)) @ np.asarray(side.patch_directions, np.float64).T
        values, vectors = np.linalg.eigh(covariance(projected))
        return cls(projected, values.clip(min=COVARIANCE_RIDGE), vectors)

    @property
    def half(self) -> np.ndarray:
        """Half-vector of log C, `D`; of length one it is v."""
        return half_vector((self.vectors * np.log(self.values)) @ self.vectors.T)

    @property
    def share(self) -> np.ndarray:
        """`n 1`: of what no patch has more of than another, the share of each."""
        return np.full((len(self.projected), 1), 1 / len(self.projected))

    def derivative(self, direction: np.ndarray) -> np.ndarray:
        """∂⟨v, g⟩/∂t_i `n` for a direction g `D`, v = half / ‖half‖."""
        length = np.linalg.norm(self.half)
        unit = self.half / length
        towards = from_half_vector((direction - (direction @ unit) * unit) / length)
        turned = self.projected @ self.vectors
        inner = self.vectors.T @ towards @ self.vectors * log_differences(self.values)
        return ((turned @ inner) * turned).sum(axis=1) / max(len(turned) - 1, 1)

    def table(self, term: float, direction: np.ndarray) -> np.ndarray:
        """Shares `n 1` of a term whose derivative by v is the direction."""
        slopes = self.derivative(direction)
        return (term / len(slopes) + slopes - slopes.mean())[:, None]


def log_differences(values: np.ndarray) -> np.ndarray:
    """Γ `m m`: (log w_k − log w_l) / (w_k − w_l), and its limit 1/w_l where both are equal."""
    ratio = (values[:, None] - values) / values
    equal = ratio == 0
    # log1p: the difference of logarithms of nearly equal numbers would be rounding.
    return np.where(equal, 1.0, np.log1p(ratio) / np.where(equal, 1.0, ratio)) / values


def second_order_tables(
    side: SecondOrderSide,
    spread: SecondOrderSpread,
    gammas: Sequence[Gamma],
    others: Sequence[np.ndarray],
    *,
    query: bool,
) -> list[np.ndarray]:
    """⟨f(photo), other⟩ as tables `n 1`, for each γ and the other photo's feature; f of a query or of an image."""
    unit = spread.half / np.linalg.norm(spread.half)
    coordinates = multiply_rows(side.axes, (unit - side.mean)[None])[0]
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
    return [spread.table(term, direction) for term, direction in zip(terms, directions, strict=True)]
