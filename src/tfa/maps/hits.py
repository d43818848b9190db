"""Turns the tokens of photos into hits: a search ranks the images, verification reorders the first of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tfa.core.tokens import Tokens
from tfa.errors import BadMap, BadSpec
from tfa.maps.answer import AnsweringMap, answer_photos, make_empty_answer, make_where
from tfa.maps.confidence import ALTERNATIVES, compute_confidence
from tfa.maps.database_scores import DatabaseScores
from tfa.maps.fused_place import REACH
from tfa.maps.shift import DomainShiftMonitor
from tfa.maps.state import NamedHead
from tfa.maps.stored_head import StoredHead
from tfa.method.evidence import z_scores
from tfa.search.exact import DAMAGED, ExactSearch, QueryVectors, check_k
from tfa.search.reduced import ReducedSearch
from tfa.search.store import Where
from tfa.types import Answer, Candidates, ImageRecord, QueryOptions
from tfa.verification.admission import PairEvidence
from tfa.verification.patches import CompactTokens, PhotoPairs
from tfa.verification.reranking import Compared, Comparison, Reranked, count_candidates, reorder

_PHOTOS_PER_SEARCH = 64  # photos searched at a time, however many are given


@dataclass(frozen=True)
class SearchableHead:
    """A head, the images that answer, the gallery rows they stand in, and what searches them."""

    name: str
    stored: StoredHead
    images: Sequence[ImageRecord]
    rows: np.ndarray
    ids: np.ndarray  # of the images: they grow along the map
    searcher: ExactSearch

    @classmethod
    def of(cls, head: NamedHead, images: Sequence[ImageRecord], rows: np.ndarray) -> SearchableHead:
        """Search the rows where they lie, by the reduced ones if the head has any."""
        ids = np.array([image.id for image in images], np.int64)
        stored, galleries = head.stored, head.stored.scorer.rows
        if stored.reduced is None:
            return cls(head.name, stored, images, rows, ids, ExactSearch(galleries, ids, rows))
        return cls(head.name, stored, images, rows, ids, ReducedSearch(galleries, ids, rows, stored.reduced))

    def answer(
        self,
        tokens: Tokens,
        options: QueryOptions,
        candidates: Candidates,
        compact: CompactTokens | None,
        shift_monitor: DomainShiftMonitor | None = None,
        reach: float = REACH,
    ) -> list[Answer]:
        """Find the k best images for each query; rerank the best `candidates` by the compact tokens, if there are any.

        `shift_monitor` observes the photos. Only images that the options admit may answer; z-scores are still taken
        over all images. `reach` is how far apart images of one place stand, in meters.
        """
        check_k(options.k)
        admitted = self._admitted(make_where(options))
        place_map = AnsweringMap(self.images, self.image_scores, reach, self.name)
        if not len(tokens) or not (len(self.images) if admitted is None else admitted.any()):
            return [make_empty_answer(place_map.calibration) for _ in range(len(tokens))]
        pairs = pair_photos(compact, tokens, self.stored.scorer.duplicates, self.rows) if candidates else None
        ranked, columns, scores, vectors = self._ranked(tokens, options.k, candidates, pairs, admitted)
        if shift_monitor is not None:
            shift_monitor.observe(self.stored.scorer, vectors, ranked, self.rows)
        by_image = [dict(zip(*row, strict=True)) for row in zip(columns.tolist(), scores.tolist(), strict=True)]
        return answer_photos(place_map, ranked, by_image, options.k)

    def trust(
        self, tokens: Tokens, candidates: Candidates, evidence: PairEvidence | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Confidence `q` of the best answers, and whether they are sure `q`, where evidence is known already.

        It is that of a photo, by its number, with images by their rows in the gallery.
        """
        ranked, *_ = self._ranked(
            tokens, 1, candidates, None if evidence is None else _PrecomputedEvidence(evidence, self.rows)
        )
        confidence, sure = compute_confidence(ranked, self.image_scores, 1)
        return confidence[:, 0], sure[:, 0]

    def _ranked(
        self,
        tokens: Tokens,
        k: int,
        candidates: Candidates,
        pairs: Comparison | None,
        admitted: np.ndarray | None = None,
    ) -> tuple[Reranked, np.ndarray, np.ndarray, list[QueryVectors]]:
        """The best images, verified; their columns `q c` and scores `q c` before that; and the photos as compared."""
        width, starts = max(k, count_candidates(candidates), ALTERNATIVES), range(0, len(tokens), _PHOTOS_PER_SEARCH)
        query_vectors = self.stored.scorer.query_vectors
        try:
            vectors = [query_vectors(tokens.select(slice(start, start + _PHOTOS_PER_SEARCH))) for start in starts]
        except np.linalg.LinAlgError:  # an eigendecomposition of what are no numbers does not converge
            raise BadMap(DAMAGED) from None
        results = [self._search(block, width, admitted) for block in vectors]
        columns, scores, z = (np.concatenate(arrays) for arrays in zip(*results, strict=True))
        return reorder(columns, z, width, candidates, pairs), columns, scores, vectors

    @cached_property
    def image_scores(self) -> DatabaseScores:
        """What the images score with each other."""
        return DatabaseScores(self.stored.scorer, self.rows, self.ids, self.searcher)

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
        return np.array([where.admits(_filter_payload(image)) for image in self.images], bool)


def _filter_payload(image: ImageRecord) -> dict[str, Any]:
    """Return the values of an image that a filter looks at."""
    return {"session": image.session, "position": None if image.position is None else image.position.to_dict()}


@dataclass(frozen=True)
class _PrecomputedEvidence:
    """A `Comparison` that reads precomputed evidence; matches are not counted."""

    evidence: PairEvidence
    rows: np.ndarray

    def with_queries(self, rows: Sequence[int], images: Sequence[np.ndarray]) -> list[Compared]:
        found = [self.evidence(row, self.rows[own]) for row, own in zip(rows, images, strict=True)]
        return [Compared(one, np.zeros(len(one), np.int64)) for one in found]


def pair_photos(
    compact: CompactTokens | None, tokens: Tokens, duplicates: np.ndarray | None, rows: np.ndarray
) -> PhotoPairs | None:
    """Pair photos with the images in these rows of a map; None if their patches cannot be compared."""
    grid = None if compact is None else compact.resolve_grid(tokens)
    if compact is None or grid is None:
        return None
    # Photos of one content are compared as one, so that the first of them wins here too.
    return PhotoPairs(compact, tokens, grid, rows if duplicates is None else duplicates[rows])
