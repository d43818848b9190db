"""Evidence without labels: row statistics, support and agreement, information, and relation.

All evidence of the controllers is computed here, in float64, from scores and top-1 answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from tfa.core.plain import Value, opt, req

NO_ANSWER = -1  # top-1 of a pseudo query whose gallery is fully masked
ROW_EPSILON = 1e-12
Masked = tuple[np.ndarray, np.ndarray]  # rows and columns of excluded entries


def mean_and_spread(scores: np.ndarray, masked: Masked | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and population standard deviation of each row (p, m) without masked entries, which become −∞."""
    if masked is None:
        return scores.mean(axis=1), scores.std(axis=1)
    count = np.maximum(_unmasked(scores, masked), 1)  # a fully masked row has mean and spread 0
    scores[masked] = 0.0
    mean = scores.sum(axis=1) / count
    centered = scores - mean[:, None]
    centered[masked] = 0.0
    scores[masked] = -np.inf
    return mean, np.sqrt(np.einsum("ij,ij->i", centered, centered) / count)


def z_scores(values: np.ndarray, mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return values in standard deviations above the mean of their row; 0 in a row of equal scores."""
    return (values - mean) / (spread + ROW_EPSILON)


def standardize_ranked(scores: np.ndarray, ranked: np.ndarray) -> np.ndarray:
    """Return z-scores (q, k) of the images `ranked` in their rows of scores (q, m), float64."""
    scores = np.ascontiguousarray(scores, np.float64)  # sums must not depend on the memory layout
    mean, spread = mean_and_spread(scores)
    return z_scores(np.take_along_axis(scores, ranked, axis=1), mean[:, None], spread[:, None])


@dataclass(frozen=True)
class RowFacts:
    """Statistics of score rows (p, m) for the controllers."""

    top: np.ndarray  # index of the best unmasked image; ties go to the smaller index; NO_ANSWER if all are masked
    spread: np.ndarray  # population standard deviation over unmasked images
    peak: np.ndarray  # z-score of the best

    @staticmethod
    def join(blocks: Sequence[RowFacts]) -> RowFacts:
        return RowFacts(*(np.concatenate([getattr(b, f) for b in blocks]) for f in ("top", "spread", "peak")))


def row_facts(scores: np.ndarray, masked: Masked | None = None) -> RowFacts:
    """Return top-1, spread and peak of each row over its unmasked entries. Masked scores are overwritten."""
    mean, spread = mean_and_spread(scores, masked)
    answers = _unmasked(scores, masked) > 0
    top = scores.argmax(axis=1)
    best = np.where(answers, scores[np.arange(len(scores)), top], mean)
    return RowFacts(np.where(answers, top, NO_ANSWER), spread, z_scores(best, mean, spread))


def row_tops(scores: np.ndarray, masked: Masked) -> np.ndarray:
    """Return only the top-1 of each row, as in `row_facts`. Masked scores are overwritten."""
    scores[masked] = -np.inf
    return np.where(_unmasked(scores, masked) > 0, scores.argmax(axis=1), NO_ANSWER)


def _unmasked(scores: np.ndarray, masked: Masked | None) -> np.ndarray:
    """Return the number of unmasked entries of each row."""
    hidden = 0 if masked is None else np.bincount(masked[0], minlength=len(scores))
    return np.full(len(scores), scores.shape[1]) - hidden


_PAIRS = ((0, 1), (0, 2), (1, 2))
SAME_COSINE = 1 - 5e-13  # cosine above which two float64 descriptors are duplicates


@dataclass(frozen=True)
class Mask:
    """Gallery entries excluded for a pseudo query: itself and its numerical duplicates, as sorted pairs."""

    rows: np.ndarray
    columns: np.ndarray

    @classmethod
    def of_duplicates(cls, products: np.ndarray, images: np.ndarray, norms: np.ndarray, first_row: int = 0) -> Mask:
        """Find duplicates from products (p, m) of the pseudo queries `images` with the gallery, and its norms."""
        of_image = norms[images]
        # One comparison by rows finds the few pairs near 1, and only these are checked exactly. A zero descriptor
        # has no cosine and is a duplicate of itself only.
        smallest = norms[norms > 0].min() if norms.any() else 1.0
        near = products >= np.where(of_image > 0, SAME_COSINE * of_image * smallest * (1 - 1e-9), np.inf)[:, None]
        rows, columns = np.nonzero(near)
        same = (products[rows, columns] >= SAME_COSINE * of_image[rows] * norms[columns]) & (norms[columns] > 0)
        pairs = np.unique(
            np.concatenate([rows[same], np.arange(len(images))]) * len(norms) + np.concatenate([columns[same], images])
        )
        return cls(pairs // len(norms) + first_row, pairs % len(norms))

    def within(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the masked rows, counted from `start`, and columns of a block of rows."""
        low, high = np.searchsorted(self.rows, [start, stop])
        return self.rows[low:high] - start, self.columns[low:high]

    def union(self, *others: Mask) -> Mask:
        pairs = np.concatenate([np.stack([mask.rows, mask.columns]) for mask in (self, *others)], axis=1)
        return Mask(*np.unique(pairs, axis=1))


def measure_support(tops: np.ndarray) -> float:
    """Return U: the number of distinct top-1 images, mean over constructions. `tops` is (s, p)."""
    return float(np.mean(count_distinct(tops)))


def count_distinct(tops: np.ndarray) -> tuple[int, ...]:
    """Return the number of distinct top-1 images under each construction."""
    return tuple(len(np.unique(row[row != NO_ANSWER])) for row in tops)


def measure_agreement(tops: np.ndarray) -> tuple[float, float, float]:
    """Return A^{ss'}: the share of pseudo queries with the same top-1 in two constructions, for each pair."""
    return tuple(_agreement(tops[s], tops[t]) for s, t in _PAIRS)  # type: ignore[return-value]


def _agreement(one: np.ndarray, other: np.ndarray) -> float:
    counted = (one != NO_ANSWER) & (other != NO_ANSWER)
    return float((one == other)[counted].mean()) if counted.any() else 0.0


class Candidate(Value, kw_only=False, extras=True):
    """A way to score, with its support and agreement."""

    support: float = req("Distinct first answers, mean over the constructions.")
    agreement: tuple[float, float, float] = req("Share of equal first answers of two constructions.")
    supports: tuple[int, ...] = opt((), "Distinct first answers of each construction.")

    @classmethod
    def of(cls, tops: np.ndarray) -> Candidate:
        return cls(measure_support(tops), measure_agreement(tops), count_distinct(tops))

    def gain_over(self, other: Candidate) -> float:
        """Return D: the largest agreement gain over the construction pairs; negative if every pair agrees less."""
        return max(a - b for a, b in zip(self.agreement, other.agreement, strict=True))

    def beats(self, other: Candidate) -> bool:
        """Return whether m ≻ n: more support, and agreement not lowered in every pair."""
        return self.support > other.support and self.gain_over(other) >= 0


def correlate(x: np.ndarray, y: np.ndarray) -> float:
    """Return the Pearson correlation; 0 if undefined."""
    if len(x) < 2:
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum() / scale) if scale > 0 else 0.0


