"""Track a stream of photos: adaptation, reranking, then the sequence filter.

    row      scores of a photo, adapted to earlier photos                `adaptation`
    ranked   its best images, the top candidates reranked                `verification.reranking`
    belief   where the camera is, from all photos so far                 `sequence_filter`

`tfa.maps.tracker` does this for maps. Without a lag, no result depends on later photos.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tfa.online.adaptation import AdaptedScorer, DescribedPhoto
from tfa.online.sequence_filter import Belief, Motion, SequenceFilter, SequenceSpec
from tfa.types import AUTO, Candidates
from tfa.verification.reranking import Comparison, Reranked, count_candidates, rerank

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
