"""Exact and reduced search return the k best rows; a gallery reads only the requested rows."""

import numpy as np
import pytest

from tfa.errors import BadSpec
from tfa.search.gallery import ExactSearch, Gallery, QueryVectors, WeightedGalleries, find_duplicates, top_k
from tfa.search.quantized import round_rows
from tfa.search.reduced import ReducedSearch, fit_reduced

DIMENSIONS, IMAGES, QUERIES, K = 48, 300, 17, 10


def gather_rows(vectors, bias):
    vectors, bias = np.ascontiguousarray(vectors, np.float32), np.asarray(bias, np.float32)
    same = find_duplicates(vectors, bias[:, None]) if len(vectors) else None
    return WeightedGalleries((1.0,), (Gallery.of(vectors),), bias, same)


def exact(vectors, bias, ids):
    return ExactSearch(gather_rows(vectors, bias), ids)


def reduced(vectors, bias, ids):
    """With as many dimensions as there are, so that nothing is missed."""
    rows = gather_rows(vectors, bias)
    return ReducedSearch(rows, ids, None, fit_reduced(rows, DIMENSIONS + 1))


@pytest.fixture(params=[exact, reduced])
def create(request):
    return request.param


@pytest.fixture
def world():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((IMAGES, DIMENSIONS)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = vectors[:QUERIES] + 0.1 * rng.standard_normal((QUERIES, DIMENSIONS)).astype(np.float32)
    bias = rng.normal(0, 1, IMAGES).astype(np.float32)  # as large as the scores themselves
    ids = rng.permutation(10 * IMAGES)[:IMAGES].astype(np.int64)
    return vectors, bias, ids, queries


def check(searcher, vectors, bias, ids, queries, k=K):
    """Compare with the definition: every score in float64, ties to the smaller id."""
    result, order = searcher.search(queries, k), np.argsort(ids)
    scores = queries.astype(np.float64) @ vectors[order].astype(np.float64).T + bias[order]
    columns, best = top_k(scores, k)
    np.testing.assert_array_equal(result.ids, ids[order][columns])
    np.testing.assert_allclose(result.scores, best, atol=1e-6 * max(1, np.abs(best).max()))


def test_the_best_are_those_of_the_definition(create, world):
    check(create(*world[:3]), *world)


def test_mean_and_spread_are_of_all_scores(create, world):
    vectors, bias, _, queries = world
    result = create(*world[:3]).search(queries, 1)
    scores = queries.astype(np.float64) @ vectors.T.astype(np.float64) + bias
    np.testing.assert_allclose(result.mean, scores.mean(axis=1), atol=5e-3)
    np.testing.assert_allclose(result.spread, scores.std(axis=1), rtol=1e-2)


def test_more_than_there_are_is_all_there_are(create, world):
    vectors, bias, ids, queries = world
    searcher = create(vectors[:4], bias[:4], ids[:4])
    check(searcher, vectors[:4], bias[:4], ids[:4], queries, k=4)
    assert len(searcher) == 4
    assert searcher.search(queries, 99).ids.shape == (QUERIES, 4)


def test_ties_go_to_the_smaller_id(create, world):
    vectors, _, _, queries = world
    same = np.repeat(vectors[:1], 5, axis=0)
    searcher = create(same, np.zeros(5, np.float32), np.array([40, 7, 23, 9, 11]))
    assert searcher.search(queries[:1], 5).ids.tolist() == [[7, 9, 11, 23, 40]]


def test_a_query_is_answered_the_same_alone_and_in_a_batch(create, world):
    searcher, queries = create(*world[:3]), world[3]
    together = searcher.search(queries, K)
    for index, query in enumerate(queries):
        alone = searcher.search(query[None], K)
        np.testing.assert_array_equal(alone.ids[0], together.ids[index])
        np.testing.assert_array_equal(alone.scores[0], together.scores[index])


def test_query_vectors_are_their_direct_sum(create, world):
    searcher, queries = create(*world[:3]), world[3]
    result = searcher.search(QueryVectors((queries,), (1.0,)), K)
    np.testing.assert_array_equal(result.ids, searcher.search(queries, K).ids)


def test_rows_that_are_not_alive_are_not_found(world):
    vectors, bias, ids, queries = world
    rows, alive = gather_rows(vectors, bias), np.arange(100, IMAGES)
    for searcher in (
        ExactSearch(rows, ids[alive], alive),
        ReducedSearch(rows, ids[alive], alive, fit_reduced(rows, 49)),
    ):
        check(searcher, vectors[alive], bias[alive], ids[alive], queries)
    nothing = np.empty(0, np.int64)
    for searcher in (ExactSearch(rows, nothing, nothing), ReducedSearch(rows, nothing, nothing, fit_reduced(rows, 49))):
        assert searcher.search(queries, K).ids.shape == (QUERIES, 0)


def test_no_queries_are_no_answers(create, world):
    assert create(*world[:3]).search(np.empty((0, DIMENSIONS), np.float32), K).ids.shape == (0, K)


def test_what_does_not_fit_is_refused(create, world):
    vectors, bias, ids, queries = world
    searcher = create(vectors, bias, ids)
    with pytest.raises(BadSpec, match="shape"):
        searcher.search(queries[:, :5], K)
    with pytest.raises(BadSpec, match="k=0"):
        searcher.search(queries, 0)
    for k in (1.5, True, float("nan"), "3", None):
        with pytest.raises(BadSpec, match=r"k=.* is .*, must be int"):
            searcher.search(queries, k)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_of_floats_with_near_ties_are_ordered_by_exact_scores(dtype):
    rng = np.random.default_rng(1)
    base = rng.standard_normal((1, 64))
    rows = (base + 1e-4 * rng.standard_normal((700, 64))).astype(dtype)
    queries = (base + 0.1 * rng.standard_normal((10, 64))).astype(np.float32)
    held = WeightedGalleries((1.0,), (Gallery.of(*np.array_split(rows, 3)),), np.zeros(700))
    result = ExactSearch(held, np.arange(700)).search(queries, K)
    scores = queries.astype(np.float64) @ rows.astype(np.float64).T
    np.testing.assert_allclose(result.scores, top_k(scores, K)[1], rtol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(scores, result.ids, axis=1), result.scores, rtol=1e-6)


def test_terms_and_their_direct_sum_give_the_same_scores():
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((40, 6)).astype(np.float32), rng.standard_normal((40, 3)).astype(np.float32)
    weights = (0.7, 2.5)
    rows = WeightedGalleries(weights, (Gallery.of(first), Gallery.of(second)), rng.normal(size=40))
    flat = np.concatenate([first * np.sqrt(0.7), second * np.sqrt(2.5)], axis=1).astype(np.float32)
    queries = rng.standard_normal((5, 9)).astype(np.float32)
    held, plain = ExactSearch(rows, np.arange(40)), exact(flat, rows.bias, np.arange(40))
    np.testing.assert_allclose(held.scores(queries), plain.scores(queries), atol=1e-5)
    np.testing.assert_array_equal(held.search(queries, 4).ids, plain.search(queries, 4).ids)


@pytest.mark.parametrize("store", [np.asarray, lambda r: r.astype(np.float16), round_rows], ids=["f32", "f16", "int8"])
def test_a_gallery_reads_the_rows_it_is_asked_for_from_any_chunk(store):
    rng = np.random.default_rng(1)
    pieces = [store(rng.standard_normal((n, 8)).astype(np.float32)) for n in (3, 1, 4)]
    whole = np.concatenate([np.asarray(piece, np.float32) for piece in pieces])
    gallery = Gallery.of(*pieces[:2]).appended(pieces[2])
    assert len(gallery) == 8
    assert gallery.width == 8
    np.testing.assert_array_equal(gallery.take([7, 0, 3, 3]), whole[[7, 0, 3, 3]])
    assert gallery.between(0, 3) is pieces[0]
    np.testing.assert_array_equal(np.asarray(gallery.between(2, 6), np.float32), whole[2:6])
    assert gallery.between(8, 9) is None
    queries = rng.standard_normal((5, 8)).astype(np.float32)
    np.testing.assert_allclose(gallery.inner(queries), queries @ whole.T, atol=2e-3)
    computed = [(pieces[0], np.full((5, 3), 9.0, np.float32))]
    assert (gallery.inner(queries, computed)[:, :3] == 9).all()
