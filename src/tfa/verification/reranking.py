"""Reranking (ours, beyond the paper): the first candidates of a head in the order of score and evidence together.

order      z + 4 √M                               z: the candidate's z-score in the query's row of scores
one place  the head's first candidate stays first if the winner has more than 2.5 times the evidence with it than
           with the query: both show one place, and which frame of it is nearest the head says better
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

WEIGHT = 4.0  # of √M beside a z-score
ONE_PLACE = 2.5  # times the evidence of query and winner: two images of the map with more show one place
Between = Callable[[int, int], float]


def fused(standardised: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """The candidates' z-scores in the query's row `c` and their evidence `c`, in one number each."""
    return standardised + WEIGHT * np.sqrt(evidence)


def ordering(standardised: np.ndarray, evidence: np.ndarray, between: Between) -> np.ndarray:
    """What candidates `c` are ordered by: their fused scores, but for one place.

    The first candidate is the head's first. `between(i, j)` gives the evidence of the i-th candidate with the j-th;
    it is asked once at most.
    """
    scores = fused(standardised, evidence)
    winner = int(scores.argmax()) if len(scores) else 0
    if winner and between(winner, 0) > ONE_PLACE * evidence[winner]:
        twins = (standardised == standardised[0]) & (evidence == evidence[0])  # copies of an image stay equal
        scores[twins] = np.nextafter(scores[winner], np.inf)
    return scores


def leads(evidence: np.ndarray) -> np.ndarray:
    """How far each of the candidates `… c` stands out of them by evidence: √M − √(median M)."""
    return np.sqrt(evidence) - np.sqrt(np.median(evidence, axis=-1, keepdims=True))


def margins(ordering: np.ndarray) -> np.ndarray:
    """How far what each candidate `c` is ordered by is above the best of the others; below it, if negative."""
    if len(ordering) < 2:
        return np.zeros(len(ordering))
    second, first = np.partition(ordering, -2)[-2:]
    above = ordering - first
    above[ordering.argmax()] = first - second
    return above
