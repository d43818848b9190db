"""What patches have in the score of a second-order head: sums, derivatives by patch weights, and edge cases."""

import dataclasses

import numpy as np
import pytest

from tests.explain.test_why import local_score
from tests.worlds import seen_again, world
from tfa.core.tokens import Tokens
from tfa.explain.shares import SecondOrderSpread, attribute, log_differences
from tfa.explain.why import term_name
from tfa.method.carriers import MEAN
from tfa.method.second_order import COVARIANCE_RIDGE, half_vector
from tfa.pipeline import fit_second_order

CARRIERS = ["original", "partial", "adaptive", "blend", "full"]


def scorer_of(carrier, replica=0, shift=False, dtype="float32"):
    scorer = fit_second_order(world(), carrier, dtype=dtype).scorer(replica)
    if not shift:
        return scorer
    rng = np.random.default_rng(5)
    sides = [dataclasses.replace(one, shift=0.02 * rng.normal(size=len(one.eigenvalues))) for one in scorer.sides]
    return dataclasses.replace(scorer, sides=tuple(sides), bias=rng.normal(size=len(scorer.bias)))


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("replica", [0, "ensemble"])
@pytest.mark.parametrize("carrier", CARRIERS)
def test_patches_add_up_to_every_term(carrier, replica, shift):
    tokens, queries = world(), seen_again(world())
    scorer = scorer_of(carrier, replica, shift)
    for query, row in ((0, 0), (3, 7)):
        asked = queries.select([query])
        found = attribute(scorer, asked, tokens.select([row]), row)
        assert found.score == pytest.approx(float(scorer.scores(asked)[0, row]), rel=1e-4, abs=1e-5)
        for one in found.terms:
            assert (one.query is None) == (one.image is None) == (one.term.gamma == MEAN)
            if one.query is not None:
                for table in (one.query, one.image):
                    assert table.shape == (12, 1)
                    assert table.sum() == pytest.approx(one.contribution, rel=1e-9, abs=1e-12)
                # Nothing but float32 rounding is left to be shared out.
                assert np.abs(one.residue).max() < 1e-4 * one.term.weight
        for of in ("query", "image"):
            assert found.patches(of).sum() == pytest.approx(local_score(found), rel=1e-6, abs=1e-9)
            assert found.words(of) == {}
        assert found.linearized
        assert found.nearest == {}
        shared = sum(one.contribution for one in found.terms if one.term.gamma == MEAN)
        assert (shared != 0) == any(term.gamma is None for term in scorer.terms)


def weighted_score(scorer, patches, weights, row):
    """The score of a photo whose patches have weights, less what every image has of it: from the formulas."""
    [side] = scorer.sides
    unit = patches / np.linalg.norm(patches, axis=1, keepdims=True)
    unit = unit - weights @ unit / weights.sum()
    projected = unit @ side.patch_directions.T
    scale = len(patches) / weights.sum() / (len(patches) - 1)
    covariance = scale * (projected.T * weights) @ projected + COVARIANCE_RIDGE * np.eye(projected.shape[1])
    values, vectors = np.linalg.eigh(covariance)
    descriptor = half_vector((vectors * np.log(values)) @ vectors.T)
    coordinates = side.axes @ (descriptor / np.linalg.norm(descriptor) - side.mean) - side.shift
    score = 0.0
    for term in scorer.terms:
        feature = coordinates + side.axes @ side.mean
        if isinstance(term.gamma, float):
            feature = coordinates * side.eigenvalues ** (-term.gamma / 2)
            feature = feature / np.linalg.norm(feature)
        if term.gamma != MEAN:
            score += term.weight * float(feature @ term.gallery.take([row])[0])
    return score


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_patch_has_more_than_another_by_what_its_weight_changes(carrier):
    tokens, queries = world(), seen_again(world())
    scorer = scorer_of(carrier, shift=True, dtype="float64")
    found = attribute(scorer, queries.select([2]), tokens.select([5]), 5)
    patches, step = np.asarray(queries.patches[2], np.float64), 1e-4
    slopes = np.empty(len(patches))
    for patch, changed in enumerate(np.eye(len(patches))):
        up, down = (weighted_score(scorer, patches, 1 + sign * step * changed, 5) for sign in (1, -1))
        slopes[patch] = (up - down) / (2 * step)
    assert slopes.sum() == pytest.approx(0, abs=1e-6)  # twice the weight of all is no change
    score = weighted_score(scorer, patches, np.ones(len(patches)), 5)
    assert score == pytest.approx(local_score(found), rel=1e-6)
    assert slopes.std() > 1e-5
    np.testing.assert_allclose(found.patches("query"), score / len(patches) + slopes, atol=2e-5 * np.abs(slopes).max())


def test_derivatives_of_the_logarithm_are_safe_for_equal_and_nearly_equal_eigenvalues():
    values = np.array([COVARIANCE_RIDGE, COVARIANCE_RIDGE, COVARIANCE_RIDGE * (1 + 1e-13), 0.5])
    found = log_differences(values)
    np.testing.assert_allclose(found[:3, :3], 1 / COVARIANCE_RIDGE, rtol=1e-9)
    np.testing.assert_allclose(found[3, 0], np.log(0.5 / COVARIANCE_RIDGE) / (0.5 - COVARIANCE_RIDGE), rtol=1e-12)
    np.testing.assert_allclose(found, found.T, rtol=1e-12)


@pytest.mark.parametrize("patches", [np.ones((1, 6)), np.ones((5, 6)), np.zeros((4, 6))])
def test_photos_without_spread_share_evenly(patches):
    scorer = scorer_of("blend")
    found = attribute(scorer, Tokens(patches[None]), world().select([3]), 3)
    shares = found.patches("query")
    np.testing.assert_allclose(shares, local_score(found) / len(patches), rtol=1e-6)
    assert np.isfinite(found.patches("image")).all()
    assert not SecondOrderSpread.of(patches, scorer.sides[0], "float32").parts[0].projected.any()


def test_terms_are_named():
    scorer = scorer_of("blend")
    assert [term_name(scorer, term) for term in scorer.terms] == [
        "second-order, original",
        "second-order, shared by all images",
        "second-order, whitened (γ = 0.50)",
    ]
    several = scorer_of("adaptive", "ensemble")
    assert term_name(several, several.terms[-1], True).endswith(", construction 3")
    assert "centered" in {term_name(several, term).split(", ")[1] for term in several.terms}
