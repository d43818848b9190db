"""Information and relation of calibration images, the statistics of `tfa.reference.target`, in plain numpy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tfa.reference.database import l2, tied

EPS = 1e-12
ASSIGNMENTS = ("hard", "soft")
CARRIERS = ("original", "partial", "adaptive")
RESAMPLES, SUBSAMPLES, LARGEST = 1000, 200, 512

Sets = dict[str, list[np.ndarray]]  # assignment → one array per construction
Replica = dict[str, np.ndarray]  # assignment → its array in one construction
Interval = tuple[float, float]
Draws = list[tuple[np.ndarray, np.ndarray]]  # calibration rows, pseudo rows


def at(sets: Sets, s: int) -> Replica:
    return {a: xs[s] for a, xs in sets.items()}


def interval(x: Iterable[float]) -> Interval:
    low, high = np.percentile(np.array(list(x)), [2.5, 97.5])
    return float(low), float(high)


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Return the correlation; 0 if undefined."""
    if len(x) < 2:
        return 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        r = np.corrcoef(x, y)[0, 1]
    return float(r) if np.isfinite(r) else 0.0


def as_float64(sets: Sets) -> Sets:
    return {a: [x.astype(np.float64) for x in xs] for a, xs in sets.items()}


def unit(sets: Sets) -> Sets:
    return {a: [l2(x) for x in xs] for a, xs in sets.items()}


def best(scores: Iterable[np.ndarray]) -> np.ndarray:
    """Return the top-1 of every row in every construction, (s, q); ties go to the smaller index."""
    return np.stack([s.argmax(axis=1) for s in scores])


def information(top: np.ndarray, gallery: int) -> np.ndarray:
    """Return I(q) = Σ_j p(j|q) log(p(j|q) / (p(j)+ε)) / log min(N_q, N), from top-1 images (s, q)."""
    constructions, images = top.shape
    given = np.zeros((images, gallery))  # p(j|q): share of constructions with top-1 j
    for s in range(constructions):
        for q in range(images):
            given[q, top[s, q]] += 1
    given /= constructions
    pooled = given.mean(axis=0)  # p(j)
    value = []
    for p in given:
        seen = p > 0  # 0 log 0 = 0
        value.append((p[seen] * np.log(p[seen] / (pooled[seen] + EPS))).sum() / math.log(min(images, gallery)))
    return np.array(value)


def retention(target: float, database: float) -> float:
    """Return C = mean I^q / (mean I^d + ε)."""
    return target / (database + EPS)


def capacity_bootstrap(target: dict[str, np.ndarray], database: dict[str, float]) -> Interval:
    """Return CI_C of log((C_S+ε)/(C_H+ε)): images resampled in pairs, with fixed I and database reference."""
    rng, images = np.random.default_rng(0), len(target["hard"])
    statistic = []
    for _ in range(RESAMPLES):
        drawn = rng.integers(0, images, images)
        c = {a: retention(max(float(target[a][drawn].mean()), 0.0), database[a]) for a in ASSIGNMENTS}
        statistic.append(math.log((c["soft"] + EPS) / (c["hard"] + EPS)))
    return interval(statistic)


