"""From the tokens of photos to hits: an engine ranks the images, verification reorders the first of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfa.base.tokens import Tokens
from tfa.maps.confidence import confidence_of
from tfa.maps.records import Hit, ImageRecord
from tfa.maps.stored_head import StoredHead
from tfa.maps.verification import Verifier
from tfa.method.evidence.rows import z_scores
from tfa.search.engine import Engine, QueryVectors, SearchResult, checked_k, direct_sum
from tfa.search.exact import ExactEngine
from tfa.verification.reranking import UNVERIFIED, reorder

AT_ONCE = 64  # photos searched at a time, however many are given
SAMPLED = 1000  # images whose scores stand for all, where an engine knows neither their mean nor their spread


def engine_over(kind: type[Engine], stored: StoredHead, images: Sequence[ImageRecord], rows: np.ndarray) -> Engine:
    """An engine of the images, which stand in these gallery rows. Our own search them where they lie."""
    ids = np.array([image.id for image in images], np.int64)
    galleries = stored.scorer.rows
    if issubclass(kind, ExactEngine):
        return kind(galleries, ids, rows)
    # Copies of a photo tie to the last bit: they share the row of the first.
    rows = rows if galleries.duplicates is None else galleries.duplicates[rows]
    vectors = direct_sum(galleries.weights, [gallery.take(rows) for gallery in galleries.galleries])
    payload = [image.to_dict() for image in images]
    return kind.create(vectors, galleries.bias[rows].astype(np.float32), ids, payload)


def hits_of(
    stored: StoredHead,
    engine: Engine,
    images: Sequence[ImageRecord],
    rows: np.ndarray,
    tokens: Tokens,
    k: int,
    verifier: Verifier | None = None,
) -> list[list[Hit]]:
    """The k best of `images`, which stand in these gallery rows, for each query; verified where wanted."""
    checked_k(k)
    if not len(images):
        return [[] for _ in range(len(tokens))]
    hits: list[list[Hit]] = []
    for start in range(0, len(tokens), AT_ONCE):
        hits += _hits(stored, engine, images, rows, tokens.select(slice(start, start + AT_ONCE)), k, verifier)
    return hits


def _hits(
    stored: StoredHead,
    engine: Engine,
    images: Sequence[ImageRecord],
    rows: np.ndarray,
    tokens: Tokens,
    k: int,
    verifier: Verifier | None,
) -> list[list[Hit]]:
    candidates = 0 if verifier is None else verifier.candidates
    vectors = stored.scorer.query_vectors(tokens)
    result = engine.search(vectors, max(k, candidates))
    mean, spread = _mean_and_spread(stored, result, vectors, rows)
    z = z_scores(result.scores.astype(np.float64), mean[:, None], spread[:, None])
    # Photos of one content are compared as one, so that the first of them wins here too.
    same = stored.scorer.duplicates
    pairs = None if verifier is None else verifier.pairs(tokens, rows if same is None else same[rows])
    columns = np.searchsorted(np.array([image.id for image in images]), result.ids)  # ids grow along the map
    ranked = reorder(columns, z, k, candidates, pairs)
    confidence = confidence_of(ranked, stored.peaks)
    hits = []
    for row in range(len(tokens)):
        score = dict(zip(columns[row].tolist(), result.scores[row].tolist(), strict=True))
        best = zip(ranked.indices[row].tolist(), confidence[row].tolist(), ranked.matches[row].tolist(), strict=True)
        hits.append([_hit(images[i], score[i], sure, matches) for i, sure, matches in best])
    return hits


def _mean_and_spread(
    stored: StoredHead, result: SearchResult, vectors: QueryVectors, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of each query's scores with all images; where the engine does not know, of evenly spaced ones (ours)."""
    if result.mean is not None and result.spread is not None:
        return result.mean, result.spread
    sample = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), SAMPLED)).astype(np.int64))]
    galleries = stored.scorer.rows
    scores = np.zeros((len(vectors), len(sample))) + galleries.bias[sample]
    for weight, gallery, features in zip(galleries.weights, galleries.galleries, vectors.terms, strict=True):
        scores += weight * (features.astype(np.float64) @ gallery.take(sample).astype(np.float64).T)
    return scores.mean(axis=1), scores.std(axis=1)


def _hit(image: ImageRecord, score: float, confidence: float, matches: int) -> Hit:
    return Hit(image.id, image.path, score, confidence, image.position, None if matches == UNVERIFIED else matches)
