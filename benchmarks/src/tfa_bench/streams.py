"""Follow a stream of photos with a head in memory, as `tfa.maps.tracker` does with a map."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tfa.core.tokens import Tokens
from tfa.method.scorer import Scorer
from tfa.online.adaptation import AdaptedScorer, DescribedPhoto
from tfa.online.follow import Follower, StreamFrame
from tfa.online.sequence_filter import Motion, SequenceSpec
from tfa.types import Candidates
from tfa.verification.patches import CompactTokens, PhotoPairs
from tfa.verification.reranking import Compared, Comparison


def describe_photos(scorer: Scorer, tokens: Tokens, compact: CompactTokens | None = None) -> Iterator[DescribedPhoto]:
    """Describe photos one by one, so that results do not depend on the batch."""
    for row in range(len(tokens)):
        yield DescribedPhoto.of(scorer, tokens.select([row]), compact)


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
