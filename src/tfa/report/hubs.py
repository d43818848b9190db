"""Hubs and lonely images (ours): how often the map's own images return each other, each a query with itself hidden."""

from __future__ import annotations

import numpy as np

from tfa.method.evidence.support import NOBODY
from tfa.report.neighbours import NEIGHBOURS, Resemblance

HUB = 4.0  # times as often among the first answers as an image is on average
OUTLYING = 3.0  # robust deviations below the usual likeness
MAD_TO_SIGMA = 1.4826  # of a normal distribution


def answers(found: Resemblance) -> np.ndarray:
    """How often each image `m` is among the first answers of another."""
    return np.bincount(found.first[found.first != NOBODY], minlength=found.images)


def hubs_of(found: Resemblance) -> list[tuple[int, int]]:
    """Images (columns) that far more images return than is usual, with how many; the largest first."""
    counts = answers(found)
    usual = found.first.size / max(found.images, 1)
    # A hub of a tiny map would be any image: it must be returned more often than there are answers to give.
    bar = max(HUB * usual, NEIGHBOURS + 1)
    chosen = np.flatnonzero(counts >= bar)
    return [(int(i), int(counts[i])) for i in chosen[np.argsort(-counts[chosen], kind="stable")]]


def lonely_of(found: Resemblance) -> list[tuple[int, float]]:
    """Images (columns) that nothing resembles, with their largest cosine; the loneliest first.

    No image returns them among its first answers, and their most similar image is less so than is usual, by three
    robust standard deviations.
    """
    best = found.best
    known = np.isfinite(best)
    if not known.any():
        return []
    middle = float(np.median(best[known]))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(best[known] - middle)))
    far = known & (best < middle - OUTLYING * spread) & (answers(found)[found.queries] == 0)
    chosen = np.flatnonzero(far)
    return [(int(found.queries[i]), float(best[i])) for i in chosen[np.argsort(best[chosen], kind="stable")]]
