"""A robot's consecutive frames: each is answered in the light of those before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.base.progress import Progress, as_progress
from tfa.base.tokens import Tokens
from tfa.errors import BadImage, BadSpec
from tfa.maps.query import QUERY_BATCH, AskableMap
from tfa.maps.records import Answer, Hit, ImageRecord
from tfa.online.self_calibration import FrameCorrection
from tfa.online.sequence_filter import (
    Belief,
    Roads,
    SequenceFilter,
    SequenceSpec,
    metres,
    roads_by_index,
    roads_by_position,
)
from tfa.photos.images import Photo, as_rgb, name_of


@dataclass(frozen=True)
class FrameAnswer(Answer):
    """The answer to one frame: a hit's confidence is the filtered probability of its place."""

    lost: float = 0.0  # probability that the frame shows no place of the map


def roads_of(images: Sequence[ImageRecord], spec: SequenceSpec | None = None) -> Roads:
    """By position where every image has one of the same kind, else by the order of the images in the map."""
    places = [record.position for record in images]
    kinds = {None if place is None else place.is_global for place in places}
    if kinds == {True}:
        degrees = np.array([[place.lat, place.lon] for place in places if place is not None], np.float64)
        return roads_by_position(metres(degrees[:, 0], degrees[:, 1]), spec)
    if kinds == {False}:
        plane = np.array([[place.x, place.y] for place in places if place is not None], np.float64)
        return roads_by_position(plane, spec)
    return roads_by_index(len(images), spec)


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
    if k < 1:
        raise BadSpec(f"k={k} is out of range: must be at least 1")
    if not 0 <= min_confidence <= 1:
        raise BadSpec(f"min_confidence={min_confidence} is out of range: must be between 0 and 1")
    path = SequenceFilter(roads_of(place_map.images, spec), spec)
    correct = FrameCorrection() if self_calibrate else None
    answers: list[FrameAnswer] = []
    with as_progress(progress).task("following", len(frames), "frames") as task:
        for start in range(0, len(frames), QUERY_BATCH):
            batch = frames[start : start + QUERY_BATCH]
            opened, errors = _opened(batch)
            encoder = place_map.encoder if opened else None
            tokens = Tokens(*encoder.encode(opened), grid=encoder.grid) if encoder else None
            scores = iter(np.empty((0, 0)) if tokens is None else place_map.scores(tokens, calibration))
            for index, frame in enumerate(batch):
                if index in errors:
                    answers.append(FrameAnswer(name_of(frame), [], 0.0, errors[index], path.skip().lost))
                else:
                    row = next(scores)
                    row = row if correct is None else correct(row)
                    answers.append(_answer(name_of(frame), path.update(row), row, place_map.images, k, min_confidence))
                task.advance()
    return answers


def _opened(frames: Sequence[Photo]) -> tuple[list[Any], dict[int, str]]:
    opened, errors = [], {}
    for index, frame in enumerate(frames):
        try:
            opened.append(as_rgb(frame))
        except (BadImage, OSError) as error:
            errors[index] = str(error)
    return opened, errors


def _answer(
    frame: str, belief: Belief, scores: np.ndarray, images: Sequence[ImageRecord], k: int, min_confidence: float
) -> FrameAnswer:
    confidence = belief.confidence
    if belief.lost > confidence or confidence < min_confidence:
        return FrameAnswer(frame, [], confidence, None, belief.lost)
    best = np.argsort(-belief.places, kind="stable")[:k]
    hit: Callable[[int], Hit] = lambda i: Hit(  # noqa: E731
        images[i].id, images[i].path, float(scores[i]), float(belief.mass[i]), images[i].position
    )
    return FrameAnswer(frame, [hit(i) for i in best.tolist()], confidence, None, belief.lost)
