"""Scores that are too close to believe are computed again, and then the smaller id wins."""

from __future__ import annotations

import numpy as np

from tfa.search.near_ties import NEAR_TIE, RankedIds, settle_ties

QUERY = np.array([[1.0, 0.0]], np.float32)


def test_equal_vectors_with_different_last_bits_are_ordered_by_id():
    noisy = RankedIds.of([7, 3, 5, 9], [0.5 + 2e-7, 0.5, 0.5 - 1e-7, 0.1])
    asked = []

    def vectors_of(ids):
        asked.extend(ids)
        return {one: np.array([0.5, 1.0], np.float32) for one in ids}

    (settled,) = settle_ties(QUERY, [noisy], vectors_of)
    assert settled.ids.tolist() == [3, 5, 7, 9]
    assert settled.scores.tolist() == [0.5, 0.5, 0.5, np.float32(0.1)]
    assert asked == [3, 5, 7]  # the vector of 9 is not needed


def test_close_scores_of_different_vectors_are_put_in_their_true_order():
    true = {1: 0.3, 2: 0.3 + 1e-6}
    answer = RankedIds.of([1, 2], [0.3 + 1e-6, 0.3])
    (settled,) = settle_ties(QUERY, [answer], lambda ids: {one: np.array([true[one], 0], np.float32) for one in ids})
    assert settled.ids.tolist() == [2, 1]


def test_scores_far_apart_ask_for_nothing():
    answer = RankedIds.of([1, 2, 3], [0.1, 0.3, 0.2])
    (settled,) = settle_ties(QUERY, [answer], lambda ids: {}[ids])
    assert settled.ids.tolist() == [2, 3, 1]


def test_a_vector_deleted_meanwhile_keeps_the_score_it_had():
    answer = RankedIds.of([1, 2], [0.3, 0.3])
    (settled,) = settle_ties(QUERY, [answer], lambda ids: {2: np.array([0.3, 0], np.float32)})
    assert sorted(settled.ids.tolist()) == [1, 2]


def test_a_border_is_a_tie_unless_the_last_answer_is_clearly_worse_or_nothing_was_left_out():
    scores = [0.9, 0.5, 0.5, 0.5]
    assert RankedIds.of([1, 2, 3, 4], scores).ends_in_a_tie(2, limit=4)
    assert not RankedIds.of([1, 2, 3, 4], scores).ends_in_a_tie(1, limit=4)
    assert not RankedIds.of([1, 2, 3, 4], scores).ends_in_a_tie(2, limit=5)
    assert RankedIds.of([1, 2], [0.5, 0.5 - NEAR_TIE / 2]).ends_in_a_tie(1, limit=2)
    assert not RankedIds.of([], []).ends_in_a_tie(1, limit=2)
