"""Query a head: top-ranked images per query and the z-score of the best score in its row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.core.progress import Progress, SilentProgress
from tfa.evaluate.judgement import PROBABILITY, Z_SCORE
from tfa.method.evidence import row_facts
from tfa.search.gallery import top_k
from tfa_bench.heads.contract import Confident, Fitted, InOrder, Photos, TwoSided
from tfa_bench.measures import Positives, recall_at
from tfa_bench.protocols import Fold, Split
from tfa_bench.records import ScoreSample

QUERIES_AT_ONCE = 256  # rows of a score matrix `(q, m)` in memory
_CONFIDENCE_BITS = 16  # stored bits of a float32 confidence: sign, exponent and 7 bits of the mantissa
SAMPLE = 40  # queries and database images of the score matrix sample in a record


@dataclass(frozen=True)
class Answers:
    """Answers to the queries of one split. Queries that were not evaluated have `nothing` and nan."""

    replicas: tuple[str, ...]
    folds: tuple[Mapping[str, Any], ...]
    rankings: np.ndarray  # (queries, replicas, depth)
    confidence: np.ndarray  # (queries, replicas)


def index_type(images: int) -> np.dtype:
    """Return the smallest dtype of a database index; its largest value is reserved for `nothing`."""
    return next(kind for kind in map(np.dtype, ("u1", "u2", "u4")) if images < np.iinfo(kind).max)


def answers_of_split(
    split: Split, heads: Sequence[Fitted], queries: Photos, images: int, depth: int, progress: Progress | None = None
) -> Answers:
    """Let each fold's head answer its queries, for every replica."""
    replicas, kind = heads[0].replicas, index_type(images)
    rankings = np.full((len(queries), len(replicas), min(depth, images)), np.iinfo(kind).max, kind)
    confidence = np.full((len(queries), len(replicas)), np.nan, np.float32)
    kinds = []
    with (progress or SilentProgress()).task("querying", len(split.evaluated) * len(replicas), "queries") as task:
        for fold, head in zip(split.folds, heads, strict=True):
            own = False
            for column, replica in enumerate(replicas):
                for rows, scores, sure in answered(head, queries, fold.evaluated, replica):
                    rankings[rows, column], peak = ranked(scores, depth, kind)
                    confidence[rows, column] = peak if sure is None else sure
                    own = own or sure is not None
                    task.advance(len(rows))
            kinds.append(PROBABILITY if own else Z_SCORE)
    folds = tuple(_facts(*one, queries, kind) for one in zip(split.folds, heads, kinds, strict=True))
    return Answers(replicas, folds, rankings, in_few_bits(confidence))


def in_few_bits(confidence: np.ndarray) -> np.ndarray:
    """Cut confidences `(q, …)` to two digits and keep their order: the last bits store the rank among equal ones.

    Precision against recall depends only on the order of confidences. Cut ones take half the bytes.
    """
    bits = (np.array(confidence, np.float32) + 0.0).reshape(len(confidence), -1).view(np.uint32)  # no -0.0
    low = 32 - _CONFIDENCE_BITS
    for column in bits.T:
        known = np.unique(column)  # floats of one sign are ordered like their bits, so ranks count away from zero
        first = np.searchsorted(known >> low, known >> low)
        rank = np.arange(len(known)) - first
        if rank.max(initial=0) < 1 << low:  # leave 65,536 or more confidences in one step unchanged
            column[:] = ((known >> low << low) + rank)[np.searchsorted(known, column)]
    return bits.view(np.float32).reshape(confidence.shape)


def answered(
    head: Fitted, queries: Photos, order: np.ndarray, replica: str
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    """Yield queries in this order in batches: indices `(q,)`, scores `(q, m)` and the head's confidence `(q,)`."""
    if isinstance(head, InOrder):
        start = 0
        for scores, sure in head.in_order(queries.select(order), replica):
            yield order[start : start + len(scores)], scores, sure
            start += len(scores)
        return
    for start in range(0, len(order), QUERIES_AT_ONCE):
        rows = order[start : start + QUERIES_AT_ONCE]
        yield rows, *scored(head, queries.select(rows), replica)


def scored(head: Fitted, queries: Photos, replica: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return scores `(q, m)` and the head's confidence `(q,)`, or None if it has none."""
    if isinstance(head, Confident):
        return head.scores_and_confidence(queries, replica)
    return head.scores(queries, replica), None


def mean_recall(head: Fitted, queries: Photos, positives: Positives, ks: Sequence[int]) -> list[float]:
    """Return recall over all queries averaged over replicas, as the paper reports it for uncalibrated heads."""
    everyone = Split(None, (Fold(np.arange(0), np.arange(len(queries))),))
    images = head.scores(queries.select(slice(0, 1)), head.replicas[0]).shape[1]
    answers = answers_of_split(everyone, [head], queries, images, max(ks))
    rows = [recall_at(answers.rankings[:, replica], positives, ks) for replica in range(len(head.replicas))]
    return [float(value) for value in np.mean(rows, axis=0)]


def ranked(scores: np.ndarray, depth: int, kind: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return the `depth` best images of each row, ties to the smaller index, and the z-score of the best.

    A row of equal scores ranks nothing: by the tie rule a constant scorer would otherwise be right whenever image 0 is
    a positive. NaN scores rank below all others.
    """
    scores = np.where(np.isnan(scores), -np.inf, scores)
    first = top_k(scores, depth)[0].astype(kind)
    flat = (scores == scores[:, :1]).all(axis=1) & (scores.shape[1] > 1)
    first[flat] = np.iinfo(kind).max
    finite = np.where(np.isfinite(scores), scores, np.nan)
    peak = row_facts(np.nan_to_num(finite, nan=0.0).astype(np.float64)).peak
    return first, np.where(flat, 0.0, peak).astype(np.float32)


def score_sample(head: Fitted, queries: Photos, images: int, order: np.ndarray) -> ScoreSample:
    """Sample scores of evenly spaced queries and database images, for a figure of the score matrix.

    A head that learns from queries answers all of them, in this `order`.
    """
    rows = np.unique(np.linspace(0, len(queries) - 1, min(SAMPLE, len(queries))).astype(np.int64))
    columns = np.unique(np.linspace(0, images - 1, min(SAMPLE, images)).astype(np.int64))
    if not isinstance(head, InOrder):
        return ScoreSample.of(rows, columns, head.scores(queries.select(rows), head.replicas[0])[:, columns])
    every = np.zeros((len(queries), len(columns)))
    for some, scores, _ in answered(head, queries, order, head.replicas[0]):
        every[some] = scores[:, columns]
    return ScoreSample.of(rows, columns, every[rows])


def _facts(fold: Fold, head: Fitted, confidence: str, queries: Photos, kind: np.dtype) -> dict[str, Any]:
    decisions = dict(getattr(head, "decisions", {}))
    if isinstance(head, TwoSided) and (found := head.other_side()) is not None:
        flip, other = found
        decisions["other_side"] = {**flip, "first": first_answers(other, queries, fold.evaluated, kind).tolist()}
    return {
        "calibration": fold.calibration,
        "evaluated": fold.evaluated,
        "condition": fold.condition,
        "confidence": confidence,
        "decisions": decisions,
    }


def first_answers(head: Fitted, queries: Photos, evaluated: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Return the best image of each evaluated query, `(q, replicas)`."""
    batches = [
        [ranked(scores, 1, kind)[0] for _, scores, _ in answered(head, queries, evaluated, replica)]
        for replica in head.replicas
    ]
    return np.concatenate([np.concatenate(own) for own in batches], axis=1)
