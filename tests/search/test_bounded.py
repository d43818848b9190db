"""Coarse scores prove their k best: the same images, in the same order, as an exhaustive search."""

import numpy as np
import pytest

from tfa.method.scorer import QuerySide, Scorer, ScoreTerm
from tfa.search.bounded import BoundedScorer, bounded_rows
from tfa.search.ties import top_k

K = 10
CENTERS = np.eye(4, dtype=np.float32)
SIDE = QuerySide("soft", CENTERS, 0.01)


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


def scorer(*galleries, bias=None, duplicates=None, weights=None, dtype="float32"):
    parts = tuple(
        ScoreTerm(weight, 0, None, tuple(np.array_split(gallery.astype(dtype), 3)))
        for gallery, weight in zip(galleries, weights or [1.0] * len(galleries), strict=True)
    )
    return Scorer((SIDE,), parts, np.zeros(len(galleries[0])) if bias is None else bias, duplicates)


def exhaustive(one, features, alive=None):
    """Scores from every row in float64, then in float32: rows that differ by less tie."""
    total = np.zeros((len(features[0]), len(one.bias))) + one.bias
    for part, asked in zip(one.terms, features, strict=True):
        rows = np.concatenate([np.asarray(chunk, np.float64) for chunk in part.gallery])
        for query in range(len(asked)):
            total[query] += part.weight * (rows * asked[query]).sum(axis=1)
    total = total.astype(np.float32)
    total = total if one.duplicates is None else total[:, one.duplicates]
    return total if alive is None else total[:, alive]


def same_best(one, features, alive=None, k=K):
    columns = slice(None) if alive is None else alive
    found = BoundedScorer(one).scores_of(features, k, alive)[:, columns]
    indices, best = top_k(found, k)
    expected = exhaustive(one, features, alive)
    np.testing.assert_array_equal(indices, top_k(expected, k)[0])
    np.testing.assert_array_equal(best, top_k(expected, k)[1])
    return found, expected


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("world", WORLDS)
def test_the_best_are_those_of_an_exhaustive_search(world, dtype):
    rng = np.random.default_rng(1)
    rows = world(rng)
    near = unit(rows[rng.integers(0, 700, 10)] + 0.1 * rng.standard_normal((10, 64)))
    queries = np.concatenate([near, rows[:5], random(rng, 10)])
    one = scorer(rows, dtype=dtype)
    found, expected = same_best(one, [queries])
    # The same search by one float32 product: equal but where scores differ by its rounding.
    plain = one.scores_of([queries])
    np.testing.assert_allclose(top_k(plain, K)[1], top_k(found, K)[1], atol=1e-6)
    np.testing.assert_allclose(found.std(axis=1), expected.std(axis=1), rtol=1e-2, atol=2e-4)


def test_several_parts_with_weights_biases_twins_and_removed_images():
    rng = np.random.default_rng(2)
    first, second = random(rng), random(rng, width=24)
    duplicates = np.arange(700)
    duplicates[500:520] = duplicates[100:120]
    alive = np.sort(rng.permutation(700)[:600])
    one = scorer(first, second, bias=rng.normal(0, 0.3, 700), duplicates=duplicates, weights=[3.0, 0.7])
    same_best(one, [random(rng, 12), random(rng, 12, 24)], alive)


@pytest.mark.parametrize("k", [1, 699, 700, 900])
def test_any_number_of_best(k):
    rng = np.random.default_rng(3)
    same_best(scorer(random(rng)), [random(rng, 3)], k=k)


def test_bounds_hold_and_few_rows_are_scored_again(monkeypatch):
    rng = np.random.default_rng(4)
    one, queries = scorer(random(rng)), random(rng, 20)
    coarse = BoundedScorer(one)
    scores, bound = coarse.bounded([queries])
    assert (np.abs(scores - exhaustive(one, [queries])) <= bound).all()
    counted, exact = [], BoundedScorer._exact
    monkeypatch.setattr(
        BoundedScorer, "_exact", lambda self, f, images: counted.append(len(images)) or exact(self, f, images)
    )
    coarse.scores_of([queries], K)
    assert 20 * K <= sum(counted) < 20 * 100


def test_an_answer_does_not_depend_on_what_it_is_asked_with():
    rng = np.random.default_rng(5)
    coarse, queries = BoundedScorer(scorer(clustered(rng))), random(rng, 9)
    together = coarse.scores_of([queries], K)
    coarse.prepare()
    alone = np.concatenate([coarse.scores_of([query[None]], K) for query in queries])
    np.testing.assert_array_equal(alone, together)


def test_no_images_and_no_queries():
    rng = np.random.default_rng(6)
    coarse = BoundedScorer(scorer(random(rng)))
    assert coarse.scores_of([random(rng, 2)], K, np.empty(0, np.int64)).shape == (2, 700)
    assert coarse.scores_of([np.empty((0, 64), np.float32)], K).shape == (0, 700)


def test_rows_are_rounded_once_for_as_long_as_they_live():
    rows = random(np.random.default_rng(7))
    assert bounded_rows(rows) is bounded_rows(rows)
