"""Rank images of a map in a store: search reduced vectors, then rescore the candidates by their full rows.

    y(q) → collection.nearest      at least 100 images
    full rows → Ψ, b → scores      bit-equal to a map in a folder; ties to the smaller id
    moments                        mean and spread of all scores of the row, for z-scores
    patches, confidence            as for a map in a folder

`CandidateScores` takes the mean score of an image from the moments, and its best score from a search with the image's
vector. An answer costs a search and a read, and the same again for its confidence. Each round of reranking reads its
patches at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfa.core.tokens import Tokens
from tfa.errors import BadMap
from tfa.maps.answer import Ranking
from tfa.maps.confidence import NEAREST, score_pairs
from tfa.maps.store.rows import SpaceRows, parse_record, read_ranks
from tfa.maps.store.versions import MapView, Version
from tfa.method.evidence import z_scores
from tfa.method.scorer import Scorer
from tfa.search.gallery import DAMAGED, QueryVectors, as_multiplied, direct_sum, top_k
from tfa.search.store import NO_ID, Where
from tfa.types import ImageRecord

_REMEMBERED = 100_000  # images whose mean and best scores are cached


@dataclass(frozen=True)
class CandidateImages:
    """Images by ascending id, and the head over their rows."""

    ids: np.ndarray
    records: Sequence[ImageRecord]
    scorer: Scorer

    def __len__(self) -> int:
        return len(self.ids)


def _fetch_candidates(version: Version, ids: np.ndarray) -> CandidateImages:
    """Read the images of these ids that exist, in one request."""
    entries = version.collection.fetch(np.unique(ids))
    order = np.argsort(entries.ids, kind="stable")
    head = version.head.stored.scorer
    rows = SpaceRows.of_bytes([entries.full[i] for i in order], read_ranks(head))
    records = [parse_record(int(entries.ids[i]), entries.payload[i]) for i in order]
    return CandidateImages(entries.ids[order], records, rows.scorer(head))


class ScoreCache:
    """Cached mean and best scores of images in one state of a collection; an edit changes both."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scores: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def get(self, ids: Sequence[int]) -> dict[int, tuple[float, float]]:
        with self._lock:
            return {one: self._scores[one] for one in ids if one in self._scores}

    def keep(self, scores: Mapping[int, tuple[float, float]]) -> None:
        with self._lock:
            self._scores.update(scores)
            while len(self._scores) > _REMEMBERED:
                self._scores.popitem(last=False)


