"""Answers of a map in a store: the collection finds candidates, their own rows score them again, the rest is as ever.

    y(q) → collection.nearest      100 images at least
    full rows → Ψ, b → scores      as a map in a folder scores them, to the last bit; ties to the smaller id
    moments                        mean and spread of all scores of the row: its z-scores
    patches, confidence            as ever

An answer costs a search and a read, and as much again for its confidence; patches come in one read a round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfa.base.config import Candidates
from tfa.base.tokens import Tokens
from tfa.errors import BadMap
from tfa.maps.confidence import FIRST, confidence_of
from tfa.maps.fused_place import REACH, place_of
from tfa.maps.hits import hit_of
from tfa.maps.likeness import Likeness
from tfa.maps.records import Hits
from tfa.maps.store.candidates import CandidateScores, Found, KnownScores, fetched, query_of
from tfa.maps.store.versions import Version, View
from tfa.method.evidence.rows import z_scores
from tfa.search.exact import DAMAGED, QueryVectors, check_k
from tfa.search.gallery import top_k
from tfa.search.store import NO_ID, Where
from tfa.verification.patch_store import PhotoPairs
from tfa.verification.reranking import most_candidates, reorder

AT_ONCE = 16  # photos searched at a time: the rows of all their candidates are in memory together
RESCORED = 100  # images that are scored again at least


@dataclass(frozen=True)
class Asked:
    """How photos are asked, beside themselves."""

    k: int
    candidates: Candidates
    where: Where | None = None

    @property
    def width(self) -> int:
        """Images that are ranked: to be verified, or to be compared with for confidence."""
        return max(self.k, most_candidates(self.candidates), FIRST)


def hits_of(
    view: View, version: Version, tokens: Tokens, asked: Asked, known: KnownScores, likeness: Likeness | None = None
) -> list[Hits]:
    """The k best images for each photo; none where nobody passes the filter."""
    check_k(asked.k)
    hits: list[Hits] = []
    for start in range(0, len(tokens), AT_ONCE):
        block = tokens.select(slice(start, min(start + AT_ONCE, len(tokens))))
        hits += _block(view, version, block, asked, known, likeness)
    return hits


def _block(
    view: View, version: Version, tokens: Tokens, asked: Asked, known: KnownScores, likeness: Likeness | None
) -> list[Hits]:
    scorer = version.head.stored.scorer
    try:
        vectors = scorer.query_vectors(tokens)
    except np.linalg.LinAlgError:  # an eigendecomposition of what are no numbers does not converge
        raise BadMap(DAMAGED) from None
    queries, gone = query_of(version, vectors), view.header.removing
    ids, _ = version.collection.nearest(queries.astype(np.float32), max(asked.width, RESCORED) + len(gone), asked.where)
    ids = np.where(np.isin(ids, list(gone)), NO_ID, ids) if gone else ids
    found = fetched(version, ids[ids != NO_ID])
    may = np.zeros((len(tokens), len(found)), bool)  # an answer does not depend on the photos beside it
    for row in range(len(tokens)):
        may[row, np.searchsorted(found.ids, np.intersect1d(ids[row], found.ids))] = True
    scores = np.where(may, found.scorer.rows.scores(vectors), -np.inf)
    if np.isnan(scores).any():
        raise BadMap(DAMAGED)
    mean, spread = version.moments.mean_and_spread(queries)
    counts = may.sum(axis=1)
    hits = [Hits() for _ in range(len(tokens))]
    for count in np.unique(counts[counts > 0]):  # as a rule all are as many
        rows = np.flatnonzero(counts == count)
        columns, best = top_k(scores[rows], min(int(count), asked.width))
        z = z_scores(best.astype(np.float64), mean[rows, None] + version.reduction.mean_bias, spread[rows, None])
        photos = QueryVectors(tuple(term[rows] for term in vectors.terms), vectors.weights)
        ranked = _Ranked(tokens.select(rows), photos, found, columns, best, z)
        answered = _verified(view, ranked, asked, CandidateScores(version, found, known), likeness)
        for row, own in zip(rows.tolist(), answered, strict=True):
            hits[row] = own
    return hits


@dataclass(frozen=True)
class _Ranked:
    """Photos `q`, and the images found for them `q c`, best first."""

    tokens: Tokens
    photos: QueryVectors
    found: Found
    columns: np.ndarray  # in `found`
    scores: np.ndarray
    standardised: np.ndarray


def _verified(view: View, ranked: _Ranked, asked: Asked, own: CandidateScores, likeness: Likeness | None) -> list[Hits]:
    """The hits, verified, with their confidence."""
    found, tokens = ranked.found, ranked.tokens
    patches = view.patches if asked.candidates else None
    grid = None if patches is None else patches.grid_of(tokens)
    pairs = None if patches is None or grid is None else PhotoPairs(patches, tokens, grid, found.ids)
    verified = reorder(ranked.columns, ranked.standardised, asked.width, asked.candidates, pairs)
    if likeness is not None:
        likeness.look(found.scorer, [ranked.photos], verified, np.arange(len(found)), found.ids)
    confidence, sure = confidence_of(verified, own, asked.k)
    if not np.isfinite(confidence).all():
        raise BadMap(DAMAGED)
    hits = []
    for row in range(len(tokens)):
        score = dict(zip(ranked.columns[row].tolist(), ranked.scores[row].tolist(), strict=True))
        first = verified.indices[row, : asked.k].tolist()
        told = zip(first, confidence[row].tolist(), verified.matches[row].tolist(), sure[row].tolist(), strict=False)
        own_hits = (hit_of(found.records[i], score[i], trust, matches, is_sure) for i, trust, matches, is_sure in told)
        hits.append(Hits(own_hits, place_of(verified, row, found.records, REACH)))
    return hits
