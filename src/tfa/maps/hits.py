"""From the tokens of photos to hits: a search ranks the images, verification reorders the first of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tfa.base.config import Candidates
from tfa.base.tokens import Tokens
from tfa.errors import BadMap, BadSpec
from tfa.maps.confidence import FIRST, confidence_of
from tfa.maps.fused_place import REACH, place_of
from tfa.maps.likeness import Likeness
from tfa.maps.own_scores import OwnScores
from tfa.maps.records import Hit, Hits, ImageRecord
from tfa.maps.stored_head import StoredHead
from tfa.method.evidence.rows import z_scores
from tfa.search.exact import DAMAGED, ExactSearch, QueryVectors, check_k
from tfa.search.reduced import ReducedSearch
from tfa.search.store import Where
from tfa.verification.admission import PairEvidence
from tfa.verification.patch_store import CompactTokens, PhotoPairs
from tfa.verification.reranking import UNVERIFIED, Compared, Comparison, Verified, most_candidates, reorder

AT_ONCE = 64  # photos searched at a time, however many are given


@dataclass(frozen=True)
class SearchableHead:
    """A head, the images that answer, the gallery rows they stand in, and what searches them."""

    stored: StoredHead
    images: Sequence[ImageRecord]
    rows: np.ndarray
    ids: np.ndarray  # of the images: they grow along the map
    searcher: ExactSearch

    @classmethod
    def of(cls, stored: StoredHead, images: Sequence[ImageRecord], rows: np.ndarray) -> SearchableHead:
        """Search the rows where they lie, by the reduced ones if the head has any."""
        ids = np.array([image.id for image in images], np.int64)
        galleries = stored.scorer.rows
        if stored.reduced is None:
            return cls(stored, images, rows, ids, ExactSearch(galleries, ids, rows))
        return cls(stored, images, rows, ids, ReducedSearch(galleries, ids, rows, stored.reduced))

    def hits(
        self,
        tokens: Tokens,
        k: int,
        candidates: Candidates,
        compact: CompactTokens | None,
        likeness: Likeness | None = None,
        where: Where | None = None,
        reach: float = REACH,
    ) -> list[Hits]:
        """The k best images for each query; the best `candidates` are verified by the compact tokens, if there are.

        `likeness` looks at the photos, too. Only images that `where` admits may answer, if it is given; what scores
        are like is still that of all. `reach` is how far apart images of one place stand, in metres.
        """
        check_k(k)
        admitted = self._admitted(where)
        if not len(tokens) or not (len(self.images) if admitted is None else admitted.any()):
            return [Hits() for _ in range(len(tokens))]
        pairs = photo_pairs(compact, tokens, self.stored.scorer.duplicates, self.rows) if candidates else None
        ranked, columns, scores, vectors = self._ranked(tokens, k, candidates, pairs, admitted)
        if likeness is not None:
            likeness.look(self.stored.scorer, vectors, ranked, self.rows)
        confidence, sure = confidence_of(ranked, self.own_scores, k)
        if not np.isfinite(confidence).all():
            raise BadMap(DAMAGED)
        hits = []
        for row in range(len(tokens)):
            score = dict(zip(columns[row].tolist(), scores[row].tolist(), strict=True))
            best = zip(
                ranked.indices[row, :k].tolist(),
                confidence[row].tolist(),
                ranked.matches[row, :k].tolist(),
                sure[row].tolist(),
                strict=True,
            )
            own_hits = (hit_of(self.images[i], score[i], trust, matches, own) for i, trust, matches, own in best)
            hits.append(Hits(own_hits, place_of(ranked, row, self.images, reach)))
        return hits

    def trust(
        self, tokens: Tokens, candidates: Candidates, evidence: PairEvidence | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Confidence `q` of the best answers, and whether they are sure `q`, where evidence is known already.

        It is that of a photo, by its number, with images by their rows in the gallery.
        """
        ranked, *_ = self._ranked(tokens, 1, candidates, None if evidence is None else _Known(evidence, self.rows))
        confidence, sure = confidence_of(ranked, self.own_scores, 1)
        return confidence[:, 0], sure[:, 0]

    def _ranked(
        self,
        tokens: Tokens,
        k: int,
        candidates: Candidates,
        pairs: Comparison | None,
        admitted: np.ndarray | None = None,
    ) -> tuple[Verified, np.ndarray, np.ndarray, list[QueryVectors]]:
        """The best images, verified; their columns `q c` and scores `q c` before that; and the photos as compared."""
        width, starts = max(k, most_candidates(candidates), FIRST), range(0, len(tokens), AT_ONCE)
        query_vectors = self.stored.scorer.query_vectors
        try:
            vectors = [query_vectors(tokens.select(slice(start, start + AT_ONCE))) for start in starts]
        except np.linalg.LinAlgError:  # an eigendecomposition of what are no numbers does not converge
            raise BadMap(DAMAGED) from None
        results = [self._search(block, width, admitted) for block in vectors]
        columns, scores, z = (np.concatenate(arrays) for arrays in zip(*results, strict=True))
        return reorder(columns, z, width, candidates, pairs), columns, scores, vectors

    @cached_property
    def own_scores(self) -> OwnScores:
        """What the images score with each other."""
        return OwnScores(self.stored.scorer, self.rows, self.ids, self.searcher)

    def _search(
        self, vectors: QueryVectors, width: int, admitted: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The best images of each query `q c`: which they are, their scores and their z-scores."""
        result = self.searcher.search(vectors, width if admitted is None else len(self.images))
        columns, scores = np.searchsorted(self.ids, result.ids), result.scores
        if admitted is not None:  # as many in every row: all are there
            kept = admitted[columns]
            columns, scores = (table[kept].reshape(len(table), -1)[:, :width] for table in (columns, scores))
        z = z_scores(scores.astype(np.float64), result.mean[:, None], result.spread[:, None])
        return columns, scores, z

    def _admitted(self, where: Where | None) -> np.ndarray | None:
        """Which images may answer, bool `m`; None if all."""
        if where is None:
            return None
        if where.sessions and all(image.session is None for image in self.images):
            raise BadSpec(
                f"there is no session {where.sessions[0]!r}: no image of the map has one; "
                "photos get theirs from tfa add --session, or from tfa merge"
            )
        return np.array([where.admits(image.to_dict()) for image in self.images], bool)


@dataclass(frozen=True)
class _Known:
    """A `Comparison` of photos whose evidence is known; matches are not counted."""

    evidence: PairEvidence
    rows: np.ndarray

    def with_queries(self, rows: Sequence[int], images: Sequence[np.ndarray]) -> list[Compared]:
        found = [self.evidence(row, self.rows[own]) for row, own in zip(rows, images, strict=True)]
        return [Compared(one, np.zeros(len(one), np.int64)) for one in found]


def photo_pairs(
    compact: CompactTokens | None, tokens: Tokens, duplicates: np.ndarray | None, rows: np.ndarray
) -> PhotoPairs | None:
    """Photos beside the images that stand in these rows of a map; None if their patches cannot be compared."""
    grid = None if compact is None else compact.grid_of(tokens)
    if compact is None or grid is None:
        return None
    # Photos of one content are compared as one, so that the first of them wins here too.
    return PhotoPairs(compact, tokens, grid, rows if duplicates is None else duplicates[rows])


def hit_of(image: ImageRecord, score: float, confidence: float, matches: int | None, sure: bool) -> Hit:
    matches = None if matches == UNVERIFIED else matches
    return Hit(image.id, image.path, score, confidence, image.position, matches, sure)
