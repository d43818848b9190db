"""Rows of scores: their mean and spread, z-scores, and the best answer of each. The one place of z-scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NO_ANSWER = -1  # the top-1 of a pseudo query all of whose gallery is masked
ROW_EPSILON = 1e-12
Masked = tuple[np.ndarray, np.ndarray]  # (row, column) of entries that may not be answered


def mean_and_spread(scores: np.ndarray, masked: Masked | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Mean and population standard deviation of each row `p m` over its unmasked entries; masked ones become −∞."""
    if masked is None:
        return scores.mean(axis=1), scores.std(axis=1)
    count = np.maximum(_unmasked(scores, masked), 1)  # a row without any has mean and spread 0
    scores[masked] = 0.0
    mean = scores.sum(axis=1) / count
    centred = scores - mean[:, None]
    centred[masked] = 0.0
    scores[masked] = -np.inf
    return mean, np.sqrt(np.einsum("ij,ij->i", centred, centred) / count)


def z_scores(values: np.ndarray, mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """How many standard deviations values lie above the mean of their row; 0 in a row of equal scores."""
    return (values - mean) / (spread + ROW_EPSILON)


def standardize_ranked(scores: np.ndarray, ranked: np.ndarray) -> np.ndarray:
    """z-scores `q k` of the images `ranked` in their rows of scores `q m`, in float64."""
    scores = np.ascontiguousarray(scores, np.float64)  # sums must not depend on how the rows lie in memory
    mean, spread = mean_and_spread(scores)
    return z_scores(np.take_along_axis(scores, ranked, axis=1), mean[:, None], spread[:, None])


@dataclass(frozen=True)
class RowFacts:
    """What is kept of a block of score rows `p m`: everything the controllers need of it."""

    top: np.ndarray  # index of the best unmasked image; ties to the smaller index; NO_ANSWER if all are masked
    spread: np.ndarray  # population standard deviation over unmasked images
    peak: np.ndarray  # z-score of the best

    @staticmethod
    def join(blocks: Sequence[RowFacts]) -> RowFacts:
        return RowFacts(*(np.concatenate([getattr(b, f) for b in blocks]) for f in ("top", "spread", "peak")))


def row_facts(scores: np.ndarray, masked: Masked | None = None) -> RowFacts:
    """Top-1, spread and peak of each row, over its unmasked entries. `scores` is overwritten where masked."""
    mean, spread = mean_and_spread(scores, masked)
    answers = _unmasked(scores, masked) > 0
    top = scores.argmax(axis=1)
    best = np.where(answers, scores[np.arange(len(scores)), top], mean)
    return RowFacts(np.where(answers, top, NO_ANSWER), spread, z_scores(best, mean, spread))


def row_tops(scores: np.ndarray, masked: Masked) -> np.ndarray:
    """The top-1 of each row as `row_facts` gives it, and nothing else. `scores` is overwritten."""
    scores[masked] = -np.inf
    return np.where(_unmasked(scores, masked) > 0, scores.argmax(axis=1), NO_ANSWER)


def _unmasked(scores: np.ndarray, masked: Masked | None) -> np.ndarray:
    """How many entries of each row may be answered."""
    hidden = 0 if masked is None else np.bincount(masked[0], minlength=len(scores))
    return np.full(len(scores), scores.shape[1]) - hidden
