"""A scorer on a device equals the one of numpy, never leaves the device, and is one graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.fake_devices import OperationLog, fake_backend, fake_device
from tests.worlds import seen_again, world
from tfa import pipeline
from tfa.core.arrays import backend_for, to_numpy
from tfa.core.tokens import Tokens
from tfa.method.device_scorer import DeviceScorer, DeviceSearch
from tfa.method.head import BaseHead
from tfa.types import HeadSpec

DATABASE, QUERIES = world(40, 30, 8), seen_again(world(40, 30, 8))
TWICE = Tokens(np.concatenate([DATABASE.patches] * 2), np.concatenate([DATABASE.cls] * 2))


def fit(name: str, database: Tokens = DATABASE) -> BaseHead:
    if name.startswith("second-order"):
        head = pipeline.fit_second_order(database, name.removeprefix("second-order-"))
        return head
    if name == "dual":
        return pipeline.fit_dual(database, spec=HeadSpec(words=5)).calibrate(QUERIES)
    head = pipeline.fit(database, HeadSpec(words=5))
    return pipeline.calibrate(head, QUERIES, score=True) if name == "calibrated" else head


HEADS = ("tfa", "calibrated", "dual", "second-order-tempered", "second-order-original")


def put(scorer: DeviceScorer, tokens: Tokens):
    return scorer.put(tokens.load(0, len(tokens))), scorer.put(tokens.cls)


def search(scorer: DeviceScorer, patches: torch.Tensor, cls: torch.Tensor | None, k: int):
    """Return indices and scores of the k best images, all computed on the device."""
    scores = scorer.score_features(scorer.features(patches, cls))
    best = scorer.backend.xp.argsort(scores, axis=1, descending=True, stable=True)[:, :k]
    return best, scorer.backend.xp.take_along_axis(scores, best, axis=1)


@pytest.mark.parametrize("replica", [0, "ensemble"])
@pytest.mark.parametrize("name", HEADS)
def test_scores_and_rankings_equal_those_of_numpy(name, replica):
    head = fit(name)
    scorer = DeviceScorer(head.scorer(replica), backend_for("torch"))
    expected = head.scores(QUERIES, replica)
    scores = to_numpy(scorer.score_features(scorer.features(*put(scorer, QUERIES))))
    np.testing.assert_allclose(scores, expected, atol=3e-5 * np.abs(expected).max())
    np.testing.assert_allclose(scorer.scores(QUERIES), scores, atol=1e-6 * np.abs(expected).max())
    best, values = search(scorer, *put(scorer, QUERIES), 10)
    np.testing.assert_array_equal(to_numpy(best), head.search(QUERIES, 10, replica)[0])
    np.testing.assert_array_equal(to_numpy(values), np.take_along_axis(scores, to_numpy(best), axis=1))


def test_a_centered_second_order_head_is_shifted_too():
    head = pipeline.calibrate(pipeline.fit_second_order(DATABASE), QUERIES)
    assert head.scorer(0).sides[0].shift is not None
    scorer = DeviceScorer(head.scorer(0), backend_for("torch"))
    vectors, expected = scorer.query_vectors(QUERIES), head.scorer(0).query_vectors(QUERIES)
    np.testing.assert_allclose(np.asarray(vectors), np.asarray(expected), atol=1e-5)


def test_duplicates_tie_and_the_first_wins():
    scorer = DeviceScorer(fit("tfa", TWICE).scorer(0), backend_for("torch"))
    best, scores = search(scorer, *put(scorer, QUERIES), 10)
    assert bool((best[:, ::2] < 40).all())
    assert bool((best[:, 1::2] == best[:, ::2] + 40).all())
    assert bool((scores[:, 1::2] == scores[:, ::2]).all())


def test_photos_with_different_numbers_of_patches_are_described_in_order():
    mixed = Tokens([QUERIES.patches[0], QUERIES.patches[1][:20], QUERIES.patches[2]], QUERIES.cls[:3])
    head = fit("tfa")
    vectors = DeviceScorer(head.scorer(0), backend_for("torch")).query_vectors(mixed)
    np.testing.assert_allclose(np.asarray(vectors), np.asarray(head.scorer(0).query_vectors(mixed)), atol=1e-5)


def test_no_queries_have_no_scores():
    assert DeviceScorer(fit("tfa").scorer(0), backend_for("torch")).scores(QUERIES.select(slice(0, 0))).shape == (0, 40)


def test_a_search_skips_rows_and_orders_ids():
    scorer = fit("tfa").scorer(0)
    ids, alive = np.array([7, 3, 5]), np.array([30, 10, 20])
    searcher = DeviceSearch(DeviceScorer(scorer, backend_for("torch")), ids, alive)
    expected = scorer.scores(QUERIES)[:, [10, 20, 30]]
    found = searcher.search(scorer.query_vectors(QUERIES), 3)
    np.testing.assert_array_equal(found.ids, np.array([3, 5, 7])[np.argsort(-expected, kind="stable")])
    np.testing.assert_allclose(found.mean, expected.mean(axis=1), atol=1e-4)


# --- devices that are not there ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HEADS)
def test_no_operation_leaves_a_gpu(name, monkeypatch):
    head = fit(name, TWICE)
    with fake_device(monkeypatch):
        scorer = DeviceScorer(head.scorer(0), fake_backend("cuda"))
        with OperationLog() as log:
            best, scores = search(scorer, *put(scorer, QUERIES), 10)
    assert log.devices == {"cuda"}
    assert (best.device.type, best.shape, scores.dtype) == ("cuda", (40, 10), torch.float32)


def test_two_devices_in_one_operation_are_an_error(monkeypatch):
    head = fit("tfa")
    with fake_device(monkeypatch):
        scorer = DeviceScorer(head.scorer(0), fake_backend("cuda"))
        with pytest.raises(Exception, match="two devices"):  # the check that the tests above rely on
            search(scorer, torch.zeros(1, 30, 8), torch.zeros(1, 8), 10)


def test_metal_computes_no_float64_and_only_the_logarithm_elsewhere(monkeypatch):
    for name in ("tfa", "second-order-tempered"):
        head = fit(name)
        with fake_device(monkeypatch):
            scorer = DeviceScorer(head.scorer(0), fake_backend("mps"))
            with OperationLog() as log:
                best, _ = search(scorer, *put(scorer, QUERIES), 10)
        assert best.device.type == "mps"
        assert ("mps", torch.float64) not in log.dtypes
        assert log.devices == ({"mps"} if name == "tfa" else {"mps", "cpu"})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Dynamo detected a call")
@pytest.mark.parametrize("name", HEADS)
def test_the_search_is_one_graph(name):
    scorer = DeviceScorer(fit(name).scorer(0), backend_for("torch"))
    compiled = torch.compile(search, fullgraph=True, backend="aot_eager")
    tokens = put(scorer, QUERIES)
    for found, expected in zip(compiled(scorer, *tokens, 10), search(scorer, *tokens, 10), strict=True):
        torch.testing.assert_close(found, expected)
