"""Expected recall by hand, over answers, and with a calibration; photos that are unlike those a map is made for."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from tests.maps.conftest import SPEC, photo
from tests.worlds import seen_again, world
from tfa import pipeline
from tfa.core.tokens import Tokens
from tfa.maps.confidence import (
    ALTERNATIVES,
    COMMON_LIMIT,
    MIN_PHOTOS,
    MIN_PHOTOS_CENTERED,
    STAND_OUT,
    WINDOW_PHOTOS,
    DomainShiftMonitor,
    collect_answers,
    estimate_recall,
    half_whiten,
    stand_out,
)
from tfa.method.scorer import shape_coordinates
from tfa.types import Answer, ExpectedRecall
from tfa.verification.reranking import UNVERIFIED, Reranked, rerank

# --- expected recall -----------------------------------------------------------------------------------------------


def test_share_and_interval_by_hand():
    found = estimate_recall([0.9, 0.5, 0.7, 0.5], [True, False, False, False], verified=True)
    half = 1.645 * np.sqrt(0.10**2 + (0.09 + 0.25 + 0.21 + 0.25) / 16)
    assert (found.share, found.sure, found.photos) == (pytest.approx(0.65), 0.25, 4)
    assert (found.low, found.high) == (pytest.approx(0.65 - half), 1.0)
    plain = estimate_recall([0.9, 0.5, 0.7, 0.5], [False] * 4, verified=False)
    assert plain.low < found.low
    assert estimate_recall([], [], verified=True) is None


def test_an_interval_stays_within_0_and_1_and_never_vanishes():
    found = estimate_recall(np.full(100_000, 0.97), np.ones(100_000, bool), verified=True)
    assert found.high == 1.0
    assert found.low == pytest.approx(0.97 - 0.1645, abs=1e-3)
    assert estimate_recall([0.02], [False], verified=False).low == 0.0


def test_a_sentence():
    expected = ExpectedRecall(share=0.72, low=0.66, high=0.78, sure=0.58, photos=64)
    assert str(expected) == "expected R@1 on similar photos: 72 % (66–78 %); 58 % recognized"


def test_answers_together_leave_out_what_was_not_answered():
    answers = collect_answers(
        [
            Answer(query="a", confidence=0.9, sure=True, reranked=True),
            Answer(query="b", confidence=0.5, reranked=True),
            Answer(query="c", error="it is broken"),
        ]
    )
    assert answers.expected_recall == estimate_recall([0.9, 0.5], [True, False], verified=True)
    assert answers.expected_recall is answers.expected_recall  # estimated once, not at each access
    assert answers.notice is None
    frame = Answer(query="a", confidence=0.9, lost=0.1, adaptation_photos=3)
    assert collect_answers([frame]).expected_recall is None
    assert collect_answers([replace(frame, lost=None)]).expected_recall.photos == 1


def test_a_map_says_how_well_it_will_do(place_map, tmp_path):
    camera = [photo(tmp_path / "camera" / f"{place}.png", place, light=0.7) for place in range(14)]
    answers = place_map.query_many(camera, k=1)
    assert answers.expected_recall.share == pytest.approx(np.mean([one.confidence for one in answers]))
    refused = place_map.query_many(camera, k=1, min_confidence=1.0)
    assert [one.hits for one in refused] == [[]] * 14
    assert refused.expected_recall == answers.expected_recall  # what was too doubtful to be given counts too
    report = place_map.calibrate(camera, "night")
    again = place_map.query_many(camera, k=1, calibration="night").expected_recall
    assert report.expected_recall.photos == 14
    assert report.expected_recall.share == pytest.approx(again.share, abs=1e-6)
    [kept] = place_map.info().to_dict()["calibrations"]
    assert kept["calibration"]["expected_recall"] == report.expected_recall.to_dict()
    frames = place_map.follow(sequence=False, k=1)
    told = collect_answers([frames.step(one) for one in camera])
    assert told.expected_recall.photos == 14


# --- photos that are unlike ----------------------------------------------------------------------------------------

DATABASE = world(images=60, patches=20)
HEAD = pipeline.fit_second_order(DATABASE, carrier="tempered", dtype="float64")


def shifted(tokens: Tokens, by: float) -> Tokens:
    """The same photos by another camera: their patches vary more in one direction."""
    patches = np.asarray(tokens.patches).copy()
    patches[..., 0] *= by
    return Tokens(patches, tokens.cls)


def looked(shift_monitor, tokens, scorer=None):
    scorer = scorer or HEAD.scorer(0)
    shift_monitor.observe(
        scorer, [scorer.query_vectors(tokens)], rerank(scorer.scores(tokens), ALTERNATIVES), np.arange(60)
    )
    return shift_monitor


@pytest.mark.parametrize("carrier", ["original", "partial", "tempered", "full"])
def test_half_whitened_coordinates_come_from_whatever_a_head_compares(carrier):
    scorer = pipeline.fit_second_order(DATABASE, carrier=carrier, dtype="float64").scorer(0)
    photos = seen_again(DATABASE)
    side = scorer.sides[0]
    expected = shape_coordinates(side.describe(photos, True, "float64").coordinates, side.eigenvalues, 0.5)
    np.testing.assert_allclose(half_whiten(scorer, scorer.query_vectors(photos)), expected, atol=1e-5)
    own = half_whiten(scorer, scorer.image_vectors(np.arange(60)))
    np.testing.assert_allclose(own, half_whiten(scorer, scorer.query_vectors(DATABASE)), atol=1e-4)


def test_heads_of_the_paper_have_no_such_coordinates():
    scorer = pipeline.fit(DATABASE, SPEC).scorer(0)
    assert half_whiten(scorer, scorer.query_vectors(DATABASE)) is None
    assert looked(DomainShiftMonitor(), DATABASE, scorer).warning() is None


def test_what_photos_of_unlike_places_have_in_common_by_hand():
    scorer, photos = HEAD.scorer(0), seen_again(DATABASE)
    found = looked(DomainShiftMonitor(), photos).common
    ours, theirs = (half_whiten(scorer, v) for v in (scorer.query_vectors(photos), scorer.query_vectors(DATABASE)))
    answers = scorer.scores(photos).argmax(axis=1)
    pairs = [
        ours[i] @ ours[j]
        for i in range(60)
        for j in range(i)
        if answers[i] != answers[j] and theirs[answers[i]] @ theirs[answers[j]] <= 0.05
    ]
    assert found == pytest.approx(np.mean(pairs), abs=1e-4)
    assert found < COMMON_LIMIT


def test_another_camera_is_noticed_and_a_centred_head_is_not_bothered():
    strange = shifted(seen_again(DATABASE), 3.0)
    notice = looked(DomainShiftMonitor(), strange).warning("town.tfa")
    assert "differ from those the map is made for" in notice
    assert notice.endswith("tfa calibrate town.tfa PHOTOS")
    [view] = HEAD.scorer(0).describe(strange)
    side = dataclasses.replace(HEAD.scorer(0).sides[0], shift=view.coordinates.mean(axis=0))
    centred = dataclasses.replace(HEAD.scorer(0), sides=(side,))
    assert looked(DomainShiftMonitor(), strange, centred).warning() is None
    assert looked(DomainShiftMonitor(), seen_again(DATABASE)).warning() is None


def test_few_photos_say_nothing():
    strange = shifted(seen_again(DATABASE), 3.0)
    assert looked(DomainShiftMonitor(), strange.select(range(MIN_PHOTOS - 1))).common is None
    assert looked(DomainShiftMonitor(), strange.select(range(MIN_PHOTOS))).common is not None
    assert looked(DomainShiftMonitor(centered=True), strange).common is None  # 60 photos: fewer than 64
    assert MIN_PHOTOS_CENTERED == 64
    same = strange.select([0] * MIN_PHOTOS)  # one place: nothing tells the place from the camera
    assert looked(DomainShiftMonitor(), same).common is None


def test_little_evidence_is_noticed():
    found = rerank(np.random.default_rng(0).normal(size=(20, 60)), ALTERNATIVES)
    evidence, inliers = np.zeros((20, ALTERNATIVES)), np.full((20, ALTERNATIVES), UNVERIFIED)
    evidence[:, 2], inliers[:, :5] = 0.81, 7
    verified = dataclasses.replace(found, evidence=evidence, inliers=inliers)
    scorer = HEAD.scorer(0)
    vectors = scorer.query_vectors(seen_again(DATABASE).select(range(20)))
    shift_monitor = DomainShiftMonitor(2.0)
    shift_monitor.observe(scorer, [vectors], verified, np.arange(60))
    assert shift_monitor.evidence == pytest.approx(0.45)
    assert "45% of the usual" in shift_monitor.warning()
    for usual, expected in ((1.5, pytest.approx(0.6)), (None, None), (0.0, None)):
        other = DomainShiftMonitor(usual)
        other.observe(scorer, [vectors], verified, np.arange(60))
        assert other.evidence == expected
        assert other.warning() is None


def reranked_rows(roots: np.ndarray) -> Reranked:
    """Rows whose candidates have these √M (q, c)."""
    found = rerank(np.random.default_rng(0).normal(size=(len(roots), 60)), ALTERNATIVES)
    evidence, inliers = np.zeros((len(roots), ALTERNATIVES)), np.full((len(roots), ALTERNATIVES), UNVERIFIED)
    evidence[:, : roots.shape[1]], inliers[:, : roots.shape[1]] = np.square(roots), 7
    return dataclasses.replace(found, evidence=evidence, inliers=inliers)


def observed(roots: np.ndarray, **how) -> DomainShiftMonitor:
    shift_monitor, scorer = DomainShiftMonitor(**how), HEAD.scorer(0)
    vectors = scorer.query_vectors(seen_again(DATABASE).select(range(len(roots))))
    shift_monitor.observe(scorer, [vectors], reranked_rows(roots), np.arange(60))
    return shift_monitor


@pytest.mark.parametrize("centered", [False, True])
def test_photos_that_match_nothing_better_than_chance_may_not_show_the_map(centered):
    chance, match = np.array([0.9, 0.7, 0.6, 0.6, 0.6]), np.array([1.5, 0.7, 0.6, 0.6, 0.6])
    outside = observed(np.tile(chance, (20, 1)), centered=centered)
    assert outside.is_outside
    assert "or they do not show this place" in outside.warning("my town.tfa")
    assert outside.warning("my town.tfa").endswith("tfa calibrate 'my town.tfa' PHOTOS")
    assert not outside.stands_out
    inside = observed(np.tile(match, (20, 1)), centered=centered)
    assert not inside.is_outside
    assert inside.stands_out
    few = observed(np.tile(chance, (MIN_PHOTOS - 1, 1)), centered=centered)
    assert not few.is_outside
    mixed = observed(np.concatenate([np.tile(match, (11, 1)), np.tile(chance, (9, 1))]), centered=centered)
    assert not mixed.is_outside  # most photos show the map
    assert not DomainShiftMonitor().stands_out


def test_only_the_last_frames_of_a_drive_must_stand_out():
    assert not stand_out([])
    assert stand_out([STAND_OUT])
    assert stand_out([0.0] * 100 + [1.0] * 16)
    assert not stand_out([1.0] * 100 + [0.0] * 16)


def test_the_interval_of_photos_outside_the_map_starts_at_0():
    answers = [Answer(confidence=0.6, reranked=True) for _ in range(50)]
    inside, outside = (collect_answers(answers, outside=one).expected_recall for one in (False, True))
    assert inside.low > 0.3
    assert outside == dataclasses.replace(inside, low=0.0)


def test_only_the_last_photos_are_kept():
    shift_monitor = DomainShiftMonitor()
    for _ in range(6):
        looked(shift_monitor, DATABASE)
    assert len(shift_monitor._photos) == WINDOW_PHOTOS
