"""How the images of a map resemble each other under its own head: each is a query with itself hidden."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfa.method.evidence.support import NOBODY
from tfa.method.scorer import Scorer

MOST_QUERIES = 2000  # images that are queries; of a larger map evenly spaced ones
NEIGHBOURS = 5  # answers looked at
KEPT_ALIKE = 0.9  # cosine from which a pair is kept
BLOCK = 64


@dataclass(frozen=True)
class Resemblance:
    """What the images say of each other. Images are columns: positions among those of the map that still answer."""

    queries: np.ndarray  # p: the images that were queries
    images: int
    first: np.ndarray  # p NEIGHBOURS: their best others, NOBODY where there are fewer
    best: np.ndarray  # p: cosine with the most similar other image
    alike: tuple[np.ndarray, np.ndarray, np.ndarray]  # image, other image, cosine ≥ KEPT_ALIKE, image < other


def resemblance(scorer: Scorer, alive: np.ndarray, most: int = MOST_QUERIES) -> Resemblance:
    """Of the gallery rows `alive`. Cosines are of the compiled vectors less their mean over the map:

        ⟨Ψ − Ψ̄, Ψ' − Ψ̄⟩ / ‖Ψ − Ψ̄‖ ‖Ψ' − Ψ̄‖,   ⟨Ψ − Ψ̄, Ψ' − Ψ̄⟩ = ⟨Ψ, Ψ'⟩ − ⟨Ψ, Ψ̄⟩ − ⟨Ψ', Ψ̄⟩ + ‖Ψ̄‖²

    since what all images share (sky, road) would make any two look alike. Scores order the answers and include the
    bias of calibrated scores; an image and its copies are hidden.
    """
    count = len(alive)
    queries = np.arange(count) if count <= most else np.linspace(0, count - 1, most).round().astype(np.int64)
    kept = alive if scorer.duplicates is None else scorer.duplicates[alive]
    level, norms = _level_and_norms(scorer, kept)
    first = np.empty((len(queries), min(NEIGHBOURS, max(count - 1, 0))), np.int64)
    best = np.full(len(queries), np.nan)
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for low in range(0, len(queries), BLOCK):
        rows = queries[low : low + BLOCK]
        scores = scorer.scores_of([term.gallery.take(kept[rows]) for term in scorer.terms])[:, alive].astype(float)
        cosines = (scores - scorer.bias[kept] - level[rows][:, None] - level) / (norms[rows][:, None] * norms)
        hidden = kept[rows][:, None] == kept[None, :]
        cosines[hidden] = 1.0
        one, other = np.nonzero(cosines >= KEPT_ALIKE)
        found.append((rows[one], other, cosines[one, other].clip(max=1.0)))
        scores[hidden], cosines[hidden] = -np.inf, -np.inf
        order = np.argsort(-scores, axis=1, kind="stable")[:, : first.shape[1]]
        hides = np.isneginf(np.take_along_axis(scores, order, axis=1))  # fewer others than places
        first[low : low + BLOCK] = np.where(hides, NOBODY, order)
        best[low : low + BLOCK] = cosines.max(axis=1)
    one, other, cosine = (np.concatenate(column) for column in zip(*found, strict=True))
    pairs = np.unique(np.stack([np.minimum(one, other), np.maximum(one, other)]), axis=1, return_index=True)
    chosen = pairs[1][pairs[0][0] < pairs[0][1]]
    low_ones, high_ones = np.minimum(one, other)[chosen], np.maximum(one, other)[chosen]
    return Resemblance(queries, count, first, best, (low_ones, high_ones, cosine[chosen]))


def _level_and_norms(scorer: Scorer, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each image `m`: ⟨Ψ, Ψ̄⟩ − ‖Ψ̄‖²/2, so that a pair loses the sum of both, and ‖Ψ − Ψ̄‖."""
    squared, along, of_mean = np.zeros(len(kept)), np.zeros(len(kept)), 0.0
    starts = range(0, len(kept), BLOCK)
    for term in scorer.terms:
        sums = [term.gallery.take(kept[low : low + BLOCK]).sum(axis=0, dtype=np.float64) for low in starts]
        mean = np.sum(sums, axis=0) / len(kept)
        of_mean += term.weight * float(mean @ mean)
        for low in starts:
            rows = term.gallery.take(kept[low : low + BLOCK]).astype(np.float64)
            squared[low : low + BLOCK] += term.weight * np.einsum("md,md->m", rows, rows)
            along[low : low + BLOCK] += term.weight * (rows @ mean)
    # Images that are all alike have nothing but rounding beside their mean.
    centred = np.maximum(squared - 2 * along + of_mean, 1e-6 * np.maximum(squared, 1e-30))
    return along - of_mean / 2, np.sqrt(centred)
