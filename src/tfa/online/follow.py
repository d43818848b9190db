"""Following a stream of photos (ours, beyond the paper): adaptation, verification and the sequence filter, in a row.

    row      scores of a photo, adapted by the photos before it          `adapted_scorer`
    ranked   its best images, the first candidates verified              `verification.reranking`
    belief   where the camera is, from all photos so far                 `sequence_filter`

`follow_scores` is the whole of it for heads in memory; maps do the same, photo by photo (`tfa.maps.tracker`). Causal:
what is said of a photo depends on no later one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tfa.method.scorer import Scorer
from tfa.online.adaptation import AdaptedScorer, DescribedPhoto
from tfa.online.sequence_filter import Belief, Motion, SequenceFilter, SequenceSpec
from tfa.types import AUTO, Candidates
from tfa.verification.reranking import Compared, Comparison, Reranked, count_candidates, rerank

# Of a frame, where they are "auto": a filter also weighs images that are no likely winner of their frame alone, for
# which 10 are often thought enough (berlin-kudamm: R@1 92.5 with 20, 90.4 with as many as pay, level on four others).
_FRAME_CANDIDATES = 20


@dataclass(frozen=True)
class StreamFrame:
    """What is said of one photo of a stream."""

    scores: np.ndarray  # m: adapted by the photos before it
    ranked: Reranked  # a table of one row: its best images, verified if they were compared
    belief: Belief | None  # None if the stream is not filtered
    adaptation_photos: int  # earlier photos of this camera that shifted the scores


class Follower:
    """One camera: give it a photo after the other."""

    def __init__(self, scorer: AdaptedScorer, motion: Motion | None = None, spec: SequenceSpec | None = None) -> None:
        self.scorer, self.spec = scorer, spec or SequenceSpec()
        self.follow_along(motion)

    def follow_along(self, motion: Motion | None) -> None:
        """Filter by this motion, beginning with the next photo; None: no longer. What was learnt stays."""
        self.filter = None if motion is None else SequenceFilter(motion, self.spec)
        self._started = False

    def reset(self) -> None:
        """Forget every photo."""
        self.scorer.reset()
        self._started = False
        if self.filter is not None:
            self.filter.reset()

    def step(
        self, photo: DescribedPhoto, comparison: Comparison | None = None, candidates: Candidates = 0, k: int = 1
    ) -> StreamFrame:
        """The next photo; `comparison` is of this photo alone, its row 0. The best k images are ranked at least.

        Of a filtered stream "auto" is 20 candidates.
        """
        if self.filter is not None and candidates == AUTO:
            candidates = _FRAME_CANDIDATES
        adaptation_photos = self.scorer.counted
        scores = self.scorer.step(photo)
        ranked = rerank(scores[None], max(k, count_candidates(candidates)), candidates, comparison)
        belief = None
        if self.filter is not None:
            # A frame that shows what the last one did is no further evidence: the camera stands still.
            still = self._started and self.scorer.moved < self.spec.still
            belief = self.filter.belief() if still else self.filter.update(scores, ranked)
        self._started = True
        return StreamFrame(scores, ranked, belief, adaptation_photos)

    def skip(self) -> Belief | None:
        """A photo that could not be read: the camera moves unseen, and nothing is learnt."""
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
) -> Iterator[StreamFrame]:
    """A `StreamFrame` for each of the photos (`described_photos(scorer, tokens)`), in the order they are given in.

    `comparison` compares photos, by their place in this order, with columns of the scorer; its first `candidates` are
    verified. `motion` says how the camera moves (`OrderMotion(m, reach)` for a map in driving order); without it there
    is no filter: `frame.scores` are the adapted scores alone, `frame.ranked` what verification makes of them. With it
    `frame.belief.places` `m` are what images are ranked by, `.lost` and `.confidence` say the rest. `online=False`
    leaves the scorer as it is.

        online   rows = np.stack([frame.scores for frame in follow_scores(scorer, photos)])
        follow   rows = np.stack([frame.belief.places for frame in follow_scores(
                     scorer, photos, pairs, candidates=20, motion=OrderMotion(m, SequenceSpec().reach))])
    """
    follower = Follower(AdaptedScorer(scorer, adapts=online), motion, spec)
    for row, photo in enumerate(photos):
        yield follower.step(photo, None if comparison is None else _OnePhoto(comparison, row), candidates)


@dataclass(frozen=True)
class _OnePhoto:
    """One photo of a comparison, as its row 0."""

    comparison: Comparison
    row: int

    def with_queries(self, rows: Sequence[int], images: Sequence[np.ndarray]) -> list[Compared]:
        return self.comparison.with_queries([self.row for _ in rows], images)
