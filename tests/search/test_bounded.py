"""Coarse scores prove their k best: the same images, in the same order, as an exhaustive search."""

import numpy as np
import pytest

from tfa.search.bounded import BoundedEngine, BoundedRows
from tfa.search.engine import QueryVectors
from tfa.search.exact import WeightedGalleries
from tfa.search.gallery import Gallery
from tfa.search.ties import top_k

K = 10


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def random(rng, rows=700, width=64):
    return unit(rng.standard_normal((rows, width)))


def clustered(rng):
    return unit(np.repeat(random(rng, 70), 10, axis=0) + 0.05 * rng.standard_normal((700, 64)))


def duplicated(rng):
    return np.repeat(random(rng, 35), 20, axis=0)


def nearly_tied(rng):
    """Rows that differ by less than their rounding to integers."""
    return unit(random(rng, 1) + 1e-4 * rng.standard_normal((700, 64)))


def one_large_entry(rng):
    """The largest entry sets the step, which is coarse for all others."""
    rows = 0.01 * rng.standard_normal((700, 64))
    rows[:, 0] = 1
    return unit(rows)


WORLDS = [random, clustered, duplicated, nearly_tied, one_large_entry]


def rows_of(*galleries, bias=None, duplicates=None, weights=None, dtype="float32"):
    chunked = tuple(Gallery.of(*np.array_split(gallery.astype(dtype), 3)) for gallery in galleries)
    bias = np.zeros(len(galleries[0])) if bias is None else bias
    return WeightedGalleries(tuple(weights or [1.0] * len(galleries)), chunked, bias, duplicates)


def engine_of(rows, alive=None):
    alive = np.arange(len(rows)) if alive is None else alive
    return BoundedEngine(rows, alive, alive)


def vectors_of(rows, *features):
    return QueryVectors(features, rows.weights)


def exhaustive(rows, features, alive=None):
    """Scores from every row in float64, then in float32: rows that differ by less tie."""
    total = np.zeros((len(features[0]), len(rows.bias))) + rows.bias
    for weight, gallery, queries in zip(rows.weights, rows.galleries, features, strict=True):
        every = np.concatenate([np.asarray(chunk, np.float64) for chunk in gallery.chunks])
        for query in range(len(queries)):
            total[query] += weight * (every * queries[query]).sum(axis=1)
    total = total.astype(np.float32)
    total = total if rows.duplicates is None else total[:, rows.duplicates]
    return total if alive is None else total[:, alive]


def same_best(rows, features, alive=None, k=K):
    scores = engine_of(rows, alive).scores(vectors_of(rows, *features), k)
    indices, best = top_k(scores, k)
    expected = exhaustive(rows, features, alive)
    np.testing.assert_array_equal(indices, top_k(expected, k)[0])
    np.testing.assert_array_equal(best, top_k(expected, k)[1])
    return scores, expected


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("world", WORLDS)
def test_the_best_are_those_of_an_exhaustive_search(world, dtype):
    rng = np.random.default_rng(1)
    rows = world(rng)
    near = unit(rows[rng.integers(0, 700, 10)] + 0.1 * rng.standard_normal((10, 64)))
    queries = np.concatenate([near, rows[:5], random(rng, 10)])
    held = rows_of(rows, dtype=dtype)
    scores, expected = same_best(held, [queries])
    # The same search by one float32 product: equal but where scores differ by its rounding.
    plain = held.scores(vectors_of(held, queries))
    np.testing.assert_allclose(top_k(plain, K)[1], top_k(scores, K)[1], atol=1e-6)
    np.testing.assert_allclose(scores.std(axis=1), expected.std(axis=1), rtol=1e-2, atol=2e-4)


def test_several_terms_with_weights_biases_duplicates_and_removed_images():
    rng = np.random.default_rng(2)
    first, second = random(rng), random(rng, width=24)
    duplicates = np.arange(700)
    duplicates[500:520] = duplicates[100:120]
    alive = np.sort(rng.permutation(700)[:600])
    held = rows_of(first, second, bias=rng.normal(0, 0.3, 700), duplicates=duplicates, weights=[3.0, 0.7])
    same_best(held, [random(rng, 12), random(rng, 12, 24)], alive)


@pytest.mark.parametrize("k", [1, 699, 700, 900])
def test_any_number_of_best(k):
    rng = np.random.default_rng(3)
    same_best(rows_of(random(rng)), [random(rng, 3)], k=k)


def test_bounds_hold_and_few_rows_are_scored_again(monkeypatch):
    rng = np.random.default_rng(4)
    held, queries = rows_of(random(rng)), random(rng, 20)
    engine = engine_of(held)
    scores, bound = engine.bounded([queries])
    assert (np.abs(scores - exhaustive(held, [queries])) <= bound).all()
    counted, exact = [], BoundedEngine._exact
    monkeypatch.setattr(
        BoundedEngine, "_exact", lambda self, f, images: counted.append(len(images)) or exact(self, f, images)
    )
    engine.search(queries, K)
    assert 20 * K <= sum(counted) < 20 * 100


def test_an_answer_does_not_depend_on_the_queries_beside_it():
    rng = np.random.default_rng(5)
    engine, queries = engine_of(rows_of(clustered(rng))), random(rng, 9)
    together = engine.scores(queries, K)
    engine.prepare()
    alone = np.concatenate([engine.scores(query[None], K) for query in queries])
    np.testing.assert_array_equal(alone, together)


def test_no_images_and_no_queries():
    rng = np.random.default_rng(6)
    held = rows_of(random(rng))
    assert engine_of(held, np.empty(0, np.int64)).search(random(rng, 2), K).ids.shape == (2, 0)
    assert engine_of(held).search(np.empty((0, 64), np.float32), K).ids.shape == (0, K)


def test_rows_are_rounded_once_for_as_long_as_they_are_in_a_gallery():
    rng = np.random.default_rng(7)
    gallery = Gallery.of(random(rng))
    first = gallery.derived(BoundedRows.of)
    grown = gallery.appended(random(rng, 5))
    assert grown.derived(BoundedRows.of)[0] is first[0]
    assert len(gallery.derived(BoundedRows.of)) == 1
