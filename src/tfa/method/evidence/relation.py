"""Relational evidence: are neighbours preserved, are answers as similar to each other as their queries?

For a view (any kernel) and rows q with top-1 answers t(q): κ compares the Gram matrix of the rows with that of
their answers (centred kernel alignment), M and F say whether q is also the row that t(q) likes best, P whether
both Gram matrices have the same effective rank. Each is divided by what the database's own pseudo queries reach.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfa.method.evidence.rows import ROW_EPSILON

DRAWS = 200  # ours: the paper says "repeated fixed calibration subsamples"
_ROUNDING = 1e-14  # of the largest entry: what centring identical rows leaves
SHARE, _LARGEST = 0.8, 512  # ours: of the rows, in one subsample


@dataclass(frozen=True)
class RelationView:
    """Three square matrices over the same rows: everything the relation terms need of a kernel."""

    rows: np.ndarray  # kernel of row i with row j
    answers: np.ndarray  # kernel of t(i) with t(j)
    crossed: np.ndarray  # score of row i with t(j); −inf where row i may not answer t(j)


@dataclass(frozen=True)
class Subsamples:
    """The fixed subsamples of target rows and of pseudo-query rows, the same for every view and branch."""

    target: np.ndarray  # draws n
    pseudo: np.ndarray  # draws n'

    @classmethod
    def draw(cls, target: int, pseudo: int) -> Subsamples:
        rng = np.random.default_rng(0)
        size = min(max(2, int(np.ceil(SHARE * target))), _LARGEST, target)
        pairs = [
            (rng.choice(target, size, replace=False), rng.choice(pseudo, min(size, pseudo), replace=False))
            for _ in range(DRAWS)
        ]
        return cls(np.stack([i for i, _ in pairs]), np.stack([j for _, j in pairs]))


@dataclass(frozen=True)
class RelationTerms:
    """κ, M, F and P of each subsample."""

    alignment: np.ndarray
    reciprocal_rank: np.ndarray
    mutual: np.ndarray
    rank_preservation: np.ndarray


def relation_terms(view: RelationView, subsamples: np.ndarray) -> RelationTerms:
    """The four terms on each subsample of rows, all subsamples at once.

    With x the 0/1 vector of a subsample of n rows and H = I − 11ᵀ/n on it, every sum over the subsample is a
    product with x, so that no submatrix is ever cut out:

        ⟨HKH, HMH⟩ = xᵀ(K∘M)x − 2/n Σ_i x_i (Kx)_i (Mx)_i + (xᵀKx)(xᵀMx)/n²,    tr(HKH) = Σ_i x_i K_ii − xᵀKx/n
        rank of i in column t(i) = 1 + Σ_j x_j [score(j, t(i)) > score(i, t(i))]
    """
    draws, n = subsamples.shape
    chosen = np.zeros((len(view.rows), draws))
    chosen[subsamples.T, np.arange(draws)] = 1.0
    # Centring a subsample removes any constant of a row or column, so the whole may be centred first; what is
    # left to subtract is then small, and the sums lose no digits.
    k, m = center_gram(view.rows), center_gram(view.answers)
    k_sums, m_sums = k @ chosen, m @ chosen  # rows draws

    def inner(one: np.ndarray, other: np.ndarray, one_sums: np.ndarray, other_sums: np.ndarray) -> np.ndarray:
        whole = (chosen * ((one * other) @ chosen)).sum(axis=0)
        edges = (chosen * one_sums * other_sums).sum(axis=0)
        return whole - 2 / n * edges + (chosen * one_sums).sum(axis=0) * (chosen * other_sums).sum(axis=0) / n**2

    def width(gram: np.ndarray, sums: np.ndarray, norm: np.ndarray, largest: float) -> np.ndarray:
        trace = np.diagonal(gram) @ chosen - (chosen * sums).sum(axis=0) / n
        # Answers that are all the same leave a Gram matrix of rounding, which has no width.
        return np.where(norm > (n * _ROUNDING * largest) ** 2, trace**2 / (norm + ROW_EPSILON), 0.0)

    norm_k, norm_m = inner(k, k, k_sums, k_sums), inner(m, m, m_sums, m_sums)
    width_k = width(k, k_sums, norm_k, float(np.abs(view.rows).max(initial=0.0)))
    width_m = width(m, m_sums, norm_m, float(np.abs(view.answers).max(initial=0.0)))
    narrow, wide = np.minimum(width_k, width_m), np.maximum(width_k, width_m)
    scale = np.where(narrow > 0, np.sqrt(norm_k.clip(min=0) * norm_m.clip(min=0)), 1.0)
    alignment = np.where(narrow > 0, inner(k, m, k_sums, m_sums) / scale, 0.0).clip(min=0)
    better = (view.crossed > np.diagonal(view.crossed)[None, :]).astype(np.float64)
    ranks = 1 + better.T @ chosen
    return RelationTerms(
        alignment=alignment,
        reciprocal_rank=(chosen / ranks).sum(axis=0) / n,
        mutual=(chosen * (ranks == 1)).sum(axis=0) / n,
        rank_preservation=narrow / np.where(wide > 0, wide, 1.0),
    )


def center_gram(gram: np.ndarray) -> np.ndarray:
    """HKH, with H = I − 11ᵀ/n."""
    means = gram.mean(axis=0)
    return gram - means[None, :] - gram.mean(axis=1)[:, None] + means.mean()


def joint_scores(target: RelationTerms, reference: RelationTerms) -> np.ndarray:
    """J = [u(κ) u(M) u(F)]^{1/3} · u(P) of each subsample, u(x) = clip(x / (x^d + ε), 0, 1)."""

    def retain(name: str) -> np.ndarray:
        return np.clip(getattr(target, name) / (getattr(reference, name) + ROW_EPSILON), 0, 1)

    together = retain("alignment") * retain("reciprocal_rank") * retain("mutual")
    return np.cbrt(together) * retain("rank_preservation")
