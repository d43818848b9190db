"""Recall, average precision and precision against recall, by hand and against another library."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from tfa.evaluate.metrics import precision_recall
from tfa_bench.measures import average_precision, first_right, matches, mean_and_deviation, nan_mean, recall_at

NOTHING = 65535
RANKED = np.array([[3, 1, 2, 0], [0, 1, 2, 3], [2, 0, 3, 1], [1, 3, 0, 2]])
POSITIVES = [[3], [2, 3], [], [2]]


def test_the_first_right_answer_is_counted_from_0():
    assert first_right(RANKED, POSITIVES).tolist() == [0, 2, np.inf, 3]


def test_recall_is_the_share_of_queries_with_a_positive_among_the_first_k():
    assert recall_at(RANKED, POSITIVES, [1, 2, 3, 4]) == [0.25, 0.25, 0.5, 0.75]


def test_a_k_beyond_the_ranking_is_the_whole_ranking():
    assert recall_at(RANKED, POSITIVES, [100]) == recall_at(RANKED, POSITIVES, [4])


def test_no_queries_and_empty_rankings_earn_nothing():
    assert recall_at(np.empty((0, 4), int), [], [1, 5]) == [0.0, 0.0]
    assert first_right(np.empty((2, 0), int), [[0], [1]]).tolist() == [np.inf, np.inf]
    assert average_precision(np.empty((2, 0), int), [[0], []], NOTHING).tolist() == [0, 0]


def test_as_many_positives_as_queries_are_needed():
    with pytest.raises(ValueError, match="zip"):
        recall_at(RANKED, POSITIVES[:3], [1])


def test_matches_keep_the_axes_between_queries_and_ranks():
    found = matches(np.stack([RANKED, RANKED[:, ::-1]], axis=1), POSITIVES)
    assert found.shape == (4, 2, 4)
    assert np.array_equal(found[:, 0], matches(RANKED, POSITIVES))
    assert np.array_equal(found[:, 1], matches(RANKED, POSITIVES)[:, ::-1])


def test_the_matches_of_one_query_do_not_leak_into_the_next():
    assert matches(np.array([[0, 1], [0, 1]]), [[0, 1], [1]]).tolist() == [[True, True], [False, True]]


def test_a_constant_scorer_earns_nothing():
    rows = np.full((4, 4), NOTHING, np.uint16)
    assert recall_at(rows, POSITIVES, [1, 4, 20]) == [0, 0, 0]
    assert average_precision(rows, POSITIVES, NOTHING).tolist() == [0, 0, 0, 0]


def test_nothing_never_matches_even_if_a_positive_had_its_number():
    ranked = np.array([[7, 2, 7]], np.uint16)
    assert matches(ranked, [[7, 2]], nothing=7).tolist() == [[False, True, False]]
    assert average_precision(ranked, [[7, 2]], 7).tolist() == [0.25]


def test_negative_entries_never_match():
    assert first_right(np.array([[-1, -2, 1]]), [[0, 1]]).tolist() == [2]


def test_average_precision_by_hand():
    # query 0: hit at rank 1. Query 1: hits at ranks 3 and 4. Query 3: hit at rank 4.
    assert average_precision(RANKED, POSITIVES, NOTHING).tolist() == [1, (1 / 3 + 2 / 4) / 2, 0, 1 / 4]


def test_positives_beyond_the_ranking_count_as_never_found():
    assert average_precision(RANKED[:, :3], POSITIVES, NOTHING).tolist() == [1, (1 / 3) / 2, 0, 0]


@given(seed=st.integers(0, 2**32 - 1), images=st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_average_precision_of_whole_rankings_is_that_of_scikit_learn(seed: int, images: int):
    rng = np.random.default_rng(seed)
    ranked = rng.permutation(images)
    right = rng.choice(images, rng.integers(1, images + 1), replace=False)
    scores = np.empty(images)
    scores[ranked] = np.arange(images, 0, -1)
    expected = average_precision_score(np.isin(np.arange(images), right), scores)
    assert average_precision(ranked[None], [right], NOTHING)[0] == pytest.approx(expected, abs=1e-12)


def test_precision_against_recall_by_hand():
    curve = precision_recall(np.array([True, False, True, True]), np.array([4.0, 3.0, 2.0, 1.0]))
    assert curve.threshold.tolist() == [4, 3, 2, 1]
    assert curve.precision.tolist() == [1, 1 / 2, 2 / 3, 3 / 4]
    assert curve.recall.tolist() == [1 / 4, 1 / 4, 2 / 4, 3 / 4]
    assert curve.answered.tolist() == [1 / 4, 2 / 4, 3 / 4, 1]
    assert curve.area == pytest.approx(1 / 4 * (1 + 2 / 3 + 3 / 4))
    assert curve.recall_at_precision(1.0) == 1 / 4
    assert curve.recall_at_precision(0.75) == 3 / 4


def test_equal_confidences_enter_together():
    one_way = precision_recall(np.array([True, False, True]), np.array([2.0, 2.0, 1.0]))
    other_way = precision_recall(np.array([False, True, True]), np.array([2.0, 2.0, 1.0]))
    assert one_way.precision.tolist() == other_way.precision.tolist() == [1 / 2, 2 / 3]
    assert one_way.recall_at_precision(1.0) == 0


def test_a_constant_confidence_is_one_point():
    curve = precision_recall(np.array([True, False, False, False]), np.zeros(4))
    assert (curve.precision.tolist(), curve.recall.tolist(), curve.answered.tolist()) == ([0.25], [0.25], [1])
    assert curve.area == 0.0625


def test_an_answer_without_confidence_is_never_accepted():
    curve = precision_recall(np.array([True, True]), np.array([1.0, np.nan]))
    assert (curve.recall.tolist(), curve.answered.tolist()) == ([0.5], [0.5])
    nobody = precision_recall(np.array([True]), np.array([np.nan]))
    assert (len(nobody.threshold), nobody.area, nobody.recall_at_precision(0.99)) == (0, 0, 0)


def test_99_of_100_is_a_precision_of_99_percent():
    curve = precision_recall(np.arange(200) > 1, np.zeros(200))
    assert curve.recall_at_precision(0.99) == 0.99


def test_area_is_average_precision_where_every_right_answer_is_wanted():
    rng = np.random.default_rng(0)
    correct, confidence = rng.random(200) < 0.6, rng.integers(0, 40, 200).astype(float)
    # The other library divides by the right answers, we by all queries.
    expected = average_precision_score(correct, confidence) * correct.mean()
    assert precision_recall(correct, confidence).area == pytest.approx(expected)


def test_a_drawn_curve_keeps_its_ends():
    rng = np.random.default_rng(0)
    curve = precision_recall(rng.random(1000) < 0.5, rng.random(1000))
    drawn = curve.drawn(100)
    assert len(drawn["recall"]) == 100
    assert (drawn["recall"][0], drawn["recall"][-1]) == (curve.recall[0], curve.recall[-1])
    assert precision_recall(np.array([True]), np.array([1.0])).drawn()["precision"] == [1.0]


def test_means_leave_out_what_is_not_known():
    values = np.array([[1.0, np.nan], [np.nan, np.nan], [0.0, np.nan]])
    assert nan_mean(values)[0] == 0.5
    assert np.isnan(nan_mean(values)[1])


def test_the_deviation_is_that_of_a_sample_and_0_for_one():
    mean, sd = mean_and_deviation(np.array([0.25, 0.75]))
    assert (mean, sd) == (0.5, pytest.approx(np.sqrt(0.125)))
    assert mean_and_deviation(np.array([0.25]))[1] == 0
