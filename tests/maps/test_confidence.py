"""Confidence: the formula by hand, scores among map images, and sure answers."""

import dataclasses

import numpy as np
import pytest

from tests.verification.test_reranking import ByHand
from tests.worlds import seen_again, world
from tfa import pipeline
from tfa.maps.confidence import (
    ALTERNATIVES,
    SURE_CONFIDENCE,
    SURE_LEAD,
    UNVERIFIED_CONSTANTS,
    VERIFIED_CONSTANTS,
    Constants,
    DatabaseScores,
    compute_confidence,
    compute_features,
)
from tfa.types import HeadSpec
from tfa.verification.reranking import rerank

DATABASE = world(images=40, patches=20)
SPEC = HeadSpec(words=4)


@pytest.fixture(scope="module")
def heads():
    """One of each kind, and what its images score with each other, by their tokens."""
    made = {
        "tempered": pipeline.fit_second_order(DATABASE, carrier="tempered", dtype="float64"),
        "partial": pipeline.fit_second_order(DATABASE, carrier="partial", dtype="float64"),
        "paper": pipeline.fit(DATABASE, SPEC, dtype="float64"),
    }
    return {name: (head.scorer(0), head.scorer(0).scores(DATABASE)) for name, head in made.items()}


# --- scores of the map's images with each other ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tempered", "partial", "paper"])
def test_own_scores_are_those_of_the_photos_themselves(heads, kind):
    scorer, scores = heads[kind]
    images, others = np.array([3, 17, 3]), np.array([0, 3, 21, 39])
    between = DatabaseScores(scorer).between(images, others)
    expected = scores[np.ix_(images, others)]
    np.testing.assert_allclose(
        between - between.mean(axis=1, keepdims=True), expected - expected.mean(axis=1, keepdims=True), atol=1e-6
    )


@pytest.mark.parametrize("kind", ["tempered", "paper"])
def test_mean_and_best_leave_the_image_itself_out(heads, kind):
    scorer, scores = heads[kind]
    others = scores.astype(np.float64) - np.where(np.eye(len(scores)), np.inf, 0)
    own, images = DatabaseScores(scorer), np.array([5, 9, 5])
    mean, best = own.mean_and_best(images)
    expected = others[images].max(axis=1) - np.array([np.delete(scores[i], i).mean() for i in images])
    np.testing.assert_allclose(best - mean, expected, rtol=1e-5)
    again = own.mean_and_best(images)
    assert np.array_equal(again, (mean, best))


def test_a_bias_and_images_that_do_not_answer_do_not_count(heads):
    scorer, _ = heads["partial"]
    rows = np.arange(3, 40)
    biased = dataclasses.replace(scorer, bias=np.linspace(0, 0.2, 40))
    expected = DatabaseScores(scorer, rows).mean_and_best(np.arange(10))
    np.testing.assert_allclose(DatabaseScores(biased, rows).mean_and_best(np.arange(10)), expected, atol=1e-6)


def test_copies_are_not_the_nearest_others():
    twice = DATABASE.select([*range(40), 7])
    scorer = pipeline.fit(twice, SPEC, dtype="float64").scorer(0)
    assert scorer.duplicates is not None
    own = DatabaseScores(scorer)
    mean, best = own.mean_and_best(np.array([7, 40]))
    assert best[0] == best[1] < own.between(np.array([7]), np.array([40]))[0, 0]
    assert mean[0] == pytest.approx(mean[1])


# --- the formula ---------------------------------------------------------------------------------------------------


class Drawn:
    """Own scores that are given."""

    def __init__(self, scores):
        self.scores = scores

    def between(self, images, others):
        return self.scores[np.ix_(images, others)]

    def mean_and_best(self, images):
        rows = [np.delete(self.scores[i], i) for i in images]
        return np.array([row.mean() for row in rows]), np.array([row.max() for row in rows])


def by_hand(row, own, answer, images, ordering, by: Constants, lead=0.0):
    """The confidence as the formula says it, for one hit."""
    others = np.delete(own[answer], answer)
    alike = [1.0 if c == answer else (own[answer, c] - others.mean()) / (others.max() - others.mean()) for c in images]
    shares = np.exp(np.array(ordering) / by.temperature)
    place = np.clip(np.clip(alike, 0, 1) @ shares / shares.sum(), 0.01, 0.9933)
    z = (row - row.mean()) / row.std()
    rest = [c for c in images if c != answer]
    agreement = np.corrcoef(z[rest], own[answer, rest])[0, 1]
    said = by.per_place * np.log(place / (1 - place)) + by.per_agreement * agreement + by.per_lead * np.clip(lead, 0, 2)
    return 1 / (1 + np.exp(-(by.offset + said)))


def drawn(images=50, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=images) * 3, rng.normal(size=(images, images))


def test_unverified_confidence_by_hand():
    row, own = drawn()
    found = rerank(row[None], ALTERNATIVES)
    confidence, sure = compute_confidence(found, Drawn(own), 3)
    images = np.argsort(-row)[:ALTERNATIVES]
    z = (row - row.mean()) / row.std()
    expected = [by_hand(row, own, answer, images, z[images], UNVERIFIED_CONSTANTS) for answer in images[:3]]
    np.testing.assert_allclose(confidence[0], np.minimum.accumulate(expected))
    assert not sure.any()


