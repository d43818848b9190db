"""Expected recall by hand, over answers, and with a calibration; photos that are unlike those a map is made for."""

import dataclasses

import numpy as np
import pytest

from tests.maps.conftest import SPEC, photo
from tests.worlds import seen_again, world
from tfa import pipeline
from tfa.base.tokens import Tokens
from tfa.maps.confidence import FIRST
from tfa.maps.expected_recall import Answers, expected_recall, in_words
from tfa.maps.likeness import COMMON, FEWEST, FEWEST_CENTRED, KEPT, Likeness, half_whitened
from tfa.maps.records import Answer, ExpectedRecall, FrameAnswer
from tfa.method.query_sides import shaped
from tfa.verification.reranking import UNVERIFIED, rerank

# --- expected recall -----------------------------------------------------------------------------------------------


def test_share_and_interval_by_hand():
    found = expected_recall([0.9, 0.5, 0.7, 0.5], [True, False, False, False], verified=True)
    half = 1.645 * np.sqrt(0.10**2 + (0.09 + 0.25 + 0.21 + 0.25) / 16)
    assert (found.share, found.sure, found.photos) == (pytest.approx(0.65), 0.25, 4)
    assert (found.low, found.high) == (pytest.approx(0.65 - half), 1.0)
    plain = expected_recall([0.9, 0.5, 0.7, 0.5], [False] * 4, verified=False)
    assert plain.low < found.low
    assert expected_recall([], [], verified=True) is None


def test_an_interval_stays_within_0_and_1_and_never_vanishes():
    found = expected_recall(np.full(100_000, 0.97), np.ones(100_000, bool), verified=True)
    assert found.high == 1.0
    assert found.low == pytest.approx(0.97 - 0.1645, abs=1e-3)
    assert expected_recall([0.02], [False], verified=False).low == 0.0


def test_a_sentence():
    expected = ExpectedRecall(0.72, 0.66, 0.78, 0.58, 64)
    assert in_words(expected) == "of photos like these about 72 % are recognised, 66–78; 58 % surely"


def test_answers_together_leave_out_what_was_not_answered():
    answers = Answers(
        [
            Answer("a", [], 0.9, sure=True, reranked=True),
            Answer("b", [], 0.5, reranked=True),
            Answer("c", [], 0.0, "it is broken"),
        ]
    )
    assert answers.expected_recall == expected_recall([0.9, 0.5], [True, False], verified=True)
    assert answers.notice is None
    assert Answers([FrameAnswer("a", [], 0.9, None, 0.1, 3)]).expected_recall is None
    assert Answers([FrameAnswer("a", [], 0.9, None, None, 3)]).expected_recall.photos == 1


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
    [kept] = place_map.info()["calibrations"]
    assert kept["calibration"]["expected_recall"] == report.expected_recall.to_dict()
    frames = place_map.follow(sequence=False, k=1)
    told = Answers(frames.step(one) for one in camera)
    assert told.expected_recall.photos == 14


# --- photos that are unlike ----------------------------------------------------------------------------------------

DATABASE = world(images=60, patches=20)
HEAD = pipeline.fit_second_order(DATABASE, carrier="tempered", dtype="float64")


def shifted(tokens: Tokens, by: float) -> Tokens:
    """The same photos by another camera: their patches vary more in one direction."""
    patches = np.asarray(tokens.patches).copy()
    patches[..., 0] *= by
    return Tokens(patches, tokens.cls)


def looked(likeness, tokens, scorer=None):
    scorer = scorer or HEAD.scorer(0)
    likeness.look(scorer, [scorer.query_vectors(tokens)], rerank(scorer.scores(tokens), FIRST), np.arange(60))
    return likeness


