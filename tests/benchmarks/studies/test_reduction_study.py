"""Recall by fewer numbers: made-up towns, one alone and two as one gallery."""

from __future__ import annotations

import json

import numpy as np
import pytest

from studies.scale.rows import SavedRows, all_tables
from studies.scale.union import KINDS, UNION, Datasets, four_bits, joined_tokens, one_bit, run_reduction, study_gallery
from tests.benchmarks.fields import town
from tests.fakes import FakeEncoder
from tfa.method.described_queries import DescribedQueries
from tfa.types import HeadSpec
from tfa_bench.heads.catalogue import head_card
from tfa_bench.heads.contract import Photos, Shared
from tfa_bench.records import Truth
from tfa_bench.run import Bench

PLACES = {"village": 9, "hamlet": 7}
DIMS = (3, 12)


def made_up(name: str, seed: int) -> Bench:
    database, queries = town(PLACES[name], seed=seed)
    names = [[f"{i:03}.png" for i in range(len(t))] for t in (database, queries)]
    positives = tuple(np.array([2 * place, 2 * place + 1]) for place in range(PLACES[name]))
    truth = Truth(name, name.title(), tuple(names[0]), tuple(names[1]), positives, {}, "by hand")
    return Bench(None, truth, FakeEncoder(), Photos(database), Photos(DescribedQueries(queries)), "", HeadSpec(words=4))


@pytest.fixture(scope="module")
def benches():
    return [made_up("village", 0), made_up("hamlet", 1)]


@pytest.fixture(scope="module")
def saved(benches):
    saved = SavedRows()
    assert len(list(run_reduction(Datasets.of(benches), saved, None, DIMS))) == 6
    assert list(run_reduction(Datasets.of(benches), saved, None, DIMS)) == []
    return saved


@pytest.fixture(scope="module")
def union(saved):
    return next(row for row in saved.of("reduction") if row["gallery"] == UNION and "variants" in row)


def test_joined_tokens_are_those_of_the_parts(benches):
    parts = [bench.database.tokens for bench in benches]
    joined = joined_tokens(parts)
    assert len(joined) == 32
    assert joined.grid == parts[0].grid
    np.testing.assert_array_equal(joined.load(0, 18), parts[0].load(0, 18))
    np.testing.assert_array_equal(joined.select([17, 18, 31]).load(1, 3), parts[1].select([0, 13]).load(0, 2))


def test_full_recall_is_that_of_the_head(benches):
    for bench in benches:
        scores = head_card("judged").fit(bench.database, Shared(spec=bench.spec)).scores(bench.queries, "0")
        right = scores.argmax(axis=1) // 2 == np.arange(len(bench.queries))
        assert right.mean() > 0.5
        found = study_gallery(bench.truth.name, [bench], bench.database, Shared(spec=bench.spec), DIMS)
        assert found.recall == {bench.truth.name: pytest.approx(right.mean())}


def test_every_variant_is_there_and_all_numbers_lose_nothing(union):
    assert union["images"] == 32
    saved = [one for one in union["variants"] if one["share"] == 1]
    full = union["width"] + 1
    expected = {(dims, kind, again) for dims in (*DIMS, full) for kind in KINDS for again in (0, 100)}
    assert {(one["dims"], one["rows"], one["again"]) for one in saved} == expected
    for one in saved:
        assert set(one["recall"]) == set(PLACES)
        assert one["mean"] == pytest.approx(np.mean(list(one["recall"].values())))
        if one["again"] or (one["dims"] == full and one["rows"] == "float32"):
            assert one["recall"] == union["recall"]  # a hundred are all there are
    assert any(one["recall"] != union["recall"] for one in saved if one["dims"] == 3)
    assert union["spreads"][-1]["ratio"] == pytest.approx(1, abs=0.02)
    assert union["spreads"][0]["ratio"] < union["spreads"][-1]["ratio"]


def test_fewer_images_are_tried(union, saved):
    assert {(one["dims"], one["share"]) for one in union["variants"] if one["share"] < 1} == {
        (dims, share) for dims in DIMS for share in (0.25, 0.5)
    }
    shares = [row for row in saved.of("reduction") if "fitted_on" in row]
    assert [(row["fitted_on"], row["images"]) for row in shares] == [(0.25, 8), (0.5, 16), (1.0, 32)]
    if union["head"].startswith("second_order"):
        assert shares[-1]["recall"] == union["recall"]


def test_few_bits_keep_what_they_can():
    rng = np.random.default_rng(0)
    rows, queries = rng.standard_normal((50, 64)) + 3, rng.standard_normal((20, 64))
    exact = queries @ (rows - rows.mean(axis=0)).T
    for coarse, least in ((four_bits(rows), 0.98), (one_bit(rows), 0.7)):
        assert np.corrcoef((queries @ coarse.T).ravel(), exact.ravel())[0, 1] > least
    assert len(np.unique(np.abs(one_bit(rows)[0]))) == 1
    assert len(np.unique(four_bits(rows)[0])) <= 15


def test_it_can_be_written_down_and_shown(saved):
    text = all_tables(json.loads(json.dumps(saved.to_dict()))["rows"])
    assert f"**{UNION}**: 32 images" in text
    assert "| reduction to 12, int8 | 25% |" in text
    assert "| directions and covariance of the head | 50% |" in text