def test_no_hit_is_more_confident_than_the_one_before_it():
    risen = 0
    for seed in range(20):
        row, own = drawn(seed=seed)
        found = rerank(row[None], ALTERNATIVES)
        confidence, alone = (
            compute_confidence(found, Drawn(own), 5)[0][0],
            compute_features(found, Drawn(own), 5).confidence()[0],
        )
        risen += (np.diff(alone) > 0).any()
        np.testing.assert_array_equal(confidence, [alone[: k + 1].min() for k in range(5)])
    assert risen  # else this says nothing


def test_verified_confidence_by_hand():
    row, own = drawn(seed=1)
    images = np.argsort(-row)[:ALTERNATIVES]
    evidence = {(0, int(image)): float(m) for image, m in zip(images[:6], (0.5, 2.0, 0.1, 0.4, 0.0, 1.0), strict=True)}
    found = rerank(row[None], ALTERNATIVES, 6, ByHand(evidence))
    features = compute_features(found, Drawn(own), 8)
    z = (row - row.mean()) / row.std()
    ordering = [z[c] + 5 * np.sqrt(evidence.get((0, int(c)), 0.0)) for c in images]
    first, seventh = int(found.indices[0, 0]), int(found.indices[0, 6])
    assert first == images[1]
    lead = features.lead[0, 0]
    assert features.confidence()[0, 0] == pytest.approx(
        by_hand(row, own, first, images, ordering, VERIFIED_CONSTANTS, lead)
    )
    more, most = (dataclasses.replace(features, lead=features.lead + some) for some in (0.5, 9.0))
    by = dataclasses.replace(VERIFIED_CONSTANTS, per_lead=0.7)
    assert features.confidence(by)[0, 0] < more.confidence(by)[0, 0] < most.confidence(by)[0, 0]
    assert most.confidence(by)[0, 0] == pytest.approx(by_hand(row, own, first, images, ordering, by, 2.0))
    # One that was not compared has the constants of unverified answers, and the shares of the verified order.
    plain = dataclasses.replace(UNVERIFIED_CONSTANTS, temperature=VERIFIED_CONSTANTS.temperature)
    assert features.confidence()[0, 6] == pytest.approx(by_hand(row, own, seventh, images, ordering, plain))
    assert features.verified[0].tolist() == [True] * 6 + [False] * 2
    others = np.delete(own[first], first)
    alike = np.clip((own[first] - others.mean()) / (others.max() - others.mean()), 0, 1)
    unlike = np.array([0.0 if c == first else 1 - alike[c] for c in images[:6]])
    usual = unlike @ np.sqrt([evidence[0, int(c)] for c in images[:6]]) / unlike.sum()
    assert features.lead[0, 0] == pytest.approx(np.sqrt(2.0) - usual)


def test_sure_needs_evidence_confidence_and_a_lead():
    row, own = drawn()
    features = compute_features(rerank(row[None], ALTERNATIVES, 4, ByHand()), Drawn(own), 4)
    leading = dataclasses.replace(features, lead=np.array([[SURE_LEAD, SURE_LEAD - 1e-9, 2.0, 2.0]]))
    unverified = dataclasses.replace(leading, verified=np.array([[True, True, False, True]]))
    assert unverified.sure(np.array([[SURE_CONFIDENCE, 1.0, 1.0, SURE_CONFIDENCE - 1e-9]])).tolist() == [
        [True, False, False, False]
    ]


def test_a_second_frame_of_the_place_leaves_an_answer_confident_and_another_place_does_not():
    """Two images score alike: the same place twice, or two places."""
    row = np.array([6.0, 5.9, *np.linspace(-1, 1, 38)])
    own = np.random.default_rng(0).normal(size=(40, 40)) * 0.1
    one_place, two_places = own.copy(), own.copy()
    one_place[0, 1] = two_places[0, 30] = 5.0  # what the first image is most like
    found = rerank(row[None], ALTERNATIVES)
    sure_of_place, doubtful = (
        compute_confidence(found, Drawn(scores), 1)[0][0, 0] for scores in (one_place, two_places)
    )
    assert sure_of_place > 0.85
    assert doubtful < 0.5 < sure_of_place - doubtful + 0.1


@pytest.mark.parametrize("images", [1, 2, 3])
def test_small_maps_and_equal_scores_have_a_confidence(images):
    own = Drawn(np.ones((images, images)) if images > 1 else np.ones((1, 1)))
    own.mean_and_best = lambda some: (np.ones(len(some)), np.ones(len(some)))
    confidence, _ = compute_confidence(rerank(np.ones((1, images)), 5), own, 5)
    assert confidence.shape == (1, images)
    assert ((confidence > 0) & (confidence < 1)).all()


def test_photos_of_the_map_are_more_confident_than_strangers():
    head = pipeline.fit_second_order(DATABASE, carrier="partial")
    own = DatabaseScores(head.scorer(0))

    def confidence(tokens):
        return compute_confidence(rerank(head.scores(tokens), ALTERNATIVES), own, 1)[0].mean()

    assert confidence(seen_again(DATABASE)) > confidence(world(images=40, patches=20, seed=9)) + 0.1
