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

from tfa.base.config import AUTO, Candidates
from tfa.base.progress import Progress, SilentProgress
from tfa.method.evidence.rows import standardised
from tfa.search.gallery import top_k

WEIGHT = 4.0  # of √M beside a z-score
FIRST, FURTHER, MOST = 10, 5, 100  # candidates of a photo, where they are as many as pay
CHANCE = 0.625  # of √M: by so much it seldom is above the median where a candidate shows another place
AT_ONCE = 64  # queries that are compared at a time
UNVERIFIED = -1  # the matches of an image that was no candidate


def most_candidates(candidates: Candidates) -> int:
    """How many images have to be ranked so that all candidates are among them."""
    return MOST if candidates == AUTO else candidates


def fused(standardised: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """The candidates' z-scores in the query's row `… c` and their evidence `… c`, in one number each."""
    return standardised + WEIGHT * np.sqrt(evidence)


def enough(standardised: np.ndarray, evidence: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Is none of the images after the candidates likely to win? For queries `q`.

    Of the candidates, their z-scores `q c` and evidence `q c`; `following` `q` are the z-scores of the next images.
    """
    chance = np.median(np.sqrt(evidence), axis=1) + CHANCE
    return fused(standardised, evidence).max(axis=1) > following + WEIGHT * chance


def leads(evidence: np.ndarray) -> np.ndarray:
    """How far each of the candidates `… c` stands out from them by evidence: √M − √(median M)."""
    return np.sqrt(evidence) - np.sqrt(np.median(evidence, axis=-1, keepdims=True))


class Compared(NamedTuple):
    """A query beside some images `c`."""

    evidence: np.ndarray  # M of each, float64
    matches: np.ndarray  # how many matches are consistent


class Comparison(Protocol):
    """Compares queries, rows of a score matrix, with images, its columns."""

    def with_queries(self, rows: Sequence[int], images: Sequence[np.ndarray]) -> list[Compared]:
        """Each of the queries with images of its own."""
        ...


@dataclass(frozen=True)
class Verified:
    """Images of each query in their new order, best first; those that were no candidate follow in their old order."""

    indices: np.ndarray  # q k
    standardised: np.ndarray  # q k: z-score in the query's row of scores
    ordering: np.ndarray  # q k: what candidates are ordered by; the z-score where it was no candidate
    evidence: np.ndarray  # q k: 0 where it was no candidate
    lead: np.ndarray  # q k: how far the evidence stands out from that of all candidates
    matches: np.ndarray  # q k: number of consistent matches; UNVERIFIED where it was no candidate


def rerank(
    scores: np.ndarray,
    k: int,
    candidates: Candidates = 0,
    comparison: Comparison | None = None,
    progress: Progress | None = None,
) -> Verified:
    """The k best columns of scores `q m`, their first `candidates` in the order of score and evidence.

    Exactly so many are candidates: an image that ties with the last of them but has a larger index is not. Without a
    comparison the order is that of the scores.
    """
    ranked, _ = top_k(scores, max(k, most_candidates(candidates) if comparison is not None else 0))
    return reorder(ranked, standardised(scores, ranked), k, candidates, comparison, progress)


def reorder(
    ranked: np.ndarray,
    standardised: np.ndarray,
    k: int,
    candidates: Candidates = 0,
    comparison: Comparison | None = None,
    progress: Progress | None = None,
) -> Verified:
    """`rerank` of images that a search has ranked already: their columns `q c` and z-scores `q c`, best first.

    They are at least as many as k and as `most_candidates`, or all that there are.
    """
    evidence, lead = np.zeros((2, *ranked.shape))
    matches = np.full(ranked.shape, UNVERIFIED, np.int64)
    found = Verified(ranked.copy(), standardised.copy(), standardised.copy(), evidence, lead, matches)
    ends = rounds(candidates, ranked.shape[1])
    if comparison is not None and ends:
        with (progress or SilentProgress()).task("verification", len(ranked), "photos") as task:
            for start in range(0, len(ranked), AT_ONCE):
                rows = np.arange(start, min(start + AT_ONCE, len(ranked)))
                for row, count in zip(rows.tolist(), _compare(found, rows, ends, comparison), strict=True):
                    _reorder_row(found, row, count)
                task.advance(len(rows))
    return Verified(*(getattr(found, field.name)[:, :k] for field in fields(Verified)))


def rounds(candidates: Candidates, ranked: int) -> list[int]:
    """How many of the ranked images are verified after each round."""
    most = min(most_candidates(candidates), ranked)
    earlier = range(FIRST, most, FURTHER) if candidates == AUTO else ()
    return [*earlier, most] if most else []


def _compare(found: Verified, rows: np.ndarray, ends: Sequence[int], comparison: Comparison) -> list[int]:
    """Write evidence and matches of the candidates of some rows, in the head's order, into the tables of `found`.

    `rows` follow each other. Returns how many candidates each has; all that go on are compared together.
    """
    first, counts, done = rows[0], np.zeros(len(rows), np.int64), 0
    for end in ends:
        images = [found.indices[row, done:end] for row in rows]
        for row, compared in zip(rows, comparison.with_queries(rows.tolist(), images), strict=True):
            found.evidence[row, done:end], found.matches[row, done:end] = compared
        counts[rows - first], done = end, end
        if end < ends[-1]:
            stop = enough(found.standardised[rows, :end], found.evidence[rows, :end], found.standardised[rows, end])
            rows = rows[~stop]
        if not len(rows):
            break
    return counts.tolist()


def _reorder_row(found: Verified, row: int, count: int) -> None:
    """Bring the candidates of a query, the first `count`, from the head's order into the verified one."""
    z, evidence = found.standardised[row, :count], found.evidence[row, :count]
    standing = fused(z, evidence)
    order = np.argsort(-standing, kind="stable")  # of equals the head's first
    found.ordering[row, :count], found.lead[row, :count] = standing, leads(evidence)
    for field in fields(Verified):
        table = getattr(found, field.name)
        table[row, :count] = table[row, :count][order]
