"""Confidence: how sure an answer is, without labels. Every form of it is here."""

from __future__ import annotations

import numpy as np

from tfa.method.evidence import EPSILON


def verified_confidence(percentile: np.ndarray, lead: np.ndarray, margin: np.ndarray) -> np.ndarray:
    """Confidence of answers from their percentile (see `maps.records.confidences`), lead and margin:

        1 / (1 + exp(1 − 3 min(lead, 1) − margin / 2 − percentile / 2))

    Evidence is compared with that of the other candidates of the same photo, so that repetitive scenes, where chance
    alone lines many patches up, do not look sure. A lead beyond 1 says no more: the few wrong answers there are of
    scenes that are in the map twice, and those the margin tells. The numbers are ours, of a logistic fit on real
    datasets, rounded to the safe side.
    """
    return 1 / (1 + np.exp(1 - 3 * np.minimum(lead, 1) - margin / 2 - percentile / 2))


SURE = 0.9  # verified answers at least as confident were right in 95 % or more on every dataset tried (ours)


def standardised(scores: np.ndarray, ranked: np.ndarray) -> np.ndarray:
    """z-scores `q k` of the ranked images in their rows of scores `q m`."""
    scores = np.ascontiguousarray(scores, np.float64)  # sums must not depend on how the rows lie in memory
    mean, spread = scores.mean(axis=1, keepdims=True), scores.std(axis=1, keepdims=True)
    return (np.take_along_axis(scores, ranked, axis=1) - mean) / (spread + EPSILON)


def confidences(scores: np.ndarray, ranked: np.ndarray, peaks: np.ndarray) -> np.ndarray:
    """Confidence of the ranked images of each row `q k`, without labels (ours).

    The z-score of an image's score in its row, placed among the top-1 z-scores of the map's own images when
    each is asked for with itself hidden. `peaks` are those z-scores, sorted.
    """
    # A map without a single usable pseudo query (all images identical) can be sure of nothing.
    return np.searchsorted(peaks, standardised(scores, ranked), side="right") / max(len(peaks), 1)
