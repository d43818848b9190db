"""A robot's consecutive frames: each is answered in the light of those before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfa.base.progress import Progress, as_progress
from tfa.maps.query import AskableMap, checked_share
from tfa.maps.records import Answer, Hit, ImageRecord
from tfa.online.motion import Motion, metres, motion_of
from tfa.online.self_calibration import FrameCorrection
from tfa.online.sequence_filter import Belief, SequenceFilter, SequenceSpec
from tfa.photos.images import Photo
from tfa.search.engine import checked_k


@dataclass(frozen=True)
class FrameAnswer(Answer):
    """The answer to one frame: a hit's confidence is the filtered probability of its place."""

    lost: float = 0.0  # probability that the frame shows no place of the map


def motion_along(images: Sequence[ImageRecord], spec: SequenceSpec) -> Motion:
    """By the order of the images in the map; by position where every image has one of the same kind, if no drive."""
    return motion_of(len(images), places_of(images), spec.reach)


def places_of(images: Sequence[ImageRecord]) -> np.ndarray | None:
    """Where the images stand, `m 2` in metres; None unless every one has a position of the same kind."""
    places = [record.position for record in images if record.position is not None]
    kinds = {place.is_global for place in places}
    if len(places) < len(images) or len(kinds) != 1:
        return None
    if kinds == {True}:
        degrees = np.array([[place.lat, place.lon] for place in places], np.float64)
        return metres(degrees[:, 0], degrees[:, 1])
    return np.array([[place.x, place.y] for place in places], np.float64)


def query_sequence(
    place_map: AskableMap,
    frames: Sequence[Photo],
    k: int = 5,
    min_confidence: float = 0.0,
    calibration: str | None = None,
    spec: SequenceSpec | None = None,
    progress: bool | Progress | None = None,
    self_calibrate: bool = True,
) -> list[FrameAnswer]:
    """Answers to frames (paths or PIL images) in the order they were taken.

    The k likeliest images of each frame; none when being lost is likelier than the best place, or when its confidence
    is below `min_confidence`. A frame that cannot be read gets an answer that says so, and the filter goes on.
    `self_calibrate` (on by default) subtracts every image's mean score on the frames so far: a filter would else
    settle on images that resemble all frames. Without it scores are the head's own. The map itself stays as it is.
    """
    checked_k(k)
    checked_share(min_confidence)
    spec = spec or SequenceSpec()
    path = SequenceFilter(motion_along(place_map.images, spec), spec)
    correct = FrameCorrection() if self_calibrate else None
    answers: list[FrameAnswer] = []
    with as_progress(progress).task("following", len(frames), "frames") as task:
        for named, tokens in place_map.encoded_batches(frames):
            scores = iter(np.empty((0, 0)) if tokens is None else place_map.scores(tokens, calibration))
            for frame, error in named:
                if error is not None:
                    answers.append(FrameAnswer(frame, [], 0.0, error, path.skip().lost))
                else:
                    row = next(scores)
                    row = row if correct is None else correct(row)
                    answers.append(_answer(frame, path.update(row), row, place_map.images, k, min_confidence))
                task.advance()
    return answers


def _answer(
    frame: str, belief: Belief, scores: np.ndarray, images: Sequence[ImageRecord], k: int, min_confidence: float
) -> FrameAnswer:
    confidence = belief.confidence
    if belief.lost > confidence or confidence < min_confidence:
        return FrameAnswer(frame, [], confidence, None, belief.lost)
    hits = []
    for index in np.argsort(-belief.places, kind="stable")[:k].tolist():
        image = images[index]
        hits.append(Hit(image.id, image.path, float(scores[index]), float(belief.mass[index]), image.position))
    return FrameAnswer(frame, hits, confidence, None, belief.lost)
