"""Resolve near ties of stores, which do not order ties by id.

    |s(q, d) − s(q, d')| ≤ ε   →   both are rescored in float64, and the smaller id wins if they are equal

Stores multiply in blocks, and the shape of a block determines rounding. So equal vectors may get scores that differ in
the last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

NEAR_TIE = 4e-6  # relative to max(1, |score|): about eight times the error of a float32 inner product
SPARE = 16  # extra results beyond k, so that most ties at rank k are complete

_Vectors = Callable[[Sequence[int]], Mapping[int, np.ndarray]]  # returns vectors of existing ids


@dataclass(frozen=True)
class RankedIds:
    """Results of a store for one query, best first by its own scores."""

    ids: np.ndarray  # int64
    scores: np.ndarray  # float32

    @classmethod
    def of(cls, ids: Sequence[int] | np.ndarray, scores: Sequence[float] | np.ndarray) -> RankedIds:
        own, best = np.asarray(ids, np.int64), np.asarray(scores, np.float32)
        order = np.lexsort((own, -best))
        return cls(own[order], best[order])

    def ends_in_a_tie(self, k: int, limit: int, close: float = NEAR_TIE) -> bool:
        """Return True if a result beyond the `limit` returned ones may tie with the k-th."""
        if len(self.ids) < limit or len(self.ids) <= k:
            return len(self.ids) >= limit
        return bool(self.scores[-1] >= self.scores[k - 1] - _tolerance(self.scores, close))

    def close_ones(self) -> np.ndarray:
        """Return the indices of results whose score is a near tie with the next or previous one."""
        near = np.abs(np.diff(self.scores)) <= _tolerance(self.scores, NEAR_TIE)
        return np.flatnonzero(np.append(near, False) | np.append(False, near))


def _tolerance(scores: np.ndarray, close: float) -> float:
    return close * max(1.0, float(np.abs(scores).max(initial=0)))


def settle_ties(
    queries: np.ndarray, answers: Sequence[RankedIds], vectors_of: _Vectors, every: bool = False
) -> list[RankedIds]:
    """Rescore near ties, or all results; vectors of all queries are fetched in one request."""
    close = [np.arange(len(answer.ids)) if every else answer.close_ones() for answer in answers]
    wanted = sorted({int(one) for answer, at in zip(answers, close, strict=True) for one in answer.ids[at]})
    vectors = vectors_of(wanted) if wanted else {}
    settled = []
    for query, answer, at in zip(queries, answers, close, strict=True):
        scores = answer.scores.copy()
        known = [place for place in at.tolist() if int(answer.ids[place]) in vectors]  # others were deleted meanwhile
        if known:
            rows = np.stack([vectors[int(one)] for one in answer.ids[known]]).astype(np.float64)
            # Row by row, so that equal rows have equal sums.
            scores[known] = (rows * query.astype(np.float64)).sum(axis=1)
        settled.append(RankedIds.of(answer.ids, scores))
    return settled
