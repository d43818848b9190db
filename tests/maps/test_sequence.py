"""Frames of a drive answered by a map, all at once."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from tests.awkward_photos import KINDS, awkward_photo, forms_of
from tests.maps.conftest import photo
from tfa.errors import BadSpec
from tfa.maps.tracker import query_sequence
from tfa.types import Answer


@pytest.fixture
def frames(tmp_path):
    return [photo(tmp_path / "drive" / f"{place:02d}.png", place, light=0.9) for place in range(3, 12)]


def test_frames_are_answered_as_a_tracker_answers_them(place_map, frames):
    answers = query_sequence(place_map, frames, k=3)
    tracker = place_map.follow(k=3)
    assert answers.answers == [tracker.step(frame) for frame in frames]
    assert [answer.hits[0].id for answer in answers[4:]] == list(range(7, 12))
    assert [answer.adaptation_photos for answer in answers] == list(range(len(frames)))


def test_a_removed_image_is_no_state(place_map, frames):
    place_map.remove([7])
    answers = query_sequence(place_map, frames)
    assert 7 not in {hit.id for answer in answers for hit in answer.hits}
    assert answers[-1].hits[0].id == 11


def test_a_frame_that_cannot_be_read_is_told_and_passed_over(place_map, frames, tmp_path):
    frames[4] = tmp_path / "absent.png"
    answers = query_sequence(place_map, frames)
    assert "absent.png" in answers[4].error
    assert answers[4].hits == []
    assert answers[5].hits[0].id == 8


def test_the_form_of_a_frame_changes_no_answer(place_map, frames, tmp_path):
    forms = [forms_of(awkward_photo(kind, frames[0], tmp_path)) for kind in KINDS]
    answers = {form: query_sequence(place_map, [one[form] for one in forms], k=3) for form in forms[0]}
    assert all(0 < one.confidence < 1 for one in answers["path"])
    for form, found in answers.items():
        assert [dataclasses.replace(one, query="") for one in found] == [
            dataclasses.replace(one, query="") for one in answers["path"]
        ], form


def test_a_frame_of_nowhere_is_no_place(place_map):
    nowhere = [Image.fromarray(np.full((48, 64, 3), 90, np.uint8))] * 6
    answers = query_sequence(place_map, nowhere, min_confidence=0.99)
    assert all(answer.hits == [] for answer in answers)
    assert all(answer.error is None for answer in answers)


def test_what_cannot_be_asked_is_refused(place_map, frames):
    with pytest.raises(BadSpec, match="k=0"):
        query_sequence(place_map, frames, k=0)
    with pytest.raises(BadSpec, match="min_confidence"):
        query_sequence(place_map, frames, min_confidence=2.0)


def test_lagged_answers_are_the_same_frames_answered_later(place_map, frames):
    now, late = query_sequence(place_map, frames, k=3), query_sequence(place_map, frames, k=3, lag=2)
    assert [answer.query for answer in late] == [answer.query for answer in now]
    assert late[-1] == now[-1]  # nothing comes after the last frame
    assert late[0].confidence > now[0].confidence
    tracker = place_map.follow(k=3, lag=2)
    stepped = [tracker.step(frame) for frame in frames]
    waiting = Answer(reason="later frames are needed to answer this one")
    assert stepped[:2] == [waiting, waiting]
    assert [*stepped[2:], *tracker.finish()] == late.answers
    assert list(tracker.finish()) == []


def test_a_lag_keeps_unread_frames_and_edits_in_order(place_map, frames, tmp_path):
    frames[4] = tmp_path / "absent.png"
    late = query_sequence(place_map, frames, lag=3)
    assert [answer.query for answer in late] == [str(frame) for frame in frames]
    assert "absent.png" in late[4].error
    tracker = place_map.follow(lag=3)
    answers = list(tracker.steps(frames[:4]))
    place_map.remove([0])
    answers += [*tracker.steps(frames[5:]), *tracker.finish()]
    assert [answer.query for answer in answers] == [str(frame) for frame in [*frames[:4], *frames[5:]]]
    assert answers[-1].hits[0].id == 11


def test_a_lag_that_cannot_be_is_an_error(place_map, frames):
    with pytest.raises(BadSpec, match="lag=-1"):
        query_sequence(place_map, frames, lag=-1)
    with pytest.raises(BadSpec, match="lag=101 is out of range"):
        place_map.follow(lag=101)
    for lag, kind in ((1.5, "float"), (True, "bool")):
        with pytest.raises(BadSpec, match=f"lag={lag} is {kind}, must be int"):
            place_map.follow(lag=lag)
    with pytest.raises(BadSpec, match="sequence=True"):
        query_sequence(place_map, frames, lag=2, sequence=False)
