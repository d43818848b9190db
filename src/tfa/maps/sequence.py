"""A robot's consecutive frames, or any photos of one camera: each is answered in the light of those before it."""

from __future__ import annotations

from typing import Any

from tfa.core.config import MinConfidence
from tfa.core.progress import Progress, as_progress
from tfa.maps.base_map import check_min_confidence
from tfa.maps.expected_recall import AnswerList
from tfa.maps.query import ReadOnlyMap
from tfa.maps.records import FrameAnswer
from tfa.photos.images import PhotosLike, expand_photos


def query_sequence(
    place_map: ReadOnlyMap,
    frames: PhotosLike,
    min_confidence: MinConfidence = 0.0,
    progress: bool | Progress | None = None,
    **how: Any,
) -> AnswerList[FrameAnswer]:
    """Answers to photos in the order they were taken; `how` is as for `PlaceMap.follow`.

    The k likeliest images of each frame; none when being lost is likelier than the best place, when its confidence is
    below `min_confidence`, or when that is "sure" and it is not. A frame that cannot be read gets an answer that says
    so, and the tracker goes on.
    """
    check_min_confidence(min_confidence)
    tracker, answers, photos = place_map.follow(**how), AnswerList[FrameAnswer](), expand_photos(frames)
    with as_progress(progress).task("following", len(photos), "frames") as task:
        for answer in tracker.steps(photos):
            answers.append(answer.withhold_below(min_confidence))
            task.advance()
    answers.notice = tracker.shift_monitor.warning(str(place_map.path or "MAP"))
    return answers