def penalize_dispersion(values: Sequence[float]) -> float:
    """Return L(x) = clip(median − Φ⁻¹(.975)·MAD / (Φ⁻¹(.75)·√3), 0, 1), small if the constructions disagree."""
    x = np.asarray(values, dtype=np.float64)
    median = float(np.median(x))
    mad = float(np.median(np.abs(x - median)))
    normal = NormalDist()
    penalty = normal.inv_cdf(0.975) * mad / (normal.inv_cdf(0.75) * np.sqrt(3))
    return float(np.clip(median - penalty, 0, 1))


_RESAMPLES = 1000  # bootstrap samples; the paper does not state how many


def measure_information(tops: np.ndarray, images: int) -> np.ndarray:
    """Return I(q) = Σ_j p(j|q) log( p(j|q) / (p(j) + ε) ) / log min(N_q, N), from top-1 answers (s, q).

    p(j|q) is the share of constructions that answer j, p(j) its mean over queries. A retriever with one constant answer
    has p(j|q) = p(j) and no information, however well its constructions agree.
    """
    tops = tops[:, (tops != NO_ANSWER).all(axis=0)]  # queries without an answer are excluded
    constructions, queries = tops.shape
    scale = np.log(min(queries, images)) if min(queries, images) > 1 else 0.0
    if scale == 0.0:
        return np.zeros(queries)
    occupancy = np.bincount(tops.ravel(), minlength=images) / (constructions * queries)
    total = np.zeros(queries)
    for s in range(constructions):
        # Each construction adds 1/S of log(…) for its answer j; the sum is Σ_j p(j|q) log(…).
        share = (tops == tops[s]).mean(axis=0)
        total += np.log(share / (occupancy[tops[s]] + ROW_EPSILON)) / constructions
    return total / scale


def bootstrap_interval(
    soft: np.ndarray, hard: np.ndarray, soft_reference: float, hard_reference: float
) -> tuple[float, float]:
    """Return the 95 % interval of log(C_S / C_H), C_a = mean I_a / (reference_a + ε), by paired bootstrap."""
    rng = np.random.default_rng(0)
    count = len(soft)
    drawn = np.stack([rng.integers(0, count, count) for _ in range(_RESAMPLES)])
    ratio = [
        values[drawn].mean(axis=1).clip(min=0) / (reference + ROW_EPSILON)
        for values, reference in ((soft, soft_reference), (hard, hard_reference))
    ]
    return middle_interval(np.log((ratio[0] + ROW_EPSILON) / (ratio[1] + ROW_EPSILON)))


