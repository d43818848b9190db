"""The one way from ranked images to answers: confidence → position estimate → `Answer`.

Folders, stores and trackers rank and rerank images in their own ways (`Reranked`); what follows is the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfa.core.tokens import Tokens
from tfa.errors import BadMap, BadSpec, BadTokens
from tfa.maps.confidence import ImageScores, compute_confidence
from tfa.maps.fused_place import Located, locate_photo
from tfa.maps.state import DATABASE, MapState
from tfa.search.exact import DAMAGED
from tfa.search.store import Region, Where
from tfa.types import NO_HITS, Answer, Candidates, Hit, ImageRecord, QueryOptions, RerankSpec
from tfa.verification.patches import CompactTokens, SourcedTokens, explain_missing_grid
from tfa.verification.reranking import UNVERIFIED, Reranked

# --- options -------------------------------------------------------------------------------------------------------


def make_where(options: QueryOptions) -> Where | None:
    """Return which images may answer; None if all may. Raises BadSpec for a region that is none."""
    if not options.sessions and options.region is None:
        return None
    return Where(options.sessions, None if options.region is None else Region(*options.region))


def resolve_candidates(
    options: QueryOptions,
    state: MapState,
    tokens: Tokens | None = None,
    compact: CompactTokens | SourcedTokens | None = None,
) -> Candidates:
    """Decide how many images are reranked; 0 if reranking is off or the patches of `tokens` have no known grid.

    `compact` holds compact tokens that are stored apart from the state.
    """
    compact = state.compact if compact is None else compact
    head = state.chosen(options.calibration)
    if options.candidates is not None:
        RerankSpec(candidates=options.candidates)  # refuses what is out of range
    if compact is None and options.rerank:
        raise BadSpec("this map holds no compact tokens to verify answers with; build it with --rerank (rerank=True)")
    rerank = head.verifies if options.rerank is None else options.rerank
    if compact is None or not rerank:
        return 0
    if tokens is not None and compact.resolve_grid(tokens) is None:
        if options.rerank:
            raise BadTokens(
                f"query tokens: {explain_missing_grid(tokens)}; give it: Tokens(patches, grid=(rows, columns))"
            )
        return 0
    return options.candidates or compact.spec.candidates


# --- answers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnsweringMap:
    """What answers are made of besides a ranking: images by the numbers that rankings have for them."""

    images: Sequence[ImageRecord]
    image_scores: ImageScores
    reach: float  # meters between images of one place
    head: str  # name of the head that answers

    @property
    def calibration(self) -> str | None:
        """Calibration that answers."""
        return None if self.head == DATABASE else self.head


def answer_photos(
    place_map: AnsweringMap, ranked: Reranked, scores: Sequence[Mapping[int, float] | np.ndarray], k: int
) -> list[Answer]:
    """Answer each photo of a ranking; `scores` holds those of the head by the number of the image, for each photo."""
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
        answers.append(make_answer(hits, located, calibration=place_map.calibration))
    return answers


def make_hits(
    images: Sequence[ImageRecord],
    best: np.ndarray,
    scores: Mapping[int, float] | np.ndarray,
    confidence: np.ndarray,
    inliers: Mapping[int, int],
    sure_images: set[int],
) -> list[Hit]:
    """Make the hits of one photo: its `best` images, with numbers of each."""
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
    """Make the answer of hits; `confidence` is that of the best one unless a filter says otherwise."""
    place, missing = located
    best = hits[0] if hits else None
    if confidence is None:
        confidence = 0.0 if best is None else best.confidence
    return Answer(
        hits=list(hits), confidence=confidence, sure=best is not None and best.sure,
        reranked=best is not None and best.inliers is not None, place=place, place_missing=missing,
        calibration=calibration,
    )  # fmt: skip


def make_empty_answer(calibration: str | None = None) -> Answer:
    """Make the answer to a photo that no image may answer."""
    return make_answer([], (None, NO_HITS), calibration=calibration)


def limit_hits(answer: Answer, k: int) -> Answer:
    """Keep the first k hits."""
    return answer if len(answer.hits) <= k else replace(answer, hits=answer.hits[:k])