@pytest.mark.parametrize("carrier", ["original", "partial", "tempered", "full"])
def test_half_whitened_coordinates_come_from_whatever_a_head_compares(carrier):
    scorer = pipeline.fit_second_order(DATABASE, carrier=carrier, dtype="float64").scorer(0)
    photos = seen_again(DATABASE)
    side = scorer.sides[0]
    expected = shaped(side.describe(photos, True, "float64").coordinates, side.eigenvalues, 0.5)
    np.testing.assert_allclose(half_whitened(scorer, scorer.query_vectors(photos)), expected, atol=1e-5)
    own = half_whitened(scorer, scorer.image_vectors(np.arange(60)))
    np.testing.assert_allclose(own, half_whitened(scorer, scorer.query_vectors(DATABASE)), atol=1e-4)


def test_heads_of_the_paper_have_no_such_coordinates():
    scorer = pipeline.fit(DATABASE, SPEC).scorer(0)
    assert half_whitened(scorer, scorer.query_vectors(DATABASE)) is None
    assert looked(Likeness(), DATABASE, scorer).notice() is None


def test_what_photos_of_unlike_places_have_in_common_by_hand():
    scorer, photos = HEAD.scorer(0), seen_again(DATABASE)
    found = looked(Likeness(), photos).common
    ours, theirs = (half_whitened(scorer, v) for v in (scorer.query_vectors(photos), scorer.query_vectors(DATABASE)))
    answers = scorer.scores(photos).argmax(axis=1)
    pairs = [
        ours[i] @ ours[j]
        for i in range(60)
        for j in range(i)
        if answers[i] != answers[j] and theirs[answers[i]] @ theirs[answers[j]] <= 0.05
    ]
    assert found == pytest.approx(np.mean(pairs), abs=1e-4)
    assert found < COMMON


def test_another_camera_is_noticed_and_a_centred_head_is_not_bothered():
    strange = shifted(seen_again(DATABASE), 3.0)
    notice = looked(Likeness(), strange).notice("town.tfa")
    assert "unlike those the map is made for" in notice
    assert notice.endswith("tfa calibrate town.tfa PHOTOS")
    [view] = HEAD.scorer(0).describe(strange)
    side = dataclasses.replace(HEAD.scorer(0).sides[0], shift=view.coordinates.mean(axis=0))
    centred = dataclasses.replace(HEAD.scorer(0), sides=(side,))
    assert looked(Likeness(), strange, centred).notice() is None
    assert looked(Likeness(), seen_again(DATABASE)).notice() is None


def test_few_photos_say_nothing():
    strange = shifted(seen_again(DATABASE), 3.0)
    assert looked(Likeness(), strange.select(range(FEWEST - 1))).common is None
    assert looked(Likeness(), strange.select(range(FEWEST))).common is not None
    assert looked(Likeness(centred=True), strange).common is None  # 60 photos: fewer than 64
    assert FEWEST_CENTRED == 64
    same = strange.select([0] * FEWEST)  # one place: nothing tells the place from the camera
    assert looked(Likeness(), same).common is None


def test_little_evidence_is_noticed():
    found = rerank(np.random.default_rng(0).normal(size=(20, 60)), FIRST)
    evidence, inliers = np.zeros((20, FIRST)), np.full((20, FIRST), UNVERIFIED)
    evidence[:, 2], inliers[:, :5] = 0.81, 7
    verified = dataclasses.replace(found, evidence=evidence, inliers=inliers)
    scorer = HEAD.scorer(0)
    vectors = scorer.query_vectors(seen_again(DATABASE).select(range(20)))
    likeness = Likeness(2.0)
    likeness.look(scorer, [vectors], verified, np.arange(60))
    assert likeness.evidence == pytest.approx(0.45)
    assert "45% of the usual evidence" in likeness.notice()
    for usual, expected in ((1.5, pytest.approx(0.6)), (None, None), (0.0, None)):
        other = Likeness(usual)
        other.look(scorer, [vectors], verified, np.arange(60))
        assert other.evidence == expected
        assert other.notice() is None


def test_only_the_last_photos_are_kept():
    likeness = Likeness()
    for _ in range(6):
        looked(likeness, DATABASE)
    assert len(likeness._photos) == KEPT
