"""Verdicts: recognized, probable or not recognized, and why."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo
from tfa.maps import PlaceMap
from tfa.maps.confidence import (
    FEW_MAP_IMAGES,
    NONE_STANDS_OUT,
    NOT_CLEARLY,
    NOT_RERANKED,
    OUTSIDE_MAP,
    PATCHES_LEAD,
    PROBABLE_CONFIDENCE,
    SMALL_MAP,
    blame_flaw,
    collect_answers,
    judge_answer,
    reject_outside,
)
from tfa.photos.images import BLACK, BLURRED, COVERED, as_rgb
from tfa.types import NO_HITS, NOT_RECOGNIZED, PROBABLE, RECOGNIZED, UNREADABLE, Answer, Hit


def answer(confidence, *, sure=False, hits=True):
    hit = Hit(id=0, image="a.jpg", score=1.0, confidence=confidence, sure=sure)
    return Answer(hits=[hit] if hits else [], confidence=confidence, sure=sure)


def judged(one, images=100, reranked=True):
    found = judge_answer(one, images, reranked=reranked)
    return found.verdict, found.reason


def test_the_verdict_follows_from_sure_and_confidence():
    assert judged(answer(0.93, sure=True)) == (RECOGNIZED, PATCHES_LEAD)
    assert judged(answer(0.99)) == (PROBABLE, NOT_CLEARLY)
    assert judged(answer(PROBABLE_CONFIDENCE)) == (PROBABLE, NOT_CLEARLY)
    assert judged(answer(PROBABLE_CONFIDENCE), reranked=False) == (PROBABLE, NOT_RERANKED)
    assert judged(answer(PROBABLE_CONFIDENCE - 0.01)) == (NOT_RECOGNIZED, NONE_STANDS_OUT)
    assert judged(answer(0.0, hits=False)) == (NOT_RECOGNIZED, NO_HITS)
    assert judged(answer(0.8), images=FEW_MAP_IMAGES - 1) == (PROBABLE, SMALL_MAP)
    assert judged(answer(0.2), images=FEW_MAP_IMAGES - 1) == (NOT_RECOGNIZED, SMALL_MAP)


def test_photos_from_outside_the_map_are_not_probable():
    found = [judge_answer(answer(0.8, sure=sure), 100, reranked=True) for sure in (False, True)]
    unread = Answer(error="no such file", reason=UNREADABLE)
    answers = collect_answers([*found, unread], outside=True)
    assert [one.verdict for one in answers] == [NOT_RECOGNIZED, RECOGNIZED, NOT_RECOGNIZED]
    assert [one.reason for one in answers] == [OUTSIDE_MAP, PATCHES_LEAD, UNREADABLE]
    assert list(collect_answers(found)) == found
    lost = dataclasses.replace(answer(0.1, hits=False), reason="the camera has been lost for 2 frames")
    assert reject_outside(lost) == lost


def test_a_flaw_is_the_reason_unless_the_photo_is_recognized():
    sure, doubtful = (judge_answer(answer(0.95, sure=sure), 100, reranked=True) for sure in (True, False))
    assert blame_flaw(sure, BLURRED) == sure
    assert blame_flaw(doubtful, BLURRED) == dataclasses.replace(doubtful, reason=BLURRED)
    assert blame_flaw(doubtful, None) == doubtful


def test_every_answer_of_a_map_has_a_verdict(place_map, dusk, tmp_path):
    best = place_map.query(dusk)
    assert (best.verdict, best.sure) == (RECOGNIZED, True)
    assert place_map.query(dusk, sure=True).verdict == RECOGNIZED
    plain = place_map.query(dusk, rerank=False)
    assert plain.verdict in (PROBABLE, NOT_RECOGNIZED)
    other = place_map.query(photo(tmp_path / "other.png", 77), sure=True)
    assert not other.hits
    assert other.verdict != RECOGNIZED
    [unread] = place_map.query_many([tmp_path / "absent.png"])
    assert (unread.verdict, unread.reason) == (NOT_RECOGNIZED, UNREADABLE)


DARK = np.zeros((60, 80, 3), np.uint8)


@pytest.mark.parametrize("kind", ["array", "file", "image"])
def test_a_black_photo_is_not_searched(place_map, tmp_path, kind):
    Image.fromarray(DARK).save(tmp_path / "black.png")
    black = {"array": DARK, "file": tmp_path / "black.png", "image": Image.fromarray(DARK)}[kind]
    found, encoded = place_map.query(black), place_map.encoder.encoded
    assert (found.verdict, found.reason, found.confidence, found.hits) == (NOT_RECOGNIZED, BLACK, 0.0, [])
    assert found.place_missing == BLACK
    assert found.error is None
    place_map.query(black)
    assert place_map.encoder.encoded == encoded


def test_a_black_photo_in_a_folder_does_not_move_the_answers_of_the_others(place_map, camera):
    before = place_map.query_many(camera).answers
    Image.fromarray(DARK).save(camera / "03black.png")
    Image.new("RGB", (80, 60), "#b08060").save(camera / "05finger.png")
    after = place_map.query_many(camera).answers
    assert [one.reason for one in after if not one.hits] == [BLACK, COVERED]
    assert [one for one in after if one.hits] == before


@pytest.mark.parametrize("sequence", [True, False])
def test_a_black_frame_changes_nothing_that_a_camera_learned(place_map, tmp_path, sequence):
    frames = [photo(tmp_path / "drive" / f"{place:02d}.png", place, light=0.8) for place in range(8)]
    tracker = place_map.follow(sequence=sequence)
    for frame in frames[:6]:
        tracker.step(frame)
    learned = tracker.state["seen"]
    black = tracker.step(DARK)
    assert (black.verdict, black.reason, black.confidence) == (NOT_RECOGNIZED, BLACK, 0.0)
    assert (black.lost is None) != sequence
    assert tracker.state["seen"] == learned
    assert tracker.step(frames[7]).hits[0].id == 7
    tokens = next(place_map.encode_batches([frames[7]]))[1]
    assert tracker.step(tokens, flaw=BLACK).reason == BLACK  # as the service passes photos


def test_a_lost_camera_says_since_when(place_map, tmp_path):
    tracker = place_map.follow()
    strange = [photo(tmp_path / "strange" / f"{n}.png", 500 + n) for n in range(8)]
    reasons = [tracker.step(frame).reason for frame in strange]
    lost = [reason for reason in reasons if "lost" in reason]
    assert lost[:2] == ["the camera has been lost for 1 frame", "the camera has been lost for 2 frames"]


@pytest.mark.parametrize("images", [2, 9])
def test_a_tiny_map_recognizes_nothing_and_warns(tmp_path, cache, images):
    for place in range(images):
        photo(tmp_path / "tiny" / f"{place}.png", place)
    tiny = PlaceMap.build(tmp_path / "tiny", encoder=FakeEncoder(), spec=SPEC)
    assert any(f"the map has only {images} images" in note for note in tiny.notes)
    seen, strange = photo(tmp_path / "seen.png", 0, 0.8), photo(tmp_path / "strange.png", 99)
    for query in (seen, strange):
        found = tiny.query(query)
        assert found.verdict != RECOGNIZED
        assert found.confidence <= images / 10
        frame = tiny.follow().step(as_rgb(query))
        assert not frame.sure
        assert frame.confidence <= images / 10
    assert tiny.query(seen).hits[0].id == 0
    assert tiny.query(seen).reason == SMALL_MAP


def test_a_map_of_ten_photos_is_not_tiny(tmp_path, cache):
    for place in range(FEW_MAP_IMAGES):
        photo(tmp_path / "small" / f"{place}.png", place)
    small = PlaceMap.build(tmp_path / "small", encoder=FakeEncoder(), spec=SPEC)
    assert not any("only" in note for note in small.notes)
    assert small.query(photo(tmp_path / "seen.png", 0, 0.8)).reason != SMALL_MAP
