"""Make answers: ranking → reranking → confidence → position estimate → `Answer`.

Folders and stores rank images in different ways (`Ranking`), and a tracker reranks them itself (`Reranked`). The steps
after that are shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tfa.core.tokens import Tokens
from tfa.errors import BadMap, BadSpec, BadTokens
from tfa.maps.confidence import (
    ALTERNATIVES,
    DomainShiftMonitor,
    ImageScores,
    Located,
    compute_confidence,
    judge_answer,
    locate_photo,
)
from tfa.maps.state import DATABASE, MapState
from tfa.method.scorer import Scorer
from tfa.search.gallery import DAMAGED, QueryVectors, check_k
from tfa.search.store import Region, Where
from tfa.types import NO_HITS, Answer, Candidates, Hit, ImageRecord, QueryOptions, RerankSpec
from tfa.verification.patches import CompactTokens, PhotoPairs, SourcedTokens, explain_missing_grid
from tfa.verification.reranking import UNVERIFIED, Compared, Comparison, Reranked, count_candidates, reorder
from tfa.verification.usual_evidence import PairEvidence

if TYPE_CHECKING:
    from tfa.maps.storage import Snapshot


def make_where(options: QueryOptions) -> Where | None:
    """Return the image filter of a query; None if all images may answer. Raises BadSpec for a bad region."""
    if not options.sessions and options.region is None:
        return None
    return Where(options.sessions, None if options.region is None else Region(*options.region))


def resolve_candidates(
    options: QueryOptions,
    state: MapState,
    tokens: Tokens | None = None,
    compact: CompactTokens | SourcedTokens | None = None,
) -> Candidates:
    """Return how many images to rerank; 0 if reranking is off or the patch grid of `tokens` is unknown.

    `compact` replaces the compact tokens of the state, which a map in a store does not have.
    """
    compact = state.compact if compact is None else compact
    head = state.chosen(options.calibration)
    if options.candidates is not None:
        RerankSpec(candidates=options.candidates)  # raises if out of range
    if compact is None and options.rerank:
        raise BadSpec("this map stores no patches for reranking; rebuild it with --rerank (rerank=True)")
    rerank = head.verifies if options.rerank is None else options.rerank
    if compact is None or not rerank:
        return 0
    if tokens is not None and compact.resolve_grid(tokens) is None:
        if options.rerank:
            raise BadTokens(
                f"query tokens: {explain_missing_grid(tokens)}; pass it: Tokens(patches, grid=(rows, columns))"
            )
        return 0
    return options.candidates or compact.spec.candidates


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Top-ranked images of some query photos from one search; tables are `(q, c)`, best first."""

    photos: np.ndarray  # (q,): indices of the photos in the query
    head: str  # name of the head that answers
    images: Sequence[ImageRecord]  # images that `columns` refers to
    columns: np.ndarray
    scores: np.ndarray
    standardized: np.ndarray  # z-scores
    vectors: Sequence[QueryVectors]  # query vectors of the photos
    scorer: Scorer
    rows: np.ndarray  # (m,): row of each image in the scorer
    patch_rows: np.ndarray  # (m,): row of each image in the patches
    image_scores: ImageScores
    ids: np.ndarray | None = None  # (m,): stable ids, if rows change between searches


def answer_tokens(
    snapshot: Snapshot, tokens: Tokens, options: QueryOptions, shift: DomainShiftMonitor | None = None
) -> list[Answer]:
    """Answer photos by their tokens; `shift` observes them. Filters limit the answers, not the z-scores."""
    check_k(options.k)
    candidates = resolve_candidates(options, snapshot.state, tokens, snapshot.patches)
    calibration = name_calibration(snapshot.state.chosen(options.calibration).name)
    answers = [make_answer([], (None, NO_HITS), calibration=calibration) for _ in range(len(tokens))]
    for ranking in snapshot.rank(options.calibration, tokens, count_ranked(candidates, options.k), make_where(options)):
        some = tokens if len(ranking.photos) == len(tokens) else tokens.select(ranking.photos)
        pairs = pair_photos(snapshot.patches, some, ranking.patch_rows) if candidates else None
        ranked, answered = answer_ranking(ranking, candidates, pairs, options.k, snapshot.reach, calibration)
        if shift is not None:
            shift.observe(ranking.scorer, ranking.vectors, ranked, ranking.rows, ranking.ids)
        for photo, answer in zip(ranking.photos.tolist(), answered, strict=True):
            answers[photo] = answer
    return answers


def count_ranked(candidates: Candidates, k: int) -> int:
    """Return how many images a search must rank, for hits, reranking and confidence."""
    return max(k, count_candidates(candidates), ALTERNATIVES)


