"""Rerank the top candidates of a head by score and geometric evidence.

order   z + 5 √M                                z: the candidate's z-score in the query's row of scores
auto    rerank c = 10 candidates, then 5 more at a time up to 100, until no later image is likely to win:

            max_{i ≤ c} (z_i + 5 √M_i)  >  z_{c+1} + 5 (median_{i ≤ c} √M_i + 0.625)

Most candidates show other places, so the median of their √M is the chance level of this photo; chance rarely exceeds it
by 0.625. Images after c have at most the z-score of the next one. In maps without cell means the weight is 4.

Maps, the service and the benchmark all rank with `rerank`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

import numpy as np

from tfa.core.progress import Progress, SilentProgress
from tfa.method.evidence import standardize_ranked
from tfa.search.gallery import top_k
from tfa.types import AUTO, Candidates

WEIGHT, EARLIER_WEIGHT = 5.0, 4.0  # weight of √M, added to a z-score; the second in maps without cell means
AUTO_START, AUTO_STEP, AUTO_MAX = 10, 5, 100  # adaptive number of reranked candidates
CHANCE = 0.625  # margin in √M over the median that candidates of other places rarely reach
_QUERIES_PER_ROUND = 64  # queries compared at a time
UNVERIFIED = -1  # inliers of an image that was not reranked


def count_candidates(candidates: Candidates) -> int:
    """Return the number of images to rank so that all candidates are among them."""
    return AUTO_MAX if candidates == AUTO else candidates


def combine_scores(standardized: np.ndarray, evidence: np.ndarray, weight: float = WEIGHT) -> np.ndarray:
    """Combine z-scores (…, c) and evidence (…, c) of candidates."""
    return standardized + weight * np.sqrt(evidence)


def is_settled(
    standardized: np.ndarray, evidence: np.ndarray, following: np.ndarray, weight: float = WEIGHT
) -> np.ndarray:
    """Return, for each query, whether no image after the candidates is likely to win.

    The candidates have z-scores (q, c) and evidence (q, c); `following` are the z-scores (q,) of the next images.
    """
    chance = np.median(np.sqrt(evidence), axis=1) + CHANCE
    return combine_scores(standardized, evidence, weight).max(axis=1) > following + weight * chance


def compute_leads(evidence: np.ndarray) -> np.ndarray:
    """Return the evidence lead of each candidate (…, c): √M − √(median M)."""
    return np.sqrt(evidence) - np.sqrt(np.median(evidence, axis=-1, keepdims=True))


class Compared(NamedTuple):
    """A query compared with c images."""

    evidence: np.ndarray  # (c,): M, float64
    inliers: np.ndarray  # (c,)
    weight: float = WEIGHT  # weight of √M, equal for all images of a map


class Comparison(Protocol):
    """A comparison of queries (rows of a score matrix) with images (its columns)."""

    def with_queries(self, rows: Sequence[int], images: Sequence[np.ndarray]) -> list[Compared]:
        """Compare each query with its own list of images."""


@dataclass(frozen=True)
class Reranked:
    """Reranked images of each query, best first; images that were not candidates follow in the head's order."""

    indices: np.ndarray  # (q, k)
    standardized: np.ndarray  # (q, k): z-score in the query's row of scores
    ordering: np.ndarray  # (q, k): sort key; the z-score if not a candidate
    evidence: np.ndarray  # (q, k): 0 if not a candidate
    lead: np.ndarray  # (q, k): weighted evidence lead over all candidates, added to a z-score
    inliers: np.ndarray  # (q, k): UNVERIFIED if not a candidate


def rerank(
    scores: np.ndarray,
    k: int,
    candidates: Candidates = 0,
    comparison: Comparison | None = None,
    progress: Progress | None = None,
) -> Reranked:
    """Return the k best columns of scores (q, m), with the top `candidates` reranked.

    Ties with the last candidate are broken by index. Without a comparison, images are ordered by score.
    """
    ranked, _ = top_k(scores, max(k, count_candidates(candidates) if comparison is not None else 0))
    return reorder(ranked, standardize_ranked(scores, ranked), k, candidates, comparison, progress)


def reorder(
    ranked: np.ndarray,
    standardized: np.ndarray,
    k: int,
    candidates: Candidates = 0,
    comparison: Comparison | None = None,
    progress: Progress | None = None,
) -> Reranked:
    """Rerank images that a search has ranked: their columns (q, c) and z-scores (q, c), best first.

    c is at least k and `count_candidates`, or all images are listed.
    """
    evidence, lead = np.zeros((2, *ranked.shape))
    inliers = np.full(ranked.shape, UNVERIFIED, np.int64)
    result = Reranked(ranked.copy(), standardized.copy(), standardized.copy(), evidence, lead, inliers)
    ends = plan_rounds(candidates, ranked.shape[1])
    if comparison is not None and ends:
        with (progress or SilentProgress()).task("reranking", len(ranked), "photos") as task:
            for start in range(0, len(ranked), _QUERIES_PER_ROUND):
                rows = np.arange(start, min(start + _QUERIES_PER_ROUND, len(ranked)))
                counts, weight = _compare(result, rows, ends, comparison)
                for row, count in zip(rows.tolist(), counts, strict=True):
                    _reorder_row(result, row, count, weight)
                task.advance(len(rows))
    return Reranked(*(getattr(result, field.name)[:, :k] for field in fields(Reranked)))


def plan_rounds(candidates: Candidates, ranked: int) -> list[int]:
    """Return the number of candidates compared after each round."""
    most = min(count_candidates(candidates), ranked)
    earlier = range(AUTO_START, most, AUTO_STEP) if candidates == AUTO else ()
    return [*earlier, most] if most else []


def _compare(
    result: Reranked, rows: np.ndarray, ends: Sequence[int], comparison: Comparison
) -> tuple[list[int], float]:
    """Fill evidence and inliers of some consecutive rows of `result`, in the head's order.

    Returns the number of candidates of each row, and the weight of √M. Rows that need another round are compared
    together.
    """
    first, counts, done, weight = rows[0], np.zeros(len(rows), np.int64), 0, WEIGHT
    for end in ends:
        images = [result.indices[row, done:end] for row in rows]
        for row, compared in zip(rows, comparison.with_queries(rows.tolist(), images), strict=True):
            result.evidence[row, done:end], result.inliers[row, done:end], weight = compared
        counts[rows - first], done = end, end
        if end < ends[-1]:
            stop = is_settled(
                result.standardized[rows, :end], result.evidence[rows, :end], result.standardized[rows, end], weight
            )
            rows = rows[~stop]
        if not len(rows):
            break
    return counts.tolist(), weight


def _reorder_row(result: Reranked, row: int, count: int, weight: float) -> None:
    """Sort the first `count` candidates of a query from the head's order into the reranked order."""
    z, evidence = result.standardized[row, :count], result.evidence[row, :count]
    standing = combine_scores(z, evidence, weight)
    order = np.argsort(-standing, kind="stable")  # ties keep the head's order
    result.ordering[row, :count], result.lead[row, :count] = standing, weight * compute_leads(evidence)
    for field in fields(Reranked):
        table = getattr(result, field.name)
        table[row, :count] = table[row, :count][order]
