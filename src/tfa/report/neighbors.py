"""Similarity among map images: near duplicates, hubs and isolated images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfa.method.evidence import NO_ANSWER
from tfa.method.scorer import GLOBAL, Scorer, SecondOrderSide

_ROW_BLOCK = 256  # rows in memory at once


def image_level(scorer: Scorer, rows: np.ndarray) -> np.ndarray:
    """Return what each image adds to its scores beyond the inner products of rows; zero for residual heads.

    ⟨v, v'⟩ = ⟨z, z'⟩ + 1 + l + l',   l = ⟨Uᵀμ, z⟩ + (‖μ‖² − 1) / 2,   1 the product of two rows of MEAN.
    """
    level = np.zeros(len(rows))
    for term in scorer.terms:
        if term.side != GLOBAL and term.gamma is None:
            side = scorer.sides[term.side]
            if isinstance(side, SecondOrderSide):
                mean, origin = side.mean.astype(np.float64), side.mean_coordinates.astype(np.float64)
                blocks = [rows[low : low + _ROW_BLOCK] for low in range(0, len(rows), _ROW_BLOCK)]
                along = [term.gallery.take(block).astype(np.float64) @ origin for block in blocks]
                level += term.weight * (np.concatenate([np.empty(0), *along]) + mean @ mean / 2 - 0.5)
    return level


MOST_QUERIES = 2000  # images used as queries; evenly spaced in a larger map
NEIGHBOR_COUNT = 5  # top-k answers to count
# Cosine of near duplicates: a photo that was saved again has 0.95, the next frame of a video 0.5.
NEAR_COSINE = 0.9
HUB_RATIO = 4.0  # hubs are returned this many times as often as the average image
OUTLYING = 3.0  # isolated images are this many robust deviations below the median similarity
MAD_TO_SIGMA = 1.4826  # for a normal distribution
_QUERY_BLOCK = 64


@dataclass(frozen=True)
class Resemblance:
    """Similarity among the map images; images are columns, which index the images that are not removed."""

    queries: np.ndarray  # (p,) images used as queries
    images: int
    first: np.ndarray  # (p, NEIGHBOR_COUNT) best other images; NO_ANSWER if there are fewer
    best: np.ndarray  # (p,) cosine with the most similar other image
    alike: np.ndarray  # (j, 2) sorted pairs of near duplicates, smaller column first


def measure_resemblance(scorer: Scorer, alive: np.ndarray, most: int = MOST_QUERIES) -> Resemblance:
    """Compare the gallery rows `alive` by the cosine of the compiled vectors minus their mean over the map.

        ⟨Ψ − Ψ̄, Ψ' − Ψ̄⟩ / ‖Ψ − Ψ̄‖ ‖Ψ' − Ψ̄‖,   ⟨Ψ − Ψ̄, Ψ' − Ψ̄⟩ = ⟨Ψ, Ψ'⟩ − ⟨Ψ, Ψ̄⟩ − ⟨Ψ', Ψ̄⟩ + ‖Ψ̄‖²

    Without centering, what all images share (sky, road) would make any two similar. Answers are ordered by scores,
    which include the bias of calibrated scores; an image and its copies are excluded.
    """
    count = len(alive)
    queries = np.arange(count) if count <= most else np.linspace(0, count - 1, most).round().astype(np.int64)
    kept = alive if scorer.duplicates is None else scorer.duplicates[alive]
    level, norms = _level_and_norms(scorer, kept)
    beyond = image_level(scorer, kept)
    first = np.empty((len(queries), min(NEIGHBOR_COUNT, max(count - 1, 0))), np.int64)
    best = np.full(len(queries), np.nan)
    alike = []
    for low in range(0, len(queries), _QUERY_BLOCK):
        rows = queries[low : low + _QUERY_BLOCK]
        scores = scorer.scores_of([term.gallery.take(kept[rows]) for term in scorer.terms])[:, alive].astype(float)
        cosines = (scores - scorer.bias[kept] - level[rows][:, None] - level) / (norms[rows][:, None] * norms)
        scores += beyond
        hidden = kept[rows][:, None] == kept[None, :]
        cosines[hidden] = 1.0
        one, other = np.nonzero(cosines >= NEAR_COSINE)
        alike.append(np.stack([rows[one], other], axis=1))
        scores[hidden], cosines[hidden] = -np.inf, -np.inf
        order = np.argsort(-scores, axis=1, kind="stable")[:, : first.shape[1]]
        hides = np.isneginf(np.take_along_axis(scores, order, axis=1))  # fewer other images than NEIGHBOR_COUNT
        first[low : low + _QUERY_BLOCK] = np.where(hides, NO_ANSWER, order)
        best[low : low + _QUERY_BLOCK] = cosines.max(axis=1)
    pairs = np.sort(np.concatenate(alike), axis=1)
    return Resemblance(queries, count, first, best, np.unique(pairs[pairs[:, 0] < pairs[:, 1]], axis=0))


def group_near_duplicates(resemblance: Resemblance) -> list[list[int]]:
    """Group near duplicates (columns); every member is a near duplicate of the first image of its group.

    Groups do not chain: in a video every frame resembles the next, and a whole street would become one group.
    """
    groups: dict[int, list[int]] = {}
    taken: set[int] = set()
    for leader, member in resemblance.alike.tolist():
        if member not in taken and (leader in groups or leader not in taken):
            groups.setdefault(leader, [leader]).append(member)
            taken |= {leader, member}
    return list(groups.values())


def count_answers(resemblance: Resemblance) -> np.ndarray:
    """Count how often each image is among the top answers of another, (m,)."""
    return np.bincount(resemblance.first[resemblance.first != NO_ANSWER], minlength=resemblance.images)


def find_hubs(resemblance: Resemblance) -> list[tuple[int, int]]:
    """Find images (columns) that far more queries return than on average, with their counts, largest first."""
    counts = count_answers(resemblance)
    usual = resemblance.first.size / max(resemblance.images, 1)
    # In a tiny map any image would be a hub, so a hub must also be returned more often than NEIGHBOR_COUNT.
    bar = max(HUB_RATIO * usual, NEIGHBOR_COUNT + 1)
    chosen = np.flatnonzero(counts >= bar)
    return [(int(i), int(counts[i])) for i in chosen[np.argsort(-counts[chosen], kind="stable")]]


def find_lonely(resemblance: Resemblance) -> list[tuple[int, float]]:
    """Find isolated images (columns) with their largest cosine, the most isolated first.

    No image returns them among its top answers, and their largest cosine is three robust standard deviations below
    the median.
    """
    best = resemblance.best
    known = np.isfinite(best)
    if not known.any():
        return []
    middle = float(np.median(best[known]))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(best[known] - middle)))
    far = known & (best < middle - OUTLYING * spread) & (count_answers(resemblance)[resemblance.queries] == 0)
    chosen = np.flatnonzero(far)
    return [(int(resemblance.queries[i]), float(best[i])) for i in chosen[np.argsort(best[chosen], kind="stable")]]


def find_least_alike(resemblance: Resemblance, count: int) -> list[tuple[int, float]]:
    """Return the images (columns) with the lowest largest cosine; they need not be outliers.

    An image is not compared with its copies, so one that has only copies is left out.
    """
    order = np.argsort(resemblance.best, kind="stable")
    chosen = order[np.isfinite(resemblance.best[order])][:count]
    return [(int(resemblance.queries[i]), float(resemblance.best[i])) for i in chosen]


def _level_and_norms(scorer: Scorer, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ⟨Ψ, Ψ̄⟩ − ‖Ψ̄‖²/2, whose sum over a pair is subtracted from its score, and ‖Ψ − Ψ̄‖, both (m,)."""
    squared, along, of_mean = np.zeros(len(indices)), np.zeros(len(indices)), 0.0
    starts = range(0, len(indices), _QUERY_BLOCK)
    for term in scorer.terms:
        sums = [term.gallery.take(indices[low : low + _QUERY_BLOCK]).sum(axis=0, dtype=np.float64) for low in starts]
        mean = np.sum(sums, axis=0) / len(indices)
        of_mean += term.weight * float(mean @ mean)
        for low in starts:
            rows = term.gallery.take(indices[low : low + _QUERY_BLOCK]).astype(np.float64)
            squared[low : low + _QUERY_BLOCK] += term.weight * np.einsum("md,md->m", rows, rows)
            along[low : low + _QUERY_BLOCK] += term.weight * (rows @ mean)
    # If all images are alike, only rounding errors remain after centering.
    centered = np.maximum(squared - 2 * along + of_mean, 1e-6 * np.maximum(squared, 1e-30))
    return along - of_mean / 2, np.sqrt(centered)
