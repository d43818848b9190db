"""Track a stream of photos: adaptation, reranking, then the sequence filter.

    row      scores of a photo, adapted to earlier photos                `adaptation`
    ranked   its best images, the top candidates reranked                `verification.reranking`
    belief   where the camera is, from all photos so far                 `sequence_filter`

`follow_scores` does this for heads in memory, `tfa.maps.tracker` for maps. Without a lag, no result depends on later
photos.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfa.method.scorer import Scorer
from tfa.online.adaptation import AdaptedScorer, DescribedPhoto
from tfa.online.sequence_filter import Belief, Motion, SequenceFilter, SequenceSpec
from tfa.types import AUTO, Candidates
from tfa.verification.patches import PhotoPairs
from tfa.verification.reranking import Compared, Comparison, Reranked, count_candidates, rerank

# "auto" for a filtered frame. The filter also uses images that are unlikely to win their own frame, which the adaptive
# number often leaves out (berlin-kudamm: R@1 92.5 with 20, 90.4 with "auto"; equal on four other datasets).
_FRAME_CANDIDATES = 20


@dataclass(frozen=True)
class StreamFrame:
    """Result for one photo of a stream."""

    scores: np.ndarray  # (m,): adapted to earlier photos
    ranked: Reranked  # one row: the best images, reranked if they were compared
    belief: Belief | None  # None if the stream is not filtered
    adaptation_photos: int  # earlier photos of this camera that shifted the scores


class Follower:
    """Tracker of one camera, updated photo by photo."""

    def __init__(
        self, scorer: AdaptedScorer, motion: Motion | None = None, spec: SequenceSpec | None = None, lag: int = 0
    ) -> None:
        self.scorer, self.spec, self.lag = scorer, spec or SequenceSpec(), lag
        self.follow_along(motion)

    def follow_along(self, motion: Motion | None) -> None:
        """Restart the filter with this motion, or stop filtering (None). The adaptation stays."""
        self.filter = None if motion is None else SequenceFilter(motion, self.spec, self.lag)
        self._started = False

    def reset(self) -> None:
        """Forget all photos."""
        self.scorer.reset()
        self._started = False
        if self.filter is not None:
            self.filter.reset()

    def step(
        self, photo: DescribedPhoto, comparison: Comparison | None = None, candidates: Candidates = 0, k: int = 1
    ) -> StreamFrame:
        """Process the next photo and rank at least its k best images.

        Row 0 of `comparison` is this photo. "auto" is 20 candidates in a filtered stream.
        """
        if self.filter is not None and candidates == AUTO:
            candidates = _FRAME_CANDIDATES
        adaptation_photos = self.scorer.counted
        scores = self.scorer.step(photo)
        ranked = rerank(scores[None], max(k, count_candidates(candidates)), candidates, comparison)
        belief = None
        if self.filter is not None:
            # The camera stands still: a frame that shows the same as the last one adds no evidence.
            still = self._started and self.scorer.moved < self.spec.still
            belief = self.filter.hold() if still else self.filter.update(scores, ranked)
        self._started = True
        return StreamFrame(scores, ranked, belief, adaptation_photos)

    def look_back(self, frame: StreamFrame, frames: int) -> StreamFrame:
        """Return an earlier frame with the belief by all frames since; `frames` is how many came after it."""
        if self.filter is None or not frames:
            return frame
        return replace(frame, belief=self.filter.look_back(frames))

    def skip(self) -> Belief | None:
        """Skip a photo that could not be read: the filter predicts, and nothing is learned."""
        return None if self.filter is None else self.filter.skip()


def follow_scores(
    scorer: Scorer,
    photos: Iterable[DescribedPhoto],
    comparison: Comparison | None = None,
    *,
    candidates: Candidates = 0,
    motion: Motion | None = None,
    spec: SequenceSpec | None = None,
    online: bool = True,
    lag: int = 0,
) -> Iterator[StreamFrame]:
    """Yield a `StreamFrame` for each photo of `describe_photos(scorer, tokens)`, in order.

    Args:
        scorer: Scorer of the head.
        photos: Described photos of one camera.
        comparison: Compares photos, by position in the stream, with columns of the scorer; `PhotoPairs` if photos
            were described with compact tokens.
        candidates: Number of top images to rerank.
        motion: Camera motion, such as `OrderMotion(m, reach)` for a map in driving order; None: no filter.
        spec: Options of the filter.
        online: Adapt scores to earlier photos.
        lag: Number of later photos that a frame's belief also uses; needs `motion`.

    Rank images by `frame.scores` without a filter, by `frame.belief.rank` with one:

        online   rows = np.stack([frame.scores for frame in follow_scores(scorer, photos)])
        follow   rows = np.stack([frame.belief.rank for frame in follow_scores(
                     scorer, photos, pairs, candidates=20, motion=OrderMotion(m, SequenceSpec().reach))])
    """
    follower, waiting = Follower(AdaptedScorer(scorer, adapts=online), motion, spec, lag), deque[StreamFrame]()
    for row, photo in enumerate(photos):
        patches = follower.scorer.center_patches(photo)
        frame: Comparison | None = None if comparison is None else _OnePhoto(comparison, row)
        if patches is not None and isinstance(comparison, PhotoPairs):
            frame = comparison.at(patches)
        waiting.append(follower.step(photo, frame, candidates))
        if len(waiting) > lag:
            yield follower.look_back(waiting.popleft(), len(waiting))
    while waiting:
        yield follower.look_back(waiting.popleft(), len(waiting))


@dataclass(frozen=True)
class _OnePhoto:
    """A comparison whose row 0 is one photo of another comparison."""

    comparison: Comparison
    row: int

    def with_queries(self, rows: Sequence[int], images: Sequence[np.ndarray]) -> list[Compared]:
        return self.comparison.with_queries([self.row for _ in rows], images)
