"""Reranking (ours, beyond the paper): the first candidates of a head in the order of score and evidence together.

order   z + 4 √M                                z: the candidate's z-score in the query's row of scores
auto    10 candidates c are verified, then 5 more at a time, 100 at most, until no other is likely to win:

            max_{i ≤ c} (z_i + 4 √M_i)  >  z_{c+1} + 4 (median_{i ≤ c} √M_i + 0.625)

Most candidates show other places: the median of their √M is what chance gives to this photo, and it seldom gives 0.625
more. Whatever ranks after c has at most the z-score of the next.

`rerank` is the one way from scores to answers: of maps, of the service and of the benchmark.
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

WEIGHT = 4.0  # of √M beside a z-score
AUTO_START, AUTO_STEP, AUTO_MAX = 10, 5, 100  # adaptive number of verified candidates
CHANCE = 0.625  # of √M: by so much it seldom is above the median where a candidate shows another place
_QUERIES_PER_ROUND = 64  # queries that are compared at a time
UNVERIFIED = -1  # the matches of an image that was no candidate


def count_candidates(candidates: Candidates) -> int:
    """Return how many images must be ranked so that all candidates are among them."""
    return AUTO_MAX if candidates == AUTO else candidates


def combine_scores(standardised: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """Combine the candidates' z-scores in the query's row `… c` and their evidence `… c`."""
    return standardised + WEIGHT * np.sqrt(evidence)


def is_settled(standardised: np.ndarray, evidence: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Tell for queries `q` whether none of the images after the candidates is likely to win.

    The candidates have z-scores `q c` and evidence `q c`; `following` `q` are the z-scores of the next images.
    """
    chance = np.median(np.sqrt(evidence), axis=1) + CHANCE
    return combine_scores(standardised, evidence).max(axis=1) > following + WEIGHT * chance


def compute_leads(evidence: np.ndarray) -> np.ndarray:
    """Compute how far each of the candidates `… c` stands out from them by evidence: √M − √(median M)."""
    return np.sqrt(evidence) - np.sqrt(np.median(evidence, axis=-1, keepdims=True))


class Compared(NamedTuple):
    """A query beside some images `c`."""

    evidence: np.ndarray  # M of each, float64
    inliers: np.ndarray  # how many matches are consistent


class Comparison(Protocol):
    """Compares queries, rows of a score matrix, with images, its columns."""

    def with_queries(self, rows: Sequence[int], images: Sequence[np.ndarray]) -> list[Compared]:
        """Each of the queries with images of its own."""
        ...


@dataclass(frozen=True)
class Reranked:
    """Images of each query in their new order, best first; those that were no candidate follow in their old order."""

    indices: np.ndarray  # q k
    standardised: np.ndarray  # q k: z-score in the query's row of scores
    ordering: np.ndarray  # q k: what candidates are ordered by; the z-score where it was no candidate
    evidence: np.ndarray  # q k: 0 where it was no candidate
    lead: np.ndarray  # q k: how far the evidence stands out from that of all candidates
    inliers: np.ndarray  # q k: number of consistent matches; UNVERIFIED where it was no candidate


def rerank(
    scores: np.ndarray,
    k: int,
    candidates: Candidates = 0,
    comparison: Comparison | None = None,
    progress: Progress | None = None,
) -> Reranked:
    """The k best columns of scores `q m`, their first `candidates` in the order of score and evidence.

    Exactly so many are candidates: an image that ties with the last of them but has a larger index is not. Without a
    comparison the order is that of the scores.
    """
    ranked, _ = top_k(scores, max(k, count_candidates(candidates) if comparison is not None else 0))
    return reorder(ranked, standardize_ranked(scores, ranked), k, candidates, comparison, progress)


def reorder(
    ranked: np.ndarray,
    standardised: np.ndarray,
    k: int,
    candidates: Candidates = 0,
    comparison: Comparison | None = None,
    progress: Progress | None = None,
) -> Reranked:
    """`rerank` of images that a search has ranked already: their columns `q c` and z-scores `q c`, best first.

    They are at least as many as k and as `count_candidates`, or all that there are.
    """
    evidence, lead = np.zeros((2, *ranked.shape))
    inliers = np.full(ranked.shape, UNVERIFIED, np.int64)
    result = Reranked(ranked.copy(), standardised.copy(), standardised.copy(), evidence, lead, inliers)
    ends = plan_rounds(candidates, ranked.shape[1])
    if comparison is not None and ends:
        with (progress or SilentProgress()).task("verification", len(ranked), "photos") as task:
            for start in range(0, len(ranked), _QUERIES_PER_ROUND):
                rows = np.arange(start, min(start + _QUERIES_PER_ROUND, len(ranked)))
                for row, count in zip(rows.tolist(), _compare(result, rows, ends, comparison), strict=True):
                    _reorder_row(result, row, count)
                task.advance(len(rows))
    return Reranked(*(getattr(result, field.name)[:, :k] for field in fields(Reranked)))


def plan_rounds(candidates: Candidates, ranked: int) -> list[int]:
    """Return how many of the ranked images are verified after each round."""
    most = min(count_candidates(candidates), ranked)
    earlier = range(AUTO_START, most, AUTO_STEP) if candidates == AUTO else ()
    return [*earlier, most] if most else []


def _compare(result: Reranked, rows: np.ndarray, ends: Sequence[int], comparison: Comparison) -> list[int]:
    """Write evidence and matches of the candidates of some rows, in the head's order, into the tables of `result`.

    `rows` follow each other. Returns how many candidates each has; all that go on are compared together.
    """
    first, counts, done = rows[0], np.zeros(len(rows), np.int64), 0
    for end in ends:
        images = [result.indices[row, done:end] for row in rows]
        for row, compared in zip(rows, comparison.with_queries(rows.tolist(), images), strict=True):
            result.evidence[row, done:end], result.inliers[row, done:end] = compared
        counts[rows - first], done = end, end
        if end < ends[-1]:
            stop = is_settled(
                result.standardised[rows, :end], result.evidence[rows, :end], result.standardised[rows, end]
            )
            rows = rows[~stop]
        if not len(rows):
            break
    return counts.tolist()


def _reorder_row(result: Reranked, row: int, count: int) -> None:
    """Bring the candidates of a query, the first `count`, from the head's order into the verified one."""
    z, evidence = result.standardised[row, :count], result.evidence[row, :count]
    standing = combine_scores(z, evidence)
    order = np.argsort(-standing, kind="stable")  # of equals the head's first
    result.ordering[row, :count], result.lead[row, :count] = standing, compute_leads(evidence)
    for field in fields(Reranked):
        table = getattr(result, field.name)
        table[row, :count] = table[row, :count][order]
