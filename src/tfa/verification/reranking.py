"""Reranking (ours, beyond the paper): the first candidates of a head in the order of score and evidence together.

order      z + 4 √M                               z: the candidate's z-score in the query's row of scores
one place  the head's first candidate stays first if the winner has more than 2.5 times the evidence with it than
           with the query: both show one place, and which frame of it is nearest the head says better

`rerank` is the one way from scores to answers: of maps, of the service and of the benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

import numpy as np

from tfa.base.progress import Progress, SilentProgress
from tfa.method.evidence.rows import standardised
from tfa.search.ties import top_k

WEIGHT = 4.0  # of √M beside a z-score
ONE_PLACE = 2.5  # times the evidence of query and winner: two images of the map with more show one place
AT_ONCE = 64  # queries that are compared at a time
UNVERIFIED = -1  # the matches of an image that was no candidate
Between = Callable[[int, int], float]


def fused(standardised: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """The candidates' z-scores in the query's row `c` and their evidence `c`, in one number each."""
    return standardised + WEIGHT * np.sqrt(evidence)


def ordering(standardised: np.ndarray, evidence: np.ndarray, between: Between) -> np.ndarray:
    """What candidates `c` are ordered by: their fused scores, but for one place.

    The first candidate is the head's first. `between(i, j)` gives the evidence of the i-th candidate with the j-th;
    it is called once at most.
    """
    scores = fused(standardised, evidence)
    winner = int(scores.argmax()) if len(scores) else 0
    if winner and between(winner, 0) > ONE_PLACE * evidence[winner]:
        copies = (standardised == standardised[0]) & (evidence == evidence[0])  # duplicates of an image stay equal
        scores[copies] = np.nextafter(scores[winner], np.inf)
    return scores


def leads(evidence: np.ndarray) -> np.ndarray:
    """How far each of the candidates `… c` stands out from them by evidence: √M − √(median M)."""
    return np.sqrt(evidence) - np.sqrt(np.median(evidence, axis=-1, keepdims=True))


def margins(ordering: np.ndarray) -> np.ndarray:
    """How far what each candidate `c` is ordered by is above the best of the others; below it, if negative."""
    if len(ordering) < 2:
        return np.zeros(len(ordering))
    second, first = np.partition(ordering, -2)[-2:]
    above = ordering - first
    above[ordering.argmax()] = first - second
    return above


class Compared(NamedTuple):
    """A query beside some images `c`."""

    evidence: np.ndarray  # M of each, float64
    matches: np.ndarray  # how many matches are consistent


class Comparison(Protocol):
    """Compares queries, rows of a score matrix, with images, its columns."""

    def with_queries(self, rows: Sequence[int], images: Sequence[np.ndarray]) -> list[Compared]:
        """Each of the queries with images of its own."""
        ...

    def between(self, image: int, other: int) -> float:
        """The evidence of two images with each other."""
        ...


@dataclass(frozen=True)
class Verified:
    """Images of each query in their new order, best first; those that were no candidate follow in their old order."""

    indices: np.ndarray  # q k
    standardised: np.ndarray  # q k: z-score in the query's row of scores
    ordering: np.ndarray  # q k: what candidates are ordered by; the z-score where it was no candidate
    evidence: np.ndarray  # q k: 0 where it was no candidate
    lead: np.ndarray  # q k: how far the evidence stands out from that of all candidates
    margin: np.ndarray  # q k: how far the image is above the best other
    matches: np.ndarray  # q k: number of consistent matches; UNVERIFIED where it was no candidate


def rerank(
    scores: np.ndarray,
    k: int,
    candidates: int = 0,
    comparison: Comparison | None = None,
    progress: Progress | None = None,
) -> Verified:
    """The k best columns of scores `q m`, their first `candidates` in the order of score and evidence.

    Exactly so many are candidates: an image that ties with the last of them but has a larger index is not. Without a
    comparison the order is that of the scores.
    """
    ranked, _ = top_k(scores, max(k, candidates if comparison is not None else 0))
    return reorder(ranked, standardised(scores, ranked), k, candidates, comparison, progress)


def reorder(
    ranked: np.ndarray,
    standardised: np.ndarray,
    k: int,
    candidates: int = 0,
    comparison: Comparison | None = None,
    progress: Progress | None = None,
) -> Verified:
    """`rerank` of images that an engine has ranked already: their columns `q c` and z-scores `q c`, best first."""
    count = min(candidates, ranked.shape[1]) if comparison is not None else 0
    ranked, (evidence, lead, margin) = ranked.copy(), np.zeros((3, *ranked.shape))
    matches = np.full(ranked.shape, UNVERIFIED, np.int64)
    found = Verified(ranked, standardised, standardised.copy(), evidence, lead, margin, matches)
    if comparison is not None and count:
        with (progress or SilentProgress()).task("verification", len(ranked), "photos") as task:
            for start in range(0, len(ranked), AT_ONCE):
                rows = range(start, min(start + AT_ONCE, len(ranked)))
                images = [ranked[row, :count].copy() for row in rows]
                for row, own, compared in zip(rows, images, comparison.with_queries(rows, images), strict=True):
                    _reorder_row(found, row, own, compared, comparison)
                task.advance(len(rows))
    return Verified(*(getattr(found, field.name)[:, :k] for field in fields(Verified)))


def _reorder_row(found: Verified, row: int, images: np.ndarray, compared: Compared, comparison: Comparison) -> None:
    """Write the verified order of a query's candidates, given in the head's order, into the tables of `found`."""
    count = len(images)
    z = found.standardised[row, :count].copy()
    standing = ordering(z, compared.evidence, lambda i, j: comparison.between(int(images[i]), int(images[j])))
    order = np.argsort(-standing, kind="stable")  # of equals the head's first
    lead, margin = leads(compared.evidence), margins(standing)
    columns = (images, z, standing, compared.evidence, lead, margin, compared.matches)
    for field, values in zip(fields(Verified), columns, strict=True):
        getattr(found, field.name)[row, :count] = values[order]
