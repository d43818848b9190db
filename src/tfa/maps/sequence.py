"""A robot's consecutive frames, or any photos of one camera: each is answered in the light of those before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tfa.base.progress import Progress, as_progress
from tfa.maps.asking import checked_share
from tfa.maps.expected_recall import Answers
from tfa.maps.query import AskableMap
from tfa.maps.records import FrameAnswer
from tfa.photos.images import Photo


def query_sequence(
    place_map: AskableMap,
    frames: Sequence[Photo],
    min_confidence: float = 0.0,
    progress: bool | Progress | None = None,
    **how: Any,
) -> Answers[FrameAnswer]:
    """Answers to photos (paths or PIL images) in the order they were taken; `how` is as for `PlaceMap.follow`.

    The k likeliest images of each frame; none when being lost is likelier than the best place, or when its confidence
    is below `min_confidence`. A frame that cannot be read gets an answer that says so, and the tracker goes on.
    """
    checked_share(min_confidence)
    tracker, answers = place_map.follow(**how), Answers[FrameAnswer]()
    with as_progress(progress).task("following", len(frames), "frames") as task:
        for answer in tracker.steps(frames):
            answers.append(answer if answer.confidence >= min_confidence else replace(answer, hits=[]))
            task.advance()
    answers.notice = tracker.likeness.notice(str(place_map.path or "MAP"))
    return answers
