"""Plain formulas of second-order heads, adaptation and the judge, by hand."""

import math

import numpy as np
import pytest

from tfa.reference import second_order as plain
from tfa.reference.database import Pca, l2


def descriptors(images, seed=0, width=10):
    rng = np.random.default_rng(seed)
    return l2(rng.normal(size=(images, width)) + 0.8)


DATABASE = descriptors(20)
QUERIES = descriptors(30, seed=1)
PCA = Pca.fit(DATABASE)


def test_blend_is_the_mean_of_two_carriers_over_their_spread():
    parts = []
    for carrier in ("original", "partial"):
        among = plain.scores(carrier, PCA, DATABASE, DATABASE, 0.0, 0.0)
        sigma = np.median([np.delete(row, i).std() for i, row in enumerate(among)])
        assert plain.sigma(carrier, PCA, DATABASE, 0.0, 0.0) == pytest.approx(sigma)
        parts.append(plain.scores(carrier, PCA, QUERIES, DATABASE, 0.0, 0.0) / sigma)
    blend = plain.scores("blend", PCA, QUERIES, DATABASE, 0.0, 0.0)
    np.testing.assert_allclose(blend, (parts[0] + parts[1]) / 2, atol=1e-12)


def test_full_whitening_makes_axes_equal():
    scores = plain.scores("full", PCA, QUERIES, DATABASE, 0.3, 0.2)
    whitened = l2(PCA.coordinates(QUERIES) / np.sqrt(PCA.eigenvalues))
    np.testing.assert_allclose(scores, whitened @ l2(PCA.coordinates(DATABASE) / np.sqrt(PCA.eigenvalues)).T)


def test_adaptive_at_zero_strength_is_original():
    np.testing.assert_allclose(plain.scores("adaptive", PCA, QUERIES, DATABASE, 0.0, 0.0), QUERIES @ DATABASE.T)


def test_target_mean_has_eight_pseudo_counts_at_the_database_mean():
    expected = (30 * QUERIES.mean(axis=0) + 8 * PCA.mean) / 38
    np.testing.assert_allclose(plain.target_mean(PCA, QUERIES), expected)
    np.testing.assert_allclose(plain.target_mean(PCA, QUERIES[:0]), PCA.mean)


def test_centring_on_the_database_mean_changes_nothing_and_a_common_shift_is_taken_out():
    partial = PCA.whitened(QUERIES, DATABASE, 0.5)
    np.testing.assert_allclose(plain.whitened_from(PCA.mean, PCA, QUERIES, DATABASE, 0.5), partial)
    shift = np.linspace(-0.3, 0.3, 10)
    found = plain.whitened_from(PCA.mean + shift, PCA, QUERIES + shift, DATABASE, 0.5)
    np.testing.assert_allclose(found, partial, atol=1e-12)


def test_the_first_photo_of_a_stream_gets_the_database_only_answer_and_later_ones_are_centred():
    rows = plain.online_scores(PCA, QUERIES, DATABASE)
    np.testing.assert_allclose(rows[0], PCA.whitened(QUERIES[:1], DATABASE, 0.5)[0])
    # Photo 2 is centred on both before it, the first of which has decayed, over their weights and two pseudo-counts;
    # U has orthonormal columns, so in coordinates as in descriptors.
    decay = 31 / 32
    mean = PCA.mean + (decay * (QUERIES[0] - PCA.mean) + (QUERIES[1] - PCA.mean)) / (decay + 3)
    np.testing.assert_allclose(rows[2], plain.whitened_from(mean, PCA, QUERIES[2:3], DATABASE, 0.5)[0], atol=1e-12)


def test_a_stream_is_causal_and_a_photo_seen_twice_counts_once():
    changed, twice = QUERIES.copy(), QUERIES.copy()
    changed[20], twice[6] = DATABASE[0], QUERIES[5]
    one, other, still = (plain.online_scores(PCA, q, DATABASE) for q in (QUERIES, changed, twice))
    np.testing.assert_array_equal(one[:20], other[:20])
    assert not np.allclose(one[21:], other[21:])
    without = plain.online_scores(PCA, np.delete(twice, 6, axis=0), DATABASE)
    np.testing.assert_allclose(np.delete(still, 6, axis=0), without)


def test_a_bias_of_scores_has_no_mean_and_lowers_what_is_always_high():
    rows = np.random.default_rng(2).normal(size=(40, 5))
    rows[:, 3] += 2
    bias = plain.online_bias(rows)
    assert bias.mean() == pytest.approx(0)
    assert bias.argmin() == 3


def test_score_bias_drops_the_largest_entries_by_hand():
    # Of 21 rows ⌈1.05⌉ = 2 are dropped: the two 9s of the first column.
    rows = np.zeros((21, 2))
    rows[[3, 8], 0] = 9
    rows[:, 1] = math.log(3)
    np.testing.assert_allclose(plain.score_bias(rows), [0, math.log(3)], atol=1e-12)


def test_directions_without_a_drawn_patch_are_orthonormal():
    images = [np.random.default_rng(i).normal(size=(4, 5)) for i in range(12)]
    for s in range(3):
        found = plain.directions(images, s, max_patches=1)
        np.testing.assert_allclose(found @ found.T, np.eye(5), atol=1e-12)
