"""A tracker: one camera's photos, one after the other, on a map that may be edited meanwhile."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo, reopened
from tfa.core.files import BadFile
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec
from tfa.maps import PlaceMap
from tfa.maps.confidence import SURE_FRAME
from tfa.maps.storage import read_places
from tfa.online.sequence_filter import OrderMotion, PositionMotion, choose_motion
from tfa.photos.images import as_rgb
from tfa.types import BuildOptions, Position, QueryOptions
from tfa.verification.patches import PhotoPairs
from tfa_bench.streams import describe_photos, follow_scores

EMPTY = {"seen": 0, "counted": 0, "adaptation_photos": 0, "shift": None, "bias_spread": None}


@pytest.fixture
def frames(tmp_path):
    return [photo(tmp_path / "drive" / f"{place:02d}.png", place, light=0.8) for place in range(14)]


def tokens_of(photos):
    return Tokens(*FakeEncoder().encode([as_rgb(frame) for frame in photos]), grid=(4, 4))


def answers_of(tracker, photos):
    return [tracker.step(frame) for frame in photos]


@pytest.mark.parametrize("rerank", [False, True])
def test_answers_are_those_of_the_stream(place_map, frames, rerank):
    answers = answers_of(place_map.follow(k=3, rerank=rerank, candidates=5 if rerank else None), frames)
    scorer, tokens = place_map.state.head.scorer, tokens_of(frames)
    compact = place_map.state.compact
    pairs = PhotoPairs(compact, tokens, (4, 4), np.arange(14)) if rerank else None
    stream = follow_scores(
        scorer, describe_photos(scorer, tokens, compact), pairs, candidates=5 * rerank, motion=OrderMotion(14, 2.0)
    )
    for answer, frame in zip(answers, stream, strict=True):
        belief = frame.belief
        assert answer.lost == pytest.approx(belief.lost, abs=1e-9)
        assert answer.confidence == pytest.approx(belief.confidence)
        assert answer.adaptation_photos == frame.adaptation_photos
        assert bool(answer.hits) != belief.is_lost
        if answer.hits:
            assert answer.hits[0].id == belief.best
            assert answer.hits[0].score == frame.scores[belief.best]
            assert (answer.hits[0].inliers is not None) == rerank
            assert len(answer.hits) == 3
    assert [answer.hits[0].id for answer in answers[4:]] == list(range(4, 14))


def test_a_frame_is_sure_if_the_filter_is_and_the_frames_match_better_than_chance(place_map, frames, monkeypatch):
    answers = answers_of(place_map.follow(k=3), frames)
    likely = [answer.confidence >= SURE_FRAME for answer in answers]
    assert any(likely)
    assert [answer.sure for answer in answers] == likely  # every frame shows the map
    monkeypatch.setattr("tfa.maps.confidence.STAND_OUT", np.inf)  # as if they matched no better than chance
    assert not any(answer.sure for answer in answers_of(place_map.follow(k=3), frames))
    assert not any(answer.sure for answer in answers_of(place_map.follow(k=3, rerank=False), frames))


def test_photos_that_are_no_frames_are_adapted_and_verified_alone(place_map, frames):
    tracker = place_map.follow(k=2, sequence=False, rerank=True)
    answers = answers_of(tracker, frames)
    assert answers[0].hits == place_map.query(frames[0], k=2, rerank=True).hits  # by the database alone, to the bit
    assert all(answer.lost is None for answer in answers)
    assert answers[9].hits[0].score != place_map.query(frames[9], k=1, rerank=True)[0].score
    assert tracker.state["lost"] is None
    plain = answers_of(place_map.follow(k=2, sequence=False, online=False), frames)
    assert [answer.hits for answer in plain] == [answer.hits for answer in place_map.query_many(frames, k=2)]
    assert {answer.adaptation_photos for answer in plain} == {0}


def test_tokens_are_answered_as_the_photo_is(place_map, frames):
    one, other = place_map.follow(), place_map.follow()
    for frame in frames[:4]:
        assert dataclasses.replace(one.step(frame), query="") == other.step(tokens_of([frame]))
    with pytest.raises(BadSpec, match="tokens of 2"):
        one.step(tokens_of(frames[:2]))


def test_later_frames_never_change_earlier_answers(place_map, frames):
    assert answers_of(place_map.follow(), frames)[:6] == answers_of(place_map.follow(), [*frames[:6], *frames[:3]])[:6]


def test_standing_still_neither_teaches_nor_moves(place_map, frames):
    tracker = place_map.follow()
    answers_of(tracker, frames[:6])
    stood = answers_of(tracker, [frames[5]] * 200)
    assert len({(answer.lost, answer.confidence) for answer in stood}) == 1
    assert tracker.state["counted"] == 6
    assert tracker.state["seen"] == 206
    assert tracker.step(frames[6]).hits[0].id == 6


def test_a_blank_and_an_unreadable_photo_are_told_and_passed_over(place_map, frames, tmp_path):
    tracker = place_map.follow()
    answers_of(tracker, frames[:5])
    blank = tracker.step(Image.new("RGB", (64, 48)))
    assert blank.error is None
    assert np.isfinite(blank.confidence)
    taught = tracker.state["counted"]
    absent = tracker.step(tmp_path / "absent.png")
    assert "absent.png" in absent.error
    assert (absent.hits, absent.confidence, absent.adaptation_photos) == ([], 0.0, taught)
    assert 0 < absent.lost < 1
    assert answers_of(tracker, frames[7:10])[-1].hits[0].id == 9


def test_the_map_may_be_edited_in_between(place_map, frames, tmp_path):
    tracker, single = place_map.follow(k=14), place_map.follow(sequence=False)
    for one in (tracker, single):
        answers_of(one, frames[:6])
    place_map.remove([6])
    answer = tracker.step(frames[6])
    assert 6 not in {hit.id for hit in answer.hits}
    assert answer.adaptation_photos == 6  # what was learnt is kept
    place_map.add([photo(tmp_path / "new.png", 50)])
    assert tracker.step(frames[7]).hits[0].id == 7
    found = single.step(photo(tmp_path / "seen.png", 50, light=0.8))
    assert (found.hits[0].id, found.adaptation_photos) == (14, 6)
    place_map.remove([*range(6), *range(7, 14)])
    with pytest.raises(BadSpec, match="at least 2 images"):
        tracker.step(frames[0])


def test_another_head_starts_anew(place_map, frames, camera):
    tracker = place_map.follow()
    answers_of(tracker, frames[:6])
    place_map.remove([0, 1])
    place_map.refit()
    assert tracker.step(frames[6]).adaptation_photos == 0
    place_map.calibrate(camera)
    assert tracker.calibration == "none"  # as it was when the tracker was made
    calibrated = place_map.follow(sequence=False)
    assert calibrated.calibration == "target"
    assert calibrated.step(frames[3]).hits == place_map.query(frames[3]).hits


def test_what_was_learnt_can_be_kept_inspected_and_forgotten(place_map, frames, tmp_path, camera):
    tracker = place_map.follow(sequence=False)
    answers_of(tracker, frames[:8])
    tracker.save(tmp_path / "camera.safetensors")
    other = place_map.follow(sequence=False)
    other.load(tmp_path / "camera.safetensors")
    assert other.state == tracker.state
    assert answers_of(other, frames[8:]) == answers_of(tracker, frames[8:])
    tracker.reset()
    assert {key: tracker.state[key] for key in EMPTY} == EMPTY
    assert tracker.step(frames[0]).hits == place_map.query(frames[0]).hits
    place_map.calibrate(camera)
    with pytest.raises(BadFile, match="another head"):
        place_map.follow().load(tmp_path / "camera.safetensors")


def test_photos_of_one_camera_are_asked_differently_and_of_the_map_as_it_becomes(place_map, saved, frames):
    tracker, same = place_map.follow(sequence=False), place_map.follow(k=3, sequence=False, rerank=True)
    for frame in frames[:5]:
        tracker.rebind(place_map, QueryOptions(k=3, rerank=True), sequence=False)
        assert tracker.step(frame) == same.step(frame)
    tracker.rebind(place_map, QueryOptions(k=1, rerank=False), sequence=True)
    answer = tracker.step(frames[4])  # shows what the photo before did, but is the first frame
    lost = answer.lost
    assert (answer.adaptation_photos, answer.hits) == (5, [])  # one frame is not enough
    assert lost < 0.9  # but tells something
    tracker.rebind(place_map, QueryOptions(k=1, rerank=False), sequence=True)
    assert tracker.step(frames[5]).lost < lost  # goes on
    edited = reopened(saved)
    edited.remove([6])
    tracker.rebind(edited, QueryOptions(k=14), sequence=True)
    assert 6 not in {hit.id for hit in tracker.step(frames[6]).hits}
    edited.remove([place for place in range(13) if place != 6])
    with pytest.raises(BadSpec, match="at least 2 images"):
        tracker.rebind(edited, QueryOptions(), sequence=True)
    tracker.rebind(edited, QueryOptions(), sequence=False)
    answer = tracker.step(frames[7])
    assert ([hit.id for hit in answer.hits], answer.lost, answer.adaptation_photos) == ([13], None, 7)


def test_an_opened_map_is_followed_as_the_one_that_was_saved(saved, place_map, frames):
    assert answers_of(reopened(saved).follow(), frames) == answers_of(place_map.follow(), frames)


@pytest.mark.parametrize("head", ["second-order", "paper"])
def built(town, **kept):
    return PlaceMap.build(town, encoder=FakeEncoder(), spec=SPEC, map_spec=BuildOptions(**kept))


@pytest.mark.parametrize("head", ["second-order", "paper"])
@pytest.mark.parametrize("storage", ["float32", "int7"])
def test_maps_of_every_head_and_storage_and_ensembles_are_followed(town, cache, frames, head, storage):
    answers = answers_of(built(town, head=head, storage=storage, ensemble=True).follow(rerank=True), frames)
    assert np.mean([answer.hits[0].id == place for place, answer in enumerate(answers[4:], 4) if answer.hits]) > 0.8
    assert [answer.adaptation_photos for answer in answers] == list(range(14))


@pytest.mark.parametrize("storage", ["float32", "float16", "int7"])
def test_photos_adapt_the_partly_whitened_head_of_a_second_order_map(town, cache, frames, storage):
    blend = built(town, head="second-order", carrier="blend", storage=storage)
    partial = built(town, head="second-order", carrier="partial", storage=storage)
    first, *later = answers_of(blend.follow(k=3, sequence=False, rerank=False), frames)
    alone = partial.query(frames[0], k=3, rerank=False)
    assert [(hit.id, hit.score) for hit in first.hits] == [(hit.id, hit.score) for hit in alone]
    adapted = answers_of(partial.follow(k=3, sequence=False, rerank=False), frames)[1:]
    assert [[(hit.id, hit.score) for hit in answer.hits] for answer in later] == [
        [(hit.id, hit.score) for hit in answer.hits] for answer in adapted
    ]
    unadapted = blend.follow(k=3, sequence=False, rerank=False, online=False).step(frames[0])
    assert unadapted.hits == blend.query(frames[0], k=3, rerank=False).hits


def test_a_second_order_map_may_be_edited_saved_and_calibrated(town, cache, frames, camera, tmp_path):
    made = built(town)
    tracker = made.follow(sequence=False, rerank=False)
    answers_of(tracker, frames[:5])
    made.save(tmp_path / "town.tfa")
    made.remove([5])
    made.add([photo(tmp_path / "new.png", 50)])
    found = tracker.step(photo(tmp_path / "seen.png", 50, light=0.8))
    assert (found.hits[0].id, found.adaptation_photos) == (14, 5)
    assert 5 not in {hit.id for hit in tracker.step(frames[5]).hits}
    tracker.save(tmp_path / "camera.safetensors")
    again = reopened(tmp_path / "town.tfa").follow(sequence=False, rerank=False)
    again.load(tmp_path / "camera.safetensors")
    assert again.step(frames[9]).hits == tracker.step(frames[9]).hits
    made.calibrate(camera, score=True)
    calibrated = made.follow(sequence=False, rerank=False)
    assert calibrated.step(frames[3]).hits == made.query(frames[3], rerank=False).hits


def test_an_empty_map_has_no_answer(place_map, frames):
    place_map.remove(list(range(14)))
    assert place_map.follow(sequence=False).step(frames[0]).hits == []


def test_moves_follow_positions_where_all_images_have_them_and_are_in_no_order(place_map):
    images = place_map.images
    where = np.random.default_rng(0).permutation(len(images)).tolist()
    plane = [dataclasses.replace(r, position=Position(x=float(i), y=0.0)) for i, r in zip(where, images, strict=True)]
    globe = [
        dataclasses.replace(r, position=Position(lat=50 + i * 1e-4, lon=8.0))
        for i, r in zip(where, images, strict=True)
    ]
    for records in (plane, globe):
        assert isinstance(choose_motion(len(records), read_places(records), 2.0), PositionMotion)
        steps = np.linalg.norm(np.diff(read_places(records), axis=0), axis=1)
        np.testing.assert_allclose(
            steps / steps.min(), np.abs(np.diff(where)) / np.abs(np.diff(where)).min(), rtol=1e-6
        )
    drive = [dataclasses.replace(r, position=Position(x=float(i), y=0.0)) for i, r in enumerate(images)]
    for records in (images, drive, [*plane[:-1], images[-1]], [*plane[:-1], globe[-1]]):
        assert isinstance(choose_motion(len(records), read_places(records), 2.0), OrderMotion)


def test_what_cannot_be_asked_is_refused_before_photos_are_read(place_map):
    for given, message in (({"k": 0}, "k=0"), ({"candidates": 0}, "candidates=0")):
        with pytest.raises(BadSpec, match=message):
            place_map.follow(**given)
