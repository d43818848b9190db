"""Robust score calibration: the level of a column, and biases of images that come later."""

import numpy as np
import pytest

from tests.worlds import seen_again, world
from tfa.method.scorer import calibrate_scorer, compute_row_bias, join_scorers, usual_scores
from tfa.pipeline import fit
from tfa.types import HeadSpec


def test_level_by_hand():
    # Five rows: ⌈5 % of 5⌉ = 1 largest entry of each column is dropped.
    scores = np.array([[0.0, 9], [0, 1], [0, 1], [0, 1], [7, 1]])
    np.testing.assert_allclose(usual_scores(scores), [0, 1])
    np.testing.assert_allclose(usual_scores(np.array([[1.0], [3.0]])), [1])
    many = np.random.default_rng(0).normal(size=(64, 3))
    expected = np.log(np.exp(np.sort(many, axis=0)[:60]).mean(axis=0))
    np.testing.assert_allclose(usual_scores(many), expected)


@pytest.mark.parametrize("rows", [2, 20, 64, 100, 257])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_level_is_that_of_sorted_columns(rows, dtype):
    scores = np.random.default_rng(rows).normal(size=(rows, 50)).astype(dtype)
    scores[:, :10] = scores[:, :10].round(1)  # ties at the cut
    kept = np.sort(scores.astype(np.float64), axis=0)[: rows - int(np.ceil(0.05 * rows))]
    expected = kept[-1] + np.log(np.exp(kept - kept[-1]).mean(axis=0))
    np.testing.assert_allclose(usual_scores(scores), expected, rtol=0, atol=1e-14)


def test_no_overflow():
    assert np.isfinite(usual_scores(np.full((20, 2), 1e4))).all()


def test_a_hub_is_biased_more_than_a_place_one_photo_shows():
    scores = np.zeros((64, 3))
    scores[:, 0] = 3.0  # a hub: every photo likes it
    scores[5, 1] = 9.0  # a place that one calibration photo shows
    level = usual_scores(scores)
    assert level[0] > level[1] + 2
    assert level[1] == pytest.approx(level[2])


@pytest.mark.parametrize("ensemble", [False, True])
def test_calibrated_scores_are_the_formula_and_compile(ensemble):
    database, target, queries = world(20), seen_again(world(20), 3), seen_again(world(20), 4)
    head = fit(database, HeadSpec(words=6), dtype="float64")
    sigma = [1.5, 2.0, 0.7]
    members = [calibrate_scorer(head.scorer(s), sigma[s], target) for s in range(3)]
    scorer = join_scorers(members) if ensemble else members[0]
    expected = sum(
        head.scores(queries, s) / sigma[s] - usual_scores(head.scores(target, s) / sigma[s])
        for s in (range(3) if ensemble else [0])
    )
    np.testing.assert_allclose(scorer.scores(queries), expected, atol=1e-9)
    compiled = scorer.compile()
    np.testing.assert_allclose(compiled.query(queries) @ compiled.database.T + compiled.bias, expected, atol=1e-9)
    # An image of the database, added again, gets the bias it has.
    rows = [part.gallery.chunks[0][4:9] for part in scorer.terms]
    np.testing.assert_allclose(compute_row_bias(scorer, rows), scorer.bias[4:9], atol=1e-9)
