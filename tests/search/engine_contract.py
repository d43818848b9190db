"""The suite that every engine passes: ours, and those of other distributions.

class TestMine(EngineContract):
    def create(self, vectors, bias, ids, payload=None):
        return MyEngine.create(vectors, bias, ids, payload)
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from tfa.errors import BadSpec
from tfa.search.engine import Engine, QueryVectors
from tfa.search.ties import top_k

DIMENSIONS, IMAGES, QUERIES, K = 48, 300, 17, 10


class EngineContract:
    """Subclass it and say how an engine is created."""

    score_error = 1e-6

    def create(self, vectors, bias, ids, payload=None) -> Engine:
        raise NotImplementedError

    @pytest.fixture
    def world(self):
        rng = np.random.default_rng(0)
        vectors = rng.standard_normal((IMAGES, DIMENSIONS)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        queries = vectors[:QUERIES] + 0.1 * rng.standard_normal((QUERIES, DIMENSIONS)).astype(np.float32)
        bias = rng.normal(0, 1, IMAGES).astype(np.float32)  # as large as the scores themselves
        ids = rng.permutation(10 * IMAGES)[:IMAGES].astype(np.int64)
        return vectors, bias, ids, queries

    @staticmethod
    def expected(vectors, bias, ids, queries, k=K):
        """By the definition: every score in float64, ties to the smaller id."""
        order = np.argsort(ids)
        scores = queries.astype(np.float64) @ vectors[order].astype(np.float64).T + bias[order]
        columns, best = top_k(scores, k)
        return ids[order][columns], best

    def check(self, engine, vectors, bias, ids, queries, k=K):
        result = engine.search(queries, k)
        best_ids, best = self.expected(vectors, bias, ids, queries, k)
        np.testing.assert_array_equal(result.ids, best_ids)
        np.testing.assert_allclose(result.scores, best, atol=self.score_error * max(1, np.abs(best).max()))

    def test_it_is_an_engine(self, world):
        engine = self.create(*world[:3])
        assert isinstance(engine, Engine)
        assert engine.name

    def test_the_best_are_those_of_the_definition(self, world):
        self.check(self.create(*world[:3]), *world)

    def test_mean_and_spread_are_of_all_scores_where_they_are_given(self, world):
        vectors, bias, _, queries = world
        result = self.create(*world[:3]).search(queries, 1)
        scores = queries.astype(np.float64) @ vectors.T.astype(np.float64) + bias
        if result.mean is not None:
            np.testing.assert_allclose(result.mean, scores.mean(axis=1), atol=5e-3)
            np.testing.assert_allclose(result.spread, scores.std(axis=1), rtol=1e-2)

    def test_more_than_there_are_is_all_there_are(self, world):
        vectors, bias, ids, queries = world
        engine = self.create(vectors[:4], bias[:4], ids[:4])
        self.check(engine, vectors[:4], bias[:4], ids[:4], queries, k=4)
        assert engine.search(queries, 99).ids.shape == (QUERIES, 4)

    def test_ties_go_to_the_smaller_id(self, world):
        vectors, _, _, queries = world
        same = np.repeat(vectors[:1], 5, axis=0)
        engine = self.create(same, np.zeros(5, np.float32), np.array([40, 7, 23, 9, 11]))
        assert engine.search(queries[:1], 5).ids.tolist() == [[7, 9, 11, 23, 40]]

    def test_upsert_adds_and_replaces_and_may_be_repeated(self, world):
        vectors, bias, ids, queries = world
        engine = self.create(vectors[:200], bias[:200], ids[:200])
        for _ in range(2):
            engine.upsert(vectors[150:], bias[150:], ids[150:])
            assert engine.count() == IMAGES
            self.check(engine, *world)
        moved = vectors[::-1].copy()
        engine.upsert(moved, bias, ids)
        self.check(engine, moved, bias, ids, queries)

    def test_delete_takes_out_and_may_be_repeated(self, world):
        vectors, bias, ids, queries = world
        engine = self.create(vectors, bias, ids)
        for _ in range(2):
            engine.delete(ids[:100])
            assert engine.count() == 200
        self.check(engine, vectors[100:], bias[100:], ids[100:], queries)
        engine.upsert(vectors[:100], bias[:100], ids[:100])
        self.check(engine, *world)
        engine.delete(ids)
        assert engine.search(queries, K).ids.shape == (QUERIES, 0)

    def test_a_query_is_answered_the_same_alone_and_in_a_batch(self, world):
        engine, queries = self.create(*world[:3]), world[3]
        together = engine.search(queries, K)
        for index, query in enumerate(queries):
            alone = engine.search(query[None], K)
            np.testing.assert_array_equal(alone.ids[0], together.ids[index])
            np.testing.assert_array_equal(alone.scores[0], together.scores[index])

    def test_query_vectors_are_their_direct_sum(self, world):
        engine, queries = self.create(*world[:3]), world[3]
        result = engine.search(QueryVectors((queries,), (1.0,)), K)
        np.testing.assert_array_equal(result.ids, engine.search(queries, K).ids)

    def test_payload_is_kept_beside_the_vector(self, world):
        vectors, bias, ids, _ = world
        engine = self.create(vectors, bias, ids, [{"image": f"{one}.jpg"} for one in ids])
        assert engine.payload(ids[:2]) == [{"image": f"{ids[0]}.jpg"}, {"image": f"{ids[1]}.jpg"}]
        engine.upsert(vectors[:1], bias[:1], ids[:1], [{"image": "other.jpg"}])
        assert engine.payload(ids[:1]) == [{"image": "other.jpg"}]

    def test_it_describes_itself_in_json(self, world):
        engine = self.create(*world[:3])
        about = json.loads(json.dumps(engine.describe()))
        assert about["engine"] == engine.name
        assert about["count"] == IMAGES
        assert about["dimensions"] == DIMENSIONS

    def test_what_does_not_fit_is_refused(self, world):
        vectors, bias, ids, queries = world
        engine = self.create(vectors, bias, ids)
        with pytest.raises(BadSpec, match="shape"):
            engine.search(queries[:, :5], K)
        with pytest.raises(BadSpec, match="k=0"):
            engine.search(queries, 0)
        with pytest.raises(BadSpec, match="distinct ids"):
            self.create(vectors, bias, np.zeros(IMAGES, np.int64))
        with pytest.raises(BadSpec, match="distinct ids"):
            engine.upsert(vectors[:3], bias[:2], ids[:3])