class CandidateScores:
    """Scores between candidates, by their indices; see `ImageScores`."""

    def __init__(self, version: Version, candidates: CandidateImages, cache: ScoreCache) -> None:
        self.version, self.candidates, self.cache = version, candidates, cache

    def between(self, images: np.ndarray, others: np.ndarray) -> np.ndarray:
        return score_pairs(self.candidates.scorer, images, self.candidates.scorer, others)

    def mean_and_best(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ids = self.candidates.ids[images].tolist()
        known = self.cache.get(ids)
        unknown = np.array([i for i, own in zip(images.tolist(), ids, strict=True) if own not in known], np.int64)
        if len(unknown):
            fresh = self._look(np.unique(unknown))
            self.cache.keep(fresh)
            known |= fresh
        mean, best = np.array([known[own] for own in ids]).T
        return mean, best

    def _look(self, images: np.ndarray) -> dict[int, tuple[float, float]]:
        version, scorer, records = self.version, self.candidates.scorer, self.candidates.records
        vectors = scorer.image_vectors(images)
        queries = _reduce_queries(version, vectors)
        nearest, _ = version.collection.nearest(queries.astype(np.float32), NEAREST)
        beside = _fetch_candidates(version, nearest[nearest != NO_ID])
        scores = beside.scorer.rows.scores(vectors) - beside.scorer.bias
        own = np.array([score_pairs(scorer, one, scorer, one)[0, 0] for one in images[:, None]])
        # Without the bias axis, the scores of a query have no biases.
        mean, _ = version.moments.mean_and_spread(queries - version.reduction.bias_axis)
        count, digests, found = version.moments.count, [record.digest for record in beside.records], {}
        for row, image in enumerate(images.tolist()):
            near = np.isin(beside.ids, nearest[row])
            other = near & np.array([digest != records[image].digest for digest in digests], bool)
            best = scores[row, other].max() if other.any() else own[row]  # only duplicates were found
            mean_of_others = (mean[row] * count - own[row]) / max(count - 1, 1)
            found[int(self.candidates.ids[image])] = (float(mean_of_others), float(best))
        return found


def _reduce_queries(version: Version, vectors: QueryVectors) -> np.ndarray:
    """Return y(q) `(q, dims)` as float64, from queries rounded as in products with quantized rows.

    The z-scores then equal those of a map in a folder.
    """
    pairs = zip(vectors.terms, version.head.stored.scorer.terms, strict=True)
    terms = [as_multiplied(features, term.gallery.chunks[0]) for features, term in pairs]
    return version.reduction.of_queries_in_double(direct_sum(vectors.weights, terms))


_PHOTOS_AT_ONCE = 16  # photos searched at a time, which limits the candidate rows in memory
_RESCORED = 100  # minimum number of images that are rescored


def rank_in_store(
    view: MapView, version: Version, tokens: Tokens, width: int, where: Where | None, cache: ScoreCache
) -> Iterator[Ranking]:
    """Rank the top `width` images of each photo that pass the filter; photos without any are left out."""
    for start in range(0, len(tokens), _PHOTOS_AT_ONCE):
        block = tokens.select(slice(start, min(start + _PHOTOS_AT_ONCE, len(tokens))))
        for ranking in _rank_block(view, version, block, width, where, cache):
            yield replace(ranking, photos=ranking.photos + start)


def _rank_block(
    view: MapView, version: Version, tokens: Tokens, width: int, where: Where | None, cache: ScoreCache
) -> Iterator[Ranking]:
    scorer = version.head.stored.scorer
    try:
        vectors = scorer.query_vectors(tokens)
    except np.linalg.LinAlgError:  # an eigendecomposition of NaN does not converge
        raise BadMap(DAMAGED) from None
    queries, gone = _reduce_queries(version, vectors), view.header.removing
    ids, _ = version.collection.nearest(queries.astype(np.float32), max(width, _RESCORED) + len(gone), where)
    ids = np.where(np.isin(ids, list(gone)), NO_ID, ids) if gone else ids
    candidates = _fetch_candidates(version, ids[ids != NO_ID])
    may = np.zeros((len(tokens), len(candidates)), bool)  # an answer must not depend on other photos of the block
    for row in range(len(tokens)):
        may[row, np.searchsorted(candidates.ids, np.intersect1d(ids[row], candidates.ids))] = True
    scores = np.where(may, candidates.scorer.rows.scores(vectors), -np.inf)
    if np.isnan(scores).any():
        raise BadMap(DAMAGED)
    mean, spread = version.moments.mean_and_spread(queries)
    counts = may.sum(axis=1)
    for count in np.unique(counts[counts > 0]):  # usually a single count
        rows = np.flatnonzero(counts == count)
        columns, best = top_k(scores[rows], min(int(count), width))
        z = z_scores(best.astype(np.float64), mean[rows, None] + version.reduction.mean_bias, spread[rows, None])
        photos = QueryVectors(tuple(term[rows] for term in vectors.terms), vectors.weights)
        yield Ranking(
            photos=rows, head=version.head.name, images=candidates.records, columns=columns, scores=best,
            standardized=z, vectors=[photos], scorer=candidates.scorer, rows=np.arange(len(candidates)),
            patch_rows=candidates.ids, image_scores=CandidateScores(version, candidates, cache), ids=candidates.ids,
        )  # fmt: skip
