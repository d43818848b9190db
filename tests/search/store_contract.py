"""The suite that every store and its collections pass.

class TestMine(StoreContract):
    dtypes = ("float32", "float16")
    coarse = ("hnsw",)
    # and a fixture `url`, such as "mine://127.0.0.1:1234/tests"
"""

from __future__ import annotations

import json
from uuid import uuid4

import numpy as np
import pytest

from tests.search.store_world import (
    DIMENSIONS,
    IMAGES,
    MANY,
    QUERIES,
    RESCORED,
    SCORE_ERROR,
    SESSIONS,
    WIDE,
    K,
    best_of,
    entries_of,
    payload_of,
    vectors_with_bias,
)
from tests.search.whole_store_contract import WholeStoreContract
from tfa.errors import TfaError
from tfa.search.store import NOBODY, Entries, Region, Where
from tfa.search.stores import parsed


class StoreContract(WholeStoreContract):
    """Subclass it and say where a store is."""

    dtypes: tuple[str, ...] = ("float32",)
    coarse: tuple[str, ...] = ()  # indexes that may miss some of the best

    @pytest.fixture
    def url(self) -> str:
        """Of a store, without a map's name."""
        raise NotImplementedError

    @staticmethod
    def connect(url: str):
        base, mark, query = url.partition("?")
        kind, address, _ = parsed(f"{base.rstrip('/')}/places{mark}{query}")
        return kind.connect(address)

    @pytest.fixture
    def store(self, url):
        store = self.connect(url)
        yield store
        store.close()

    @pytest.fixture
    def name(self, store):
        """Of a collection that nobody has, and of documents: the store may be shared with other tests."""
        name = f"t{uuid4().hex[:12]}__v1"
        yield name
        for own in store.names(name):
            store.drop(own)
        for key in store.keys(name):
            store.erase(key)

    @pytest.fixture
    def world(self):
        vectors, queries = vectors_with_bias(IMAGES, DIMENSIONS)
        ids = np.random.default_rng(1).permutation(10 * IMAGES)[:IMAGES].astype(np.int64)
        return ids, vectors, queries[:QUERIES]

    @pytest.fixture
    def filled(self, store, name, world):
        collection = store.create(name, DIMENSIONS)
        collection.write(entries_of(*world[:2]))
        return collection

    def check(self, collection, ids, vectors, queries, k=K, dtype="float32"):
        found, scores = collection.nearest(queries, k)
        best_ids, best = best_of(ids, vectors, queries, k, dtype)
        np.testing.assert_array_equal(found, best_ids)
        assert scores.dtype == np.float32
        assert (np.abs(scores - best) / np.maximum(1, np.abs(best))).max(initial=0) <= SCORE_ERROR[dtype]

    # --- collections ---

    def test_the_best_are_those_of_the_definition(self, store, name, world):
        for dtype in self.dtypes:
            collection = store.create(f"{name}_{dtype}", DIMENSIONS, dtype)
            assert collection.dtype == dtype
            collection.write(entries_of(*world[:2]))
            self.check(collection, *world, dtype=dtype)
            collection.seal(None)
            self.check(collection, *world, dtype=dtype)
            self.check(store.open(f"{name}_{dtype}"), *world, k=IMAGES + 5, dtype=dtype)

    def test_ties_go_to_the_smaller_id(self, store, name, world):
        collection = store.create(name, DIMENSIONS)
        ids = np.random.default_rng(2).permutation(50)
        collection.write(entries_of(ids, np.repeat(world[1][:1], 50, axis=0)))
        assert collection.nearest(world[2][:1], 7)[0].tolist() == [list(range(7))]
        collection.seal()
        assert collection.nearest(world[2][:1], 7)[0].tolist() == [list(range(7))]

    def test_writing_twice_is_writing_once_and_replaces(self, store, name, world):
        ids, vectors, queries = world
        collection = store.create(name, DIMENSIONS)
        collection.write(entries_of(ids[:200], vectors[:200]))
        for _ in range(2):
            collection.write(entries_of(ids[150:], vectors[150:]))
            assert collection.count() == IMAGES
            self.check(collection, *world)
        moved = vectors[::-1].copy()
        collection.write(entries_of(ids, moved, globe=False))
        self.check(collection, ids, moved, queries)
        assert collection.count() == IMAGES
        assert collection.fetch(ids[:1]).payload[0] == payload_of(int(ids[0]), globe=False)

    def test_delete_takes_out_and_may_be_repeated(self, filled, world):
        ids, vectors, queries = world
        for _ in range(2):
            filled.delete(ids[:100])
            assert filled.count() == 200
        self.check(filled, ids[100:], vectors[100:], queries)
        filled.delete([])
        filled.write(entries_of(ids[:100], vectors[:100]))
        self.check(filled, *world)
        filled.delete(ids)
        assert filled.nearest(queries, K)[0].shape == (QUERIES, 0)
        assert list(filled.pages()) == []

    def test_nothing_written_is_nothing_found(self, store, name, world):
        collection = store.create(name, DIMENSIONS)
        collection.write(entries_of(world[0][:0], world[1][:0]))
        assert collection.count() == 0
        assert collection.nearest(world[2], K)[0].shape == (QUERIES, 0)
        assert len(collection.fetch([1, 2])) == 0
        assert collection.find(["a"]) == {}

    def test_fetch_keeps_the_order_and_leaves_out_what_is_missing(self, filled, world):
        ids, vectors, _ = world
        asked = np.concatenate([ids[5:8], [10 * IMAGES + 1], ids[:2]])
        expected = entries_of(np.concatenate([ids[5:8], ids[:2]]), np.concatenate([vectors[5:8], vectors[:2]]))
        got = filled.fetch(asked)
        assert got.ids.tolist() == expected.ids.tolist()
        np.testing.assert_array_equal(got.vectors, expected.vectors)
        assert [dict(one) for one in got.payload] == expected.payload
        assert [bytes(one) for one in got.full] == expected.full

    def test_the_smallest_id_of_a_digest_is_found(self, filled, world):
        ids, vectors, _ = world
        twin = Entries(np.array([10**6]), vectors[:1], [payload_of(int(ids[0]))], [b""])
        filled.write(twin)
        digests = [f"{int(one):064x}" for one in ids[:3]]
        assert filled.find([*digests, "of nobody"]) == dict(zip(digests, ids[:3].tolist(), strict=True))
        filled.delete(ids[:1])
        assert filled.find(digests[:1]) == {digests[0]: 10**6}

    def test_pages_hold_everything_by_growing_id(self, filled, world):
        ids, vectors, _ = world
        pages = list(filled.pages(70))
        assert [len(page) for page in pages] == [70, 70, 70, 70, 20]
        order = np.argsort(ids)
        assert np.concatenate([page.ids for page in pages]).tolist() == ids[order].tolist()
        np.testing.assert_array_equal(np.concatenate([page.vectors for page in pages]), vectors[order])
        assert dict(pages[0].payload[0]) == payload_of(int(ids.min()))

    @pytest.mark.parametrize("globe", [True, False], ids=["degrees", "metres"])
    def test_filters_answer_as_the_filtered_row(self, store, name, world, globe):
        ids, vectors, queries = world
        collection = store.create(name, DIMENSIONS)
        collection.write(entries_of(ids, vectors, globe))
        box = Region(13.2, 52.1, 13.7, 52.6) if globe else Region(-300, 100, 200, 600)
        small = Region(13.25, 52, 13.26, 53) if globe else Region(-250, 0, -240, 1000)
        for where in (
            Where((SESSIONS[1],)),
            Where(SESSIONS[:2]),
            Where((), box),
            Where((SESSIONS[2],), box),
            Where((), small),
            Where(("of nobody",)),
        ):
            able = np.array([where.admits(payload_of(int(one), globe)) for one in ids])
            best_ids, best = best_of(ids[able], vectors[able], queries)
            found, scores = collection.nearest(queries, K, where)
            assert found.shape == (QUERIES, K)
            wide = best_ids.shape[1]
            np.testing.assert_array_equal(found[:, :wide], best_ids)
            np.testing.assert_allclose(scores[:, :wide], best, atol=1e-5)
            assert (found[:, wide:] == NOBODY).all()
            assert np.isneginf(scores[:, wide:]).all()

    def test_a_wrong_dimension_is_refused_naming_both(self, filled, world):
        ids, vectors, queries = world
        with pytest.raises(TfaError, match=rf"(?s)(?=.*\b5\b)(?=.*\b{DIMENSIONS}\b)"):
            filled.write(entries_of(ids[:2], vectors[:2, :5]))
        with pytest.raises(TfaError, match=rf"(?s)(?=.*\b5\b)(?=.*\b{DIMENSIONS}\b)"):
            filled.nearest(queries[:, :5], K)
        self.check(filled, *world)

    def test_an_index_and_100_scored_again_find_the_best(self, store, name):
        vectors, queries = vectors_with_bias(MANY, WIDE)
        ids, queries = np.arange(MANY), queries[::2]
        best = best_of(ids, vectors, queries, 1)[0][:, 0]
        for dtype, index in ((dtype, index) for dtype in self.dtypes for index in self.coarse):
            collection = store.create(f"{name}_{dtype}_{index}", WIDE, dtype)
            collection.write(entries_of(ids, vectors))
            collection.seal(index)
            found, _ = store.open(collection.name).nearest(queries, RESCORED)
            scores = np.einsum("qd,qkd->qk", queries.astype(np.float64), vectors.astype(np.float64)[found])
            first = found[np.arange(len(queries)), scores.argmax(axis=1)]
            assert (first == best).mean() >= 0.99, (dtype, index)
            collection.delete(best[:1])
            assert best[0] not in collection.nearest(queries[:1], K)[0]
            collection.seal(None)
            self.check(collection, ids[ids != best[0]], vectors[ids != best[0]], queries[:9], dtype=dtype)

    def test_it_describes_itself_in_json(self, filled, name):
        about = json.loads(json.dumps(filled.describe()))
        assert about["engine"]
        wanted = {"collection": name, "count": IMAGES, "dimensions": DIMENSIONS, "dtype": "float32"}
        assert {key: about[key] for key in wanted} == wanted