def capacity_evidence(database: Sets, target: Sets, may: Sets) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return I(q) of the calibration images and mean I of the masked pseudo queries, top-1 under S_0."""
    of_target, of_database = {}, {}
    for a in ASSIGNMENTS:
        gallery = len(database[a][0])
        scores = [tied(q @ d.T, q, d) for q, d in zip(target[a], database[a], strict=True)]
        masked = [np.where(m, tied(d @ d.T, d, d), -np.inf) for d, m in zip(database[a], may[a], strict=True)]
        of_target[a] = information(best(scores), gallery)
        of_database[a] = float(information(best(masked), gallery).mean())
    return of_target, of_database


# --- Relation --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """Scores of some images under one kernel, and the Gram matrices for the relation terms."""

    scores: np.ndarray  # T, images × database; −inf if masked
    rows: np.ndarray  # kernel among the images
    gallery: np.ndarray  # kernel among the database images

    @property
    def top(self) -> np.ndarray:
        return self.scores.argmax(axis=1)

    @property
    def unmasked(self) -> np.ndarray:
        return self.scores > -np.inf


def pseudo(gallery: np.ndarray, may: np.ndarray) -> Seen:
    """Return the database images as queries, each without itself and its duplicates."""
    return Seen(np.where(may, gallery, -np.inf), gallery, gallery)


def centered(gram: np.ndarray) -> np.ndarray:
    """Return K_c = H K H, H = I − 11ᵀ/n."""
    out = gram - gram.mean(axis=0, keepdims=True) - gram.mean(axis=1, keepdims=True) + gram.mean()
    # The centered Gram matrix of equal vectors is rounding, which must not count as structure.
    return np.zeros_like(out) if np.linalg.norm(out) <= 1e-13 * np.linalg.norm(gram) else out


def cka(one: np.ndarray, other: np.ndarray) -> float:
    """Return ⟨K_c, K'_c⟩ / (‖K_c‖ ‖K'_c‖) of centered Gram matrices; 0 if one of them is 0."""
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float((one * other).sum()) / norms if norms > 0 else 0.0


def effective_rank(gram: np.ndarray) -> float:
    """Return r = tr(K_c)² / (‖K_c‖_F² + ε)."""
    return float(np.trace(gram) ** 2 / ((gram**2).sum() + EPS))


def terms(seen: Seen, drawn: np.ndarray) -> tuple[float, float, float, float]:
    """Return κ, M, F, P of the rows `drawn`."""
    match = seen.top[drawn]
    query_gram = centered(seen.rows[np.ix_(drawn, drawn)])
    match_gram = centered(seen.gallery[np.ix_(match, match)])
    # Rank of row q in column t(q), among the drawn rows.
    rank = np.array([1 + (seen.scores[drawn, t] > seen.scores[q, t]).sum() for q, t in zip(drawn, match, strict=True)])
    r_q, r_m = effective_rank(query_gram), effective_rank(match_gram)
    preserved = min(r_q, r_m) / max(r_q, r_m) if max(r_q, r_m) > 0 else 0.0
    return max(0.0, cka(query_gram, match_gram)), float((1 / rank).mean()), float((rank == 1).mean()), preserved


def unit_ratio(x: float, reference: float) -> float:
    """Return u(x; x^d) = clip(x / (x^d+ε), 0, 1)."""
    return float(np.clip(x / (reference + EPS), 0, 1))


def joint(terms: tuple[float, ...], reference: tuple[float, ...]) -> float:
    """Return J = [u(κ) u(M) u(F)]^{1/3} u(P)."""
    alignment, reciprocal, mutual, preserved = (unit_ratio(x, d) for x, d in zip(terms, reference, strict=True))
    return (alignment * reciprocal * mutual) ** (1 / 3) * preserved


def subsamples(images: int, pseudo_queries: int) -> Draws:
    """Return the fixed draws for both assignments, both views and both branches."""
    rng, size = np.random.default_rng(0), min(max(2, math.ceil(0.8 * images)), LARGEST, images)
    drawn = []
    for _ in range(SUBSAMPLES):
        i = rng.choice(images, size, replace=False)
        j = rng.choice(pseudo_queries, min(size, pseudo_queries), replace=False)
        drawn.append((i, j))
    return drawn


def relation(target: list[Seen], reference: list[Seen], draws: Draws) -> np.ndarray:
    """Return J of every draw, mean over constructions."""
    return np.array(
        [np.mean([joint(terms(t, i), terms(d, j)) for t, d in zip(target, reference, strict=True)]) for i, j in draws]
    )


def soft_minus_hard(target: Sets, database: Sets, may: Sets, draws: Draws) -> np.ndarray:
    """Return J_S − J_H of every draw in a view of unit vectors, with cosines as scores and Gram matrices."""
    j = {}
    for a in ASSIGNMENTS:
        found = [Seen(tied(q @ d.T, q, d), q @ q.T, d @ d.T) for q, d in zip(target[a], database[a], strict=True)]
        reference = [pseudo(tied(d @ d.T, d, d), m) for d, m in zip(database[a], may[a], strict=True)]
        j[a] = relation(found, reference, draws)
    return j["soft"] - j["hard"]