def middle_interval(values: np.ndarray) -> tuple[float, float]:
    """Return the middle 95 % of resampled values."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def extreme_support(tops: np.ndarray, images: int) -> float:
    """Return H = √( (O/M) / (p_max · M) ) of pooled top-1 answers, small for few distinct answers or a large hub."""
    pooled = tops[tops != NO_ANSWER]
    most = min(tops.shape[1], images)
    if not len(pooled):
        return 0.0
    counts = np.bincount(pooled)
    occupied, largest = int((counts > 0).sum()), counts.max() / len(pooled)
    return float(np.clip(np.sqrt(occupied / most / (largest * most)), 0, 1))


DRAWS = 200  # subsamples; the paper says "repeated fixed calibration subsamples"
_ROUNDING = 1e-14  # rounding error after centering identical rows, relative to the largest entry
SHARE, _LARGEST = 0.8, 512  # share of the rows in a subsample, and their maximum number


@dataclass(frozen=True)
class RelationView:
    """Three square matrices over the same rows, from which the relation terms are computed."""

    rows: np.ndarray  # kernel of row i with row j
    answers: np.ndarray  # kernel of t(i) with t(j)
    crossed: np.ndarray  # score of row i with t(j); −inf if masked


@dataclass(frozen=True)
class Subsamples:
    """Fixed subsamples of target rows and pseudo-query rows, shared by all views and branches."""

    target: np.ndarray  # (draws, n)
    pseudo: np.ndarray  # (draws, n')

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
    """Compute the four terms of each subsample of rows, all subsamples at once.

    With x the 0/1 vector of a subsample of n rows and H = I − 11ᵀ/n, every sum over the subsample is a product with x,
    so that no submatrix is copied:

        ⟨HKH, HMH⟩ = xᵀ(K∘M)x − 2/n Σ_i x_i (Kx)_i (Mx)_i + (xᵀKx)(xᵀMx)/n²,    tr(HKH) = Σ_i x_i K_ii − xᵀKx/n
        rank of i in column t(i) = 1 + Σ_j x_j [score(j, t(i)) > score(i, t(i))]
    """
    draws, n = subsamples.shape
    chosen = np.zeros((len(view.rows), draws))
    chosen[subsamples.T, np.arange(draws)] = 1.0
    # Centering a subsample removes any constant of a row or column, so centering the whole first changes nothing but
    # avoids cancellation in the sums.
    k, m = center_gram(view.rows), center_gram(view.answers)
    k_sums, m_sums = k @ chosen, m @ chosen  # (rows, draws)

    def inner(one: np.ndarray, other: np.ndarray, one_sums: np.ndarray, other_sums: np.ndarray) -> np.ndarray:
        whole = (chosen * ((one * other) @ chosen)).sum(axis=0)
        edges = (chosen * one_sums * other_sums).sum(axis=0)
        return whole - 2 / n * edges + (chosen * one_sums).sum(axis=0) * (chosen * other_sums).sum(axis=0) / n**2

    def width(gram: np.ndarray, sums: np.ndarray, norm: np.ndarray, largest: float) -> np.ndarray:
        trace = np.diagonal(gram) @ chosen - (chosen * sums).sum(axis=0) / n
        # Identical answers leave a Gram matrix of rounding errors, which has no width.
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


def sampled_terms(view: Callable[[np.ndarray], RelationView], count: int, subsamples: np.ndarray) -> RelationTerms:
    """Compute the terms of `count` rows: one view of all rows, or views of each subsample if these are smaller."""
    draws, n = subsamples.shape
    if count**2 <= draws * n**2:
        return relation_terms(view(np.arange(count)), subsamples)
    terms = [vars(relation_terms(view(np.sort(rows)), np.arange(n)[None])) for rows in subsamples]
    return RelationTerms(**{name: np.concatenate([one[name] for one in terms]) for name in terms[0]})


def center_gram(gram: np.ndarray) -> np.ndarray:
    """Return HKH, H = I − 11ᵀ/n."""
    means = gram.mean(axis=0)
    return gram - means[None, :] - gram.mean(axis=1)[:, None] + means.mean()


def joint_scores(target: RelationTerms, reference: RelationTerms) -> np.ndarray:
    """Return J = [u(κ) u(M) u(F)]^{1/3} · u(P) of each subsample, u(x) = clip(x / (x^d + ε), 0, 1)."""

    def retain(name: str) -> np.ndarray:
        return np.clip(getattr(target, name) / (getattr(reference, name) + ROW_EPSILON), 0, 1)

    together = retain("alignment") * retain("reciprocal_rank") * retain("mutual")
    return np.cbrt(together) * retain("rank_preservation")
