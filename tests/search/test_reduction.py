"""Reduced vectors: their products are scores, their directions the best there are, their moments those of the rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfa.errors import BadSpec
from tfa.reference.reduction import reduced_scores, row_mean_and_spread
from tfa.search.reduced import Moments, fit_reduction, fit_reduction_by_products, fixed_rotation

IMAGES, WIDTH, QUERIES = 60, 24, 7


@pytest.fixture
def world():
    rng = np.random.default_rng(0)
    images = rng.standard_normal((IMAGES, WIDTH)) * np.arange(1, WIDTH + 1) ** -0.6
    return images, rng.normal(0.3, 1, IMAGES), rng.standard_normal((QUERIES, WIDTH))


def both(images, dims, bias):
    """By the second moment, and by the products of images."""
    yield fit_reduction(images.T @ images, dims, bias.mean())
    yield fit_reduction_by_products(images, dims, bias.mean())


def scores_of(reduction, images, bias, queries):
    return reduction.of_queries(queries) @ reduction.of_images(images, bias).T + reduction.mean_bias


@pytest.mark.parametrize("dims", [WIDTH + 1, WIDTH + 9])
def test_with_as_many_numbers_as_there_are_the_score_stays_what_it_is(world, dims):
    images, bias, queries = world
    for reduction in both(images, dims, bias):
        assert reduction.dims == dims
        np.testing.assert_allclose(scores_of(reduction, images, bias, queries), queries @ images.T + bias, atol=2e-5)


@pytest.mark.parametrize("dims", [2, 5, 13, WIDTH])
def test_scores_are_those_of_the_plain_formula(world, dims):
    images, bias, queries = world
    expected = reduced_scores(queries, images, bias, dims)
    for reduction in both(images, dims, bias):
        np.testing.assert_allclose(scores_of(reduction, images, bias, queries), expected, atol=2e-5)


@pytest.mark.parametrize("dims", [2, 6, 17])
def test_it_is_the_best_approximation_of_its_rank(world, dims):
    """Eckart and Young: what is left of the images is the norm of the singular values that were not kept."""
    images = world[0]
    left = np.linalg.svd(images, compute_uv=False)[dims - 1 :]
    for reduction in both(images, dims, np.zeros(IMAGES)):
        matrix = reduction.matrix.astype(np.float64)
        kept = images @ matrix.T @ matrix
        assert np.linalg.norm(images - kept) == pytest.approx(np.linalg.norm(left), rel=1e-5)


def test_fewer_images_than_numbers_have_fewer_directions(world):
    images, bias, queries = world[0][:5], world[1][:5], world[2]
    for reduction in both(images, 12, bias):
        np.testing.assert_allclose(scores_of(reduction, images, bias, queries), queries @ images.T + bias, atol=2e-5)


def test_a_vector_is_reduced_the_same_alone_and_in_a_batch(world):
    images, _, queries = world
    reduction = fit_reduction(images.T @ images, 9).in_half
    together = reduction.of_queries(queries)
    for row, query in enumerate(queries):
        np.testing.assert_array_equal(reduction.of_queries(query[None])[0], together[row])


def test_halves_lose_little(world):
    images, bias, queries = world
    reduction = fit_reduction(images.T @ images, WIDTH + 1, bias.mean()).in_half
    assert reduction.matrix.dtype == np.float16
    np.testing.assert_allclose(scores_of(reduction, images, bias, queries), queries @ images.T + bias, atol=1e-2)


@pytest.mark.parametrize("dims", [2, 17, 64])
def test_the_rotation_is_orthogonal_and_always_the_same(dims):
    rotation = fixed_rotation(dims)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(dims), atol=1e-12)
    fixed_rotation.cache_clear()
    np.testing.assert_array_equal(fixed_rotation(dims), rotation)


def test_the_rotation_spreads_what_is_large(world):
    """A bias far larger than the scores would take the range of an int8 row for itself."""
    images, _, _ = world
    rows = fit_reduction(images.T @ images, 25).of_images(images, np.full(IMAGES, 50.0))
    assert (np.abs(rows).max(axis=1) < 0.7 * np.linalg.norm(rows, axis=1)).all()


def test_too_few_numbers_are_refused(world):
    for fit in (lambda: fit_reduction(np.eye(3), 1), lambda: fit_reduction_by_products(np.eye(3), 1)):
        with pytest.raises(BadSpec, match="dims=1 is out of range"):
            fit()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.floats(0, 100), st.integers(0, 1000))
def test_mean_and_spread_are_those_of_the_whole_row(count, width, offset, seed):
    rng = np.random.default_rng(seed)
    vectors, queries = rng.standard_normal((count, width)) + offset, rng.standard_normal((5, width))
    mean, spread = Moments.of(vectors).mean_and_spread(queries)
    expected = row_mean_and_spread(queries @ vectors.T)
    scale = 1 + offset
    np.testing.assert_allclose(mean, expected[0], atol=1e-9 * scale)
    # A variance is a difference of squares: what is left of rounding, after the root, where a row does not vary.
    np.testing.assert_allclose(spread**2, expected[1] ** 2, atol=1e-12 * scale**2 * 100)


def test_mean_and_spread_to_nine_digits(world):
    images, bias, queries = world
    reduction = fit_reduction(images.T @ images, 13, bias.mean())
    rows, small = reduction.of_images(images, bias).astype(np.float64), reduction.of_queries(queries).astype(np.float64)
    mean, spread = Moments.of(rows).mean_and_spread(small)
    full = small @ rows.T
    np.testing.assert_allclose(mean, full.mean(axis=1), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(spread, full.std(axis=1), rtol=1e-9)
    alone = [Moments.of(rows).mean_and_spread(one[None]) for one in small]
    # Alone as beside others, but for the order in which a product adds up, which is the processor's.
    np.testing.assert_allclose(np.concatenate([one[1] for one in alone]), spread, rtol=1e-14)


def test_moments_add_up_and_are_taken_off(world):
    images, _, queries = world
    whole, first, second = Moments.of(images), Moments.of(images[:20]), Moments.of(images[20:])
    for same in (first + second, Moments.total([first, second]), Moments.total(iter([second, first]))):
        assert same.count == IMAGES
        np.testing.assert_allclose(same.mean_and_spread(queries), whole.mean_and_spread(queries), rtol=1e-9)
    np.testing.assert_allclose((whole - second).mean_and_spread(queries), first.mean_and_spread(queries), rtol=1e-9)
    assert first.count == 20  # adding up changed none of the parts
    np.testing.assert_array_equal(first.first, images[:20].sum(axis=0))


def test_moments_of_nothing_are_nothing(world):
    mean, spread = Moments.of(np.empty((0, WIDTH))).mean_and_spread(world[2])
    assert mean.tolist() == spread.tolist() == [0.0] * QUERIES
