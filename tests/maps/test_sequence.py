"""Frames of a drive answered by a map."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from tests.awkward_photos import KINDS, awkward_photo, forms_of
from tests.fakes import FakeEncoder
from tests.maps.conftest import photo
from tfa.base.tokens import Tokens
from tfa.errors import BadSpec
from tfa.maps.sequence import motion_along, places_of, query_sequence
from tfa.online.motion import OrderMotion, PositionMotion
from tfa.online.self_calibration import FrameCorrection
from tfa.online.sequence_filter import SequenceFilter, SequenceSpec
from tfa.photos.images import as_rgb
from tfa.photos.positions import Position


@pytest.fixture
def frames(tmp_path):
    return [photo(tmp_path / "drive" / f"{place:02d}.png", place, light=0.9) for place in range(3, 12)]


def test_frames_are_answered_by_the_filter(place_map, frames):
    answers = query_sequence(place_map, frames, k=3, self_calibrate=False)
    tokens = Tokens(*FakeEncoder().encode([as_rgb(frame) for frame in frames]))
    scores = place_map.state.head.scorer.scores(tokens)
    beliefs = list(map(SequenceFilter(OrderMotion(len(place_map), 2.0)).update, scores))
    assert len(answers) == len(frames)
    for answer, belief, row in zip(answers, beliefs, scores, strict=True):
        assert answer.confidence == pytest.approx(belief.confidence, abs=1e-6)
        assert answer.lost == pytest.approx(belief.lost, abs=1e-6)
        if answer.hits:
            assert answer.hits[0].id == belief.best
            assert answer.hits[0].confidence == pytest.approx(answer.confidence)
            assert answer.hits[0].score == pytest.approx(row[belief.best], abs=1e-5)
            assert len(answer.hits) == 3
    assert [answer.hits[0].id for answer in answers[4:]] == list(range(7, 12))


def test_frames_are_self_calibrated_unless_that_is_switched_off(place_map, frames):
    drive = (frames * 3)[:24]  # more than the 16 frames below which nothing is learnt
    tokens = Tokens(*FakeEncoder().encode([as_rgb(frame) for frame in drive]))
    scores = place_map.state.head.scorer.scores(tokens)
    correct = FrameCorrection()
    levelled = np.stack([correct(row) for row in scores])
    assert np.array_equal(levelled[:16], scores[:16])
    assert not np.allclose(levelled[16:], scores[16:], atol=1e-3)
    for answers, rows in (
        (query_sequence(place_map, drive), levelled),
        (query_sequence(place_map, drive, self_calibrate=False), scores),
    ):
        hits = [(number, answer.hits[0]) for number, answer in enumerate(answers) if answer.hits]
        assert any(number >= 16 for number, _ in hits)
        assert all(hit.score == pytest.approx(rows[number, hit.id], abs=1e-5) for number, hit in hits)


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


def test_moves_follow_positions_where_all_images_have_them_and_are_in_no_order(place_map):
    images, spec = place_map.images, SequenceSpec()
    where = np.random.default_rng(0).permutation(len(images)).tolist()
    plane = [dataclasses.replace(r, position=Position(x=float(i), y=0.0)) for i, r in zip(where, images, strict=True)]
    globe = [
        dataclasses.replace(r, position=Position(lat=50 + i * 1e-4, lon=8.0))
        for i, r in zip(where, images, strict=True)
    ]
    for records in (plane, globe):
        assert isinstance(motion_along(records, spec), PositionMotion)
        steps = np.linalg.norm(np.diff(places_of(records), axis=0), axis=1)
        np.testing.assert_allclose(
            steps / steps.min(), np.abs(np.diff(where)) / np.abs(np.diff(where)).min(), rtol=1e-6
        )
    drive = [dataclasses.replace(r, position=Position(x=float(i), y=0.0)) for i, r in enumerate(images)]
    for records in (images, drive, [*plane[:-1], images[-1]], [*plane[:-1], globe[-1]]):
        assert isinstance(motion_along(records, spec), OrderMotion)


def test_what_cannot_be_asked_is_refused(place_map, frames):
    with pytest.raises(BadSpec, match="k=0"):
        query_sequence(place_map, frames, k=0)
    with pytest.raises(BadSpec, match="min_confidence"):
        query_sequence(place_map, frames, min_confidence=2.0)
