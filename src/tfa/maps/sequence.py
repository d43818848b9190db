"""A robot's consecutive frames, or any photos of one camera: each is answered in the light of those before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfa.core.progress import Progress, as_progress
from tfa.maps.expected_recall import collect_answers
from tfa.photos.images import PhotosLike, expand_photos
from tfa.types import Answer, Answers

if TYPE_CHECKING:
    from tfa.maps.map import Map


def query_sequence(
    place_map: Map,
    frames: PhotosLike,
    progress: bool | Progress | None = None,
    **how: Any,
) -> Answers:
    """Answer photos in the order they were taken; `how` is as for `PlaceMap.follow`.

    An answer has no hits if being lost is likelier than the best place, or if the options ask for more confidence. A
    frame that cannot be read gets an answer that says so, and the tracker continues.
    """
    tracker, answers, photos = place_map.follow(**how), list[Answer](), expand_photos(frames)
    with as_progress(progress).task("following", len(photos), "frames") as task:
        for answer in tracker.steps(photos):
            answers.append(answer.withhold(tracker.options))
            task.advance()
    return collect_answers(answers, tracker.shift_monitor.warning(place_map.called))
