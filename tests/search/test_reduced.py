"""Reduced search: exact rescoring, statistics from moments, and bounded reads."""

import numpy as np
import pytest

from tfa.search.gallery import ExactSearch, Gallery, WeightedGalleries
from tfa.search.quantized import QuantizedRows, round_rows
from tfa.search.reduced import AGAIN, ReducedSearch, fit_reduced

IMAGES, WIDTHS, DIMS = 400, (40, 24), 16
WEIGHTS = (0.7, 1.6)


@pytest.fixture
def galleries():
    """Two terms of integers in two chunks, places of four photos each, a bias as large as the scores."""
    rng = np.random.default_rng(0)
    terms = []
    for width in WIDTHS:
        places = rng.standard_normal((IMAGES // 4, width)) * np.arange(1, width + 1) ** -0.4
        rows = (np.repeat(places, 4, axis=0) + 0.2 * rng.standard_normal((IMAGES, width))).astype(np.float32)
        terms.append(Gallery.of(round_rows(rows[:300]), round_rows(rows[300:])))
    return WeightedGalleries(WEIGHTS, tuple(terms), rng.normal(0, 1, IMAGES))


def weighted(galleries):
    return zip(WEIGHTS, galleries.galleries, strict=True)


@pytest.fixture
def queries(galleries):
    rng = np.random.default_rng(1)
    rows = np.concatenate([np.sqrt(w) * g.take(np.arange(0, 200, 9)) for w, g in weighted(galleries)], 1)
    return (rows + 0.1 * rng.standard_normal(rows.shape)).astype(np.float32)


def searchers(galleries, alive=None, dims=DIMS):
    ids = np.arange(IMAGES)[::-1] * 3 if alive is None else alive * 3
    return ExactSearch(galleries, ids, alive), ReducedSearch(galleries, ids, alive, fit_reduced(galleries, dims))


def test_what_is_found_has_the_score_of_an_exhaustive_search_to_the_last_bit(galleries, queries):
    exact, reduced = searchers(galleries)
    expected, found = exact.search(queries, 5), reduced.search(queries, 5)
    np.testing.assert_array_equal(found.ids, expected.ids)  # sixteen numbers are enough to have them among the hundred
    np.testing.assert_array_equal(found.scores, expected.scores)


def test_few_numbers_miss_what_is_not_among_the_hundred(galleries, queries):
    """The search is not exhaustive: with two numbers an image, the bias is all that it sees."""
    exact, reduced = searchers(galleries, dims=2)
    expected, found = exact.search(queries, 20), reduced.search(queries, 20)
    assert (found.ids != expected.ids).any()
    assert (np.diff(found.scores, axis=1) <= 0).all()


def test_all_are_scored_again_where_all_are_wanted(galleries, queries):
    exact, reduced = searchers(galleries, dims=2)
    expected, found = exact.search(queries, IMAGES), reduced.search(queries, IMAGES)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.scores, expected.scores)


def test_mean_and_spread_are_those_of_the_reduced_rows(galleries, queries):
    _, reduced = searchers(galleries)
    result, rows = reduced.search(queries, 1), np.asarray(reduced.reduced.rows.take(np.arange(IMAGES)), np.float64)
    small = reduced.reduced.reduction.of_queries(np.asarray(galleries.split_terms(queries)))
    scores = small.astype(np.float64) @ rows.T + galleries.bias.mean()
    np.testing.assert_allclose(result.mean, scores.mean(axis=1), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(result.spread, scores.std(axis=1), rtol=1e-9)


def test_with_all_directions_mean_and_spread_are_those_of_the_scores(galleries, queries):
    exact, reduced = searchers(galleries, dims=sum(WIDTHS) + 1)
    expected, found = exact.search(queries, 1), reduced.search(queries, 1)
    np.testing.assert_allclose(found.mean, expected.mean, atol=5e-3 * expected.spread.max())
    np.testing.assert_allclose(found.spread, expected.spread, rtol=2e-3)


@pytest.mark.parametrize("alive", [np.arange(40, 390), np.arange(0, IMAGES, 5)], ids=["most", "few"])
def test_images_that_are_gone_and_copies_count_as_in_an_exhaustive_search(galleries, queries, alive):
    same = np.arange(IMAGES)
    same[[60, 61, 310, 350]] = [41, 41, 300, 0]  # of photos of one content
    tied = WeightedGalleries(galleries.weights, galleries.galleries, galleries.bias, same)
    exact, reduced = searchers(tied, alive, dims=sum(WIDTHS) + 1)
    expected, found = exact.search(queries, 7), reduced.search(queries, 7)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.scores, expected.scores)
    np.testing.assert_allclose(found.mean, expected.mean, atol=5e-3 * expected.spread.max())
    np.testing.assert_allclose(found.spread, expected.spread, rtol=2e-3)


def test_copies_tie_and_the_first_wins(galleries):
    same = np.zeros(IMAGES, np.int64)
    tied = WeightedGalleries(galleries.weights, galleries.galleries, galleries.bias, same)
    result = searchers(tied)[1].search(np.ones((1, sum(WIDTHS)), np.float32), 3)
    assert result.ids.tolist() == [[0, 3, 6]]
    assert len(set(result.scores[0].tolist())) == 1


def test_only_the_rows_that_are_scored_again_are_read(galleries, queries, monkeypatch):
    _, reduced = searchers(galleries)
    reduced.prepare()
    read = []
    plain = QuantizedRows.inner
    monkeypatch.setattr(QuantizedRows, "inner", lambda self, f: read.append((self.width, len(self))) or plain(self, f))
    reduced.search(queries[:1], 10)
    full = [rows for width, rows in read if width != DIMS]
    assert sum(full) == len(WIDTHS) * AGAIN
    assert sum(rows for width, rows in read if width == DIMS) == IMAGES


def test_a_new_chunk_leaves_the_others_and_their_moments_in_place(galleries):
    start = WeightedGalleries(
        WEIGHTS, tuple(Gallery.of(g.chunks[0]) for g in galleries.galleries), galleries.bias[:300]
    )
    reduced = fit_reduced(start, DIMS)
    known = reduced.moments()[0]
    grown = reduced.with_rows(galleries)
    assert grown.rows.chunks[0] is reduced.rows.chunks[0]
    assert grown.moments()[0] is known
    assert len(grown) == IMAGES
    again = ReducedSearch(galleries, np.arange(IMAGES), None, grown)
    vectors = np.concatenate([np.sqrt(w) * g.take([350]) for w, g in weighted(galleries)], 1)
    assert again.search(vectors.astype(np.float32), 4).ids.shape == (1, 4)


def test_a_tall_gallery_is_fitted_by_its_second_moment_and_a_wide_one_by_products(galleries, monkeypatch):
    queries = np.random.default_rng(2).standard_normal((9, sum(WIDTHS))).astype(np.float32)
    tall = fit_reduced(galleries, DIMS).reduction.of_queries(queries)
    monkeypatch.setattr("tfa.search.reduced._LARGEST", sum(WIDTHS) - 1)
    few = fit_reduced(galleries, DIMS).reduction.of_queries(queries)
    assert not np.allclose(few, tall, atol=1e-3)  # of 63 images
    wide = WeightedGalleries(
        WEIGHTS, tuple(Gallery.of(g.chunks[0][:50]) for g in galleries.galleries), galleries.bias[:50]
    )
    assert fit_reduced(wide, DIMS).reduction.dims == DIMS
