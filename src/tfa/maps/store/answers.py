"""Answers of a map in a store: the collection finds candidates, their rows score them again, then as for a folder.

    y(q) → collection.nearest      100 images at least
    full rows → Ψ, b → scores      as a map in a folder scores them, to the last bit; ties to the smaller id
    moments                        mean and spread of all scores of the row: its z-scores
    patches, confidence            as for a map in a folder

`CandidateScores` is `maps.database_scores` for a map in a store: its mean comes from moments, its best from a search
with the image's own vector. An answer costs a search and a read, and as much again for its confidence; patches
come in one read a round.
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
from tfa.maps.confidence import NEAREST
from tfa.maps.store.rows import SpaceRows, parse_record, read_ranks
from tfa.maps.store.versions import MapView, Version
from tfa.method.evidence import z_scores
from tfa.method.scorer import Scorer
from tfa.search.gallery import DAMAGED, QueryVectors, as_multiplied, direct_sum, top_k
from tfa.search.store import NO_ID, Where
from tfa.types import ImageRecord

# --- candidates ----------------------------------------------------------------------------------------------------


_REMEMBERED = 100_000  # images whose mean and best scores are kept


@dataclass(frozen=True)
class CandidateImages:
    """Images by growing id, and the head over their rows."""

    ids: np.ndarray
    records: Sequence[ImageRecord]
    scorer: Scorer

    def __len__(self) -> int:
        return len(self.ids)


def _fetch_candidates(version: Version, ids: np.ndarray) -> CandidateImages:
    """Those of the ids that are there, read in one request."""
    entries = version.collection.fetch(np.unique(ids))
    order = np.argsort(entries.ids, kind="stable")
    head = version.head.stored.scorer
    rows = SpaceRows.of_bytes([entries.full[i] for i in order], read_ranks(head))
    records = [parse_record(int(entries.ids[i]), entries.payload[i]) for i in order]
    return CandidateImages(entries.ids[order], records, rows.scorer(head))


class ScoreCache:
    """Mean and best score of images that were looked at, in one collection as it is: an edit changes both."""

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
    """What found images score with each other, by their numbers in `found`."""

    def __init__(self, version: Version, candidates: CandidateImages, cache: ScoreCache) -> None:
        self.version, self.candidates, self.cache = version, candidates, cache

    def between(self, images: np.ndarray, others: np.ndarray) -> np.ndarray:
        """S(a, c) `a c`, float64."""
        return _score_pairs(self.candidates.scorer, images, self.candidates.scorer, others)

    def mean_and_best(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `OwnScores.mean_and_best`."""
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
        own = np.array([_score_pairs(scorer, one, scorer, one)[0, 0] for one in images[:, None]])
        # A query without the bias' axis has scores without biases.
        mean, _ = version.moments.mean_and_spread(queries - version.reduction.bias_axis)
        count, digests, found = version.moments.count, [record.digest for record in beside.records], {}
        for row, image in enumerate(images.tolist()):
            near = np.isin(beside.ids, nearest[row])
            other = near & np.array([digest != records[image].digest for digest in digests], bool)
            best = scores[row, other].max() if other.any() else own[row]  # all that was found are copies
            mean_of_others = (mean[row] * count - own[row]) / max(count - 1, 1)
            found[int(self.candidates.ids[image])] = (float(mean_of_others), float(best))
        return found


def _reduce_queries(version: Version, vectors: QueryVectors) -> np.ndarray:
    """y(q) `q dims`, float64, of queries as their products with rows of integers see them: z-scores are then those
    of a map in a folder."""
    pairs = zip(vectors.terms, version.head.stored.scorer.terms, strict=True)
    terms = [as_multiplied(features, term.gallery.chunks[0]) for features, term in pairs]
    return version.reduction.of_queries_in_double(direct_sum(vectors.weights, terms))


def _score_pairs(scorer: Scorer, rows: np.ndarray, other: Scorer, others: np.ndarray) -> np.ndarray:
    """Scores `a c`, float64, of images under one head, without centring and bias (`database_scores`)."""
    vectors, galleries = scorer.image_vectors(rows), other.rows
    total = np.zeros((len(rows), len(others)))
    for weight, gallery, features in zip(galleries.weights, galleries.galleries, vectors.terms, strict=True):
        total += weight * (features.astype(np.float64) @ gallery.take(others).astype(np.float64).T)
    return total


# --- answers -------------------------------------------------------------------------------------------------------


_PHOTOS_AT_ONCE = 16  # photos searched at a time: the rows of all their candidates are in memory together
_RESCORED = 100  # images that are scored again at least


def rank_in_store(
    view: MapView, version: Version, tokens: Tokens, width: int, where: Where | None, cache: ScoreCache
) -> Iterator[Ranking]:
    """Rank the best `width` images of each photo that pass the filter; a photo for which none does is left out."""
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
    except np.linalg.LinAlgError:  # an eigendecomposition of what are no numbers does not converge
        raise BadMap(DAMAGED) from None
    queries, gone = _reduce_queries(version, vectors), view.header.removing
    ids, _ = version.collection.nearest(queries.astype(np.float32), max(width, _RESCORED) + len(gone), where)
    ids = np.where(np.isin(ids, list(gone)), NO_ID, ids) if gone else ids
    candidates = _fetch_candidates(version, ids[ids != NO_ID])
    may = np.zeros((len(tokens), len(candidates)), bool)  # an answer does not depend on the photos beside it
    for row in range(len(tokens)):
        may[row, np.searchsorted(candidates.ids, np.intersect1d(ids[row], candidates.ids))] = True
    scores = np.where(may, candidates.scorer.rows.scores(vectors), -np.inf)
    if np.isnan(scores).any():
        raise BadMap(DAMAGED)
    mean, spread = version.moments.mean_and_spread(queries)
    counts = may.sum(axis=1)
    for count in np.unique(counts[counts > 0]):  # as a rule all are as many
        rows = np.flatnonzero(counts == count)
        columns, best = top_k(scores[rows], min(int(count), width))
        z = z_scores(best.astype(np.float64), mean[rows, None] + version.reduction.mean_bias, spread[rows, None])
        photos = QueryVectors(tuple(term[rows] for term in vectors.terms), vectors.weights)
        yield Ranking(
            photos=rows, head=version.head.name, images=candidates.records, columns=columns, scores=best,
            standardised=z, vectors=[photos], scorer=candidates.scorer, rows=np.arange(len(candidates)),
            patch_rows=candidates.ids, image_scores=CandidateScores(version, candidates, cache), ids=candidates.ids,
        )  # fmt: skip