def answer_ranking(
    ranking: Ranking, candidates: Candidates, pairs: Comparison | None, k: int, reach: float, calibration: str | None
) -> tuple[Reranked, list[Answer]]:
    """Answer the photos of a ranking, which is `count_ranked` images wide."""
    ranked = reorder(ranking.columns, ranking.standardized, count_ranked(candidates, k), candidates, pairs)
    tables = zip(ranking.columns.tolist(), ranking.scores.tolist(), strict=True)
    scores = [dict(zip(*row, strict=True)) for row in tables]
    answering = AnsweringMap(ranking.images, ranking.image_scores, reach, calibration)
    return ranked, answer_photos(answering, ranked, scores, k)


def measure_trust(
    snapshot: Snapshot, tokens: Tokens, candidates: Candidates, evidence: PairEvidence | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return confidence `(q,)` and sure `(q,)` of the best answers, from precomputed evidence by gallery row."""
    width = count_ranked(candidates, 1)
    [ranking] = snapshot.rank(None, tokens, width, None)
    compact = snapshot.patches
    pairs = None if evidence is None or compact is None else _PrecomputedEvidence(evidence, ranking.rows, compact)
    ranked = reorder(ranking.columns, ranking.standardized, width, candidates, pairs)
    confidence, sure = compute_confidence(ranked, ranking.image_scores, 1)
    return confidence[:, 0], sure[:, 0]


@dataclass(frozen=True)
class _PrecomputedEvidence:
    """A `Comparison` that reads precomputed evidence and counts no inliers."""

    evidence: PairEvidence
    rows: np.ndarray
    compact: CompactTokens | SourcedTokens

    def with_queries(self, rows: Sequence[int], images: Sequence[np.ndarray]) -> list[Compared]:
        found = [self.evidence(row, self.rows[own]) for row, own in zip(rows, images, strict=True)]
        return [Compared(one, np.zeros(len(one), np.int64), self.compact.compaction.weight) for one in found]


def pair_photos(
    patches: CompactTokens | SourcedTokens | None, tokens: Tokens, patch_rows: np.ndarray
) -> PhotoPairs | None:
    """Pair photos with map images by their patches; None without patches or a grid."""
    grid = None if patches is None else patches.resolve_grid(tokens)
    return None if patches is None or grid is None else PhotoPairs(patches, tokens, grid, patch_rows)


def name_calibration(head: str) -> str | None:
    """Return the calibration name of a head; None for the uncalibrated head."""
    return None if head == DATABASE else head


@dataclass(frozen=True)
class AnsweringMap:
    """Map data that answers are made of, in addition to a ranking."""

    images: Sequence[ImageRecord]  # images that rankings refer to
    image_scores: ImageScores
    reach: float  # meters between images of one place
    calibration: str | None = None  # name of the calibration that answers


def answer_photos(
    place_map: AnsweringMap, ranked: Reranked, scores: Sequence[Mapping[int, float] | np.ndarray], k: int
) -> list[Answer]:
    """Answer each photo of a ranking; `scores` holds the head's scores of each photo by image index."""
    confidence, sure = compute_confidence(ranked, place_map.image_scores, k)
    if not np.isfinite(confidence).all():
        raise BadMap(DAMAGED)
    answers = []
    for row, scores_of_row in enumerate(scores):
        best = ranked.indices[row, :k]
        inliers = dict(zip(best.tolist(), ranked.inliers[row, :k].tolist(), strict=True))
        sure_images = set(best[sure[row]].tolist())
        hits = make_hits(place_map.images, best, scores_of_row, confidence[row], inliers, sure_images)
        located = locate_photo(ranked, row, place_map.images, place_map.reach)
        answer = make_answer(hits, located, calibration=place_map.calibration)
        answers.append(judge_answer(answer, ranked.indices.shape[1], reranked=answer.reranked))
    return answers


def make_hits(
    images: Sequence[ImageRecord],
    best: np.ndarray,
    scores: Mapping[int, float] | np.ndarray,
    confidence: np.ndarray,
    inliers: Mapping[int, int],
    sure_images: set[int],
) -> list[Hit]:
    """Make the hits of one photo from its `best` images."""
    hits = []
    for i, trust in zip(best.tolist(), confidence.tolist(), strict=True):
        image, matches = images[i], inliers.get(i, UNVERIFIED)
        hit = Hit(
            id=image.id, image=image.path, score=float(scores[i]), confidence=trust, position=image.position,
            inliers=None if matches == UNVERIFIED else matches, sure=i in sure_images,
        )  # fmt: skip
        hits.append(hit)
    return hits


def make_answer(
    hits: Sequence[Hit], located: Located, *, confidence: float | None = None, calibration: str | None = None
) -> Answer:
    """Make an answer from hits. [default confidence: that of the best hit]"""
    place, missing = located
    best = hits[0] if hits else None
    if confidence is None:
        confidence = 0.0 if best is None else best.confidence
    return Answer(
        hits=list(hits), confidence=confidence, sure=best is not None and best.sure,
        reranked=best is not None and best.inliers is not None, place=place, place_missing=missing,
        calibration=calibration,
    )  # fmt: skip
