"""Test suite for stores and their collections. It needs pytest; only tests import it.

class TestMine(StoreContract):
    dtypes = ("float32", "float16")
    coarse = ("hnsw",)

    @pytest.fixture
    def url(self) -> str:
        return "mine://127.0.0.1:1234/tests"
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from tfa.errors import StoreConflict, TfaError
from tfa.search.gallery import top_k
from tfa.search.reduced import fixed_rotation
from tfa.search.store import NO_ID, Collection, Entries, Region, Store, Where, open_map_store

_World = tuple[np.ndarray, np.ndarray, np.ndarray]  # ids, vectors, queries
DIMENSIONS, _IMAGES, _QUERIES, _K = 64, 300, 17, 10
_SESSIONS = ("morning", 'it\'s "noon"', "night")
_SCORE_ERROR = {"float32": 1e-6, "float16": 1e-4}
_MANY, _WIDE, _RESCORED = 2000, 256, 100  # images, dimensions and rescored candidates in tests of indexes


def make_vectors(images: int, dimensions: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return four images per place and queries for every tenth image, with a folded bias (σ = 1) and rotation."""
    rng = np.random.default_rng(seed)
    places = np.repeat(rng.standard_normal((images // 4, dimensions - 1)), 4, axis=0)
    seen = places + 0.5 * rng.standard_normal(places.shape)
    near = places[::10] + 0.5 * rng.standard_normal(places[::10].shape)
    seen, near = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (seen, near))
    rotation = fixed_rotation(dimensions)
    images_side = np.column_stack([seen, rng.normal(0, 1, len(seen))]) @ rotation.T
    queries_side = np.column_stack([near, np.ones(len(near))]) @ rotation.T
    return images_side.astype(np.float32), queries_side.astype(np.float32)


def _make_payload(image: int, globe: bool = True) -> dict[str, Any]:
    """Return a payload; every seventh image has no position, every ninth no session."""
    across, up = (image * 37 % 100) / 100, (image * 61 % 100) / 100
    place = {"lat": 52 + up, "lon": 13 + across} if globe else {"x": 1000 * across - 500, "y": 1000 * up}
    return {
        "path": f"straße/{image}.jpg",
        "digest": f"{image:064x}",
        "session": None if image % 9 == 0 else _SESSIONS[image % 3],
        "position": None if image % 7 == 0 else place,
        "fitted": image % 2 == 0,
    }


def make_entries(ids: np.ndarray, vectors: np.ndarray, globe: bool = True) -> Entries:
    own = [int(one) for one in ids]
    return Entries(
        np.asarray(ids, np.int64),
        np.asarray(vectors, np.float32),
        [_make_payload(one, globe) for one in own],
        [b"" if one % 5 == 0 else bytes([one % 256, 0, 255]) * 40 for one in own],
    )


def rank_by_definition(
    ids: np.ndarray, vectors: np.ndarray, queries: np.ndarray, k: int = _K, dtype: str = "float32"
) -> tuple[np.ndarray, np.ndarray]:
    """Rank by the definition: float64 scores of the stored vectors, ties to the smaller id."""
    order = np.argsort(ids)
    columns, best = top_k(queries.astype(np.float64) @ vectors[order].astype(dtype).astype(np.float64).T, k)
    return ids[order][columns], best


class StoreContract:
    """Tests to inherit; override `url`."""

    dtypes: tuple[str, ...] = ("float32",)
    coarse: tuple[str, ...] = ()  # indexes that may miss some of the best

    @pytest.fixture
    def url(self) -> str:
        """Return the URL of a store, without a map name."""
        raise NotImplementedError

    @staticmethod
    def connect(url: str) -> Store:
        base, mark, query = url.partition("?")
        return open_map_store(f"{base.rstrip('/')}/places{mark}{query}")[0]

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        store = self.connect(url)
        yield store
        store.close()

    @pytest.fixture
    def name(self, store: Store) -> Iterator[str]:
        """Yield a new name for a collection and documents, as tests may share the store."""
        name = f"t{uuid4().hex[:12]}__v1"
        yield name
        for own in store.names(name):
            store.drop(own)
        for key in store.keys(name):
            store.erase(key)

    @pytest.fixture
    def world(self) -> _World:
        vectors, queries = make_vectors(_IMAGES, DIMENSIONS)
        ids = np.random.default_rng(1).permutation(10 * _IMAGES)[:_IMAGES].astype(np.int64)
        return ids, vectors, queries[:_QUERIES]

    @pytest.fixture
    def filled(self, store: Store, name: str, world: _World) -> Collection:
        collection = store.create(name, DIMENSIONS)
        collection.write(make_entries(*world[:2]))
        return collection

    def check(
        self,
        collection: Collection,
        ids: np.ndarray,
        vectors: np.ndarray,
        queries: np.ndarray,
        k: int = _K,
        dtype: str = "float32",
    ) -> None:
        found, scores = collection.nearest(queries, k)
        best_ids, best = rank_by_definition(ids, vectors, queries, k, dtype)
        np.testing.assert_array_equal(found, best_ids)
        assert scores.dtype == np.float32
        assert (np.abs(scores - best) / np.maximum(1, np.abs(best))).max(initial=0) <= _SCORE_ERROR[dtype]

    # --- collections -----------------------------------------------------------------------------------------

    def test_the_best_are_those_of_the_definition(self, store: Store, name: str, world: _World) -> None:
        for dtype in self.dtypes:
            collection = store.create(f"{name}_{dtype}", DIMENSIONS, dtype)
            assert collection.dtype == dtype
            collection.write(make_entries(*world[:2]))
            self.check(collection, *world, dtype=dtype)
            collection.seal(None)
            self.check(collection, *world, dtype=dtype)
            self.check(store.open(f"{name}_{dtype}"), *world, k=_IMAGES + 5, dtype=dtype)

    def test_ties_go_to_the_smaller_id(self, store: Store, name: str, world: _World) -> None:
        collection = store.create(name, DIMENSIONS)
        ids = np.random.default_rng(2).permutation(50)
        collection.write(make_entries(ids, np.repeat(world[1][:1], 50, axis=0)))
        assert collection.nearest(world[2][:1], 7)[0].tolist() == [list(range(7))]
        collection.seal()
        assert collection.nearest(world[2][:1], 7)[0].tolist() == [list(range(7))]

    def test_writing_twice_is_writing_once_and_replaces(self, store: Store, name: str, world: _World) -> None:
        ids, vectors, queries = world
        collection = store.create(name, DIMENSIONS)
        collection.write(make_entries(ids[:200], vectors[:200]))
        for _ in range(2):
            collection.write(make_entries(ids[150:], vectors[150:]))
            assert collection.count() == _IMAGES
            self.check(collection, *world)
        moved = vectors[::-1].copy()
        collection.write(make_entries(ids, moved, globe=False))
        self.check(collection, ids, moved, queries)
        assert collection.count() == _IMAGES
        assert collection.fetch(ids[:1]).payload[0] == _make_payload(int(ids[0]), globe=False)

    def test_delete_takes_out_and_may_be_repeated(self, filled: Collection, world: _World) -> None:
        ids, vectors, queries = world
        for _ in range(2):
            filled.delete(ids[:100])
            assert filled.count() == 200
        self.check(filled, ids[100:], vectors[100:], queries)
        filled.delete([])
        filled.write(make_entries(ids[:100], vectors[:100]))
        self.check(filled, *world)
        filled.delete(ids)
        assert filled.nearest(queries, _K)[0].shape == (_QUERIES, 0)
        assert list(filled.pages()) == []

    def test_an_empty_collection_answers_with_nothing(self, store: Store, name: str, world: _World) -> None:
        collection = store.create(name, DIMENSIONS)
        collection.write(make_entries(world[0][:0], world[1][:0]))
        assert collection.count() == 0
        assert collection.nearest(world[2], _K)[0].shape == (_QUERIES, 0)
        assert len(collection.fetch([1, 2])) == 0
        assert collection.find(["a"]) == {}

    def test_fetch_keeps_the_order_and_leaves_out_what_is_missing(self, filled: Collection, world: _World) -> None:
        ids, vectors, _ = world
        some = np.concatenate([ids[5:8], [10 * _IMAGES + 1], ids[:2]])
        expected = make_entries(np.concatenate([ids[5:8], ids[:2]]), np.concatenate([vectors[5:8], vectors[:2]]))
        got = filled.fetch(some)
        assert got.ids.tolist() == expected.ids.tolist()
        np.testing.assert_array_equal(got.vectors, expected.vectors)
        assert [dict(one) for one in got.payload] == expected.payload
        assert [bytes(one) for one in got.full] == expected.full

    def test_digests_find_their_smallest_id(self, filled: Collection, world: _World) -> None:
        ids, vectors, _ = world
        twin = Entries(np.array([10**6]), vectors[:1], [_make_payload(int(ids[0]))], [b""])
        filled.write(twin)
        digests = [f"{int(one):064x}" for one in ids[:3]]
        assert filled.find([*digests, "of nobody"]) == dict(zip(digests, ids[:3].tolist(), strict=True))
        filled.delete(ids[:1])
        assert filled.find(digests[:1]) == {digests[0]: 10**6}

    def test_pages_hold_everything_by_growing_id(self, filled: Collection, world: _World) -> None:
        ids, vectors, _ = world
        pages = list(filled.pages(70))
        assert [len(page) for page in pages] == [70, 70, 70, 70, 20]
        order = np.argsort(ids)
        assert np.concatenate([page.ids for page in pages]).tolist() == ids[order].tolist()
        np.testing.assert_array_equal(np.concatenate([page.vectors for page in pages]), vectors[order])
        assert dict(pages[0].payload[0]) == _make_payload(int(ids.min()))

    @pytest.mark.parametrize("globe", [True, False], ids=["degrees", "meters"])
    def test_filters_answer_as_the_filtered_row(self, store: Store, name: str, world: _World, globe: bool) -> None:
        ids, vectors, queries = world
        collection = store.create(name, DIMENSIONS)
        collection.write(make_entries(ids, vectors, globe))
        box = Region(13.2, 52.1, 13.7, 52.6) if globe else Region(-300, 100, 200, 600)
        small = Region(13.25, 52, 13.26, 53) if globe else Region(-250, 0, -240, 1000)
        for where in (
            Where((_SESSIONS[1],)),
            Where(_SESSIONS[:2]),
            Where((), box),
            Where((_SESSIONS[2],), box),
            Where((), small),
            Where(("of nobody",)),
        ):
            able = np.array([where.admits(_make_payload(int(one), globe)) for one in ids])
            best_ids, best = rank_by_definition(ids[able], vectors[able], queries)
            found, scores = collection.nearest(queries, _K, where)
            assert found.shape == (_QUERIES, _K)
            wide = best_ids.shape[1]
            np.testing.assert_array_equal(found[:, :wide], best_ids)
            np.testing.assert_allclose(scores[:, :wide], best, atol=1e-5)
            assert (found[:, wide:] == NO_ID).all()
            assert np.isneginf(scores[:, wide:]).all()

    def test_a_wrong_dimension_is_refused_naming_both(self, filled: Collection, world: _World) -> None:
        ids, vectors, queries = world
        with pytest.raises(TfaError, match=rf"(?s)(?=.*\b5\b)(?=.*\b{DIMENSIONS}\b)"):
            filled.write(make_entries(ids[:2], vectors[:2, :5]))
        with pytest.raises(TfaError, match=rf"(?s)(?=.*\b5\b)(?=.*\b{DIMENSIONS}\b)"):
            filled.nearest(queries[:, :5], _K)
        self.check(filled, *world)

    def test_an_index_and_100_scored_again_find_the_best(self, store: Store, name: str) -> None:
        vectors, queries = make_vectors(_MANY, _WIDE)
        ids, queries = np.arange(_MANY), queries[::2]
        best = rank_by_definition(ids, vectors, queries, 1)[0][:, 0]
        for dtype, index in ((dtype, index) for dtype in self.dtypes for index in self.coarse):
            collection = store.create(f"{name}_{dtype}_{index}", _WIDE, dtype)
            collection.write(make_entries(ids, vectors))
            collection.seal(index)
            found, _ = store.open(collection.name).nearest(queries, _RESCORED)
            scores = np.einsum("qd,qkd->qk", queries.astype(np.float64), vectors.astype(np.float64)[found])
            first = found[np.arange(len(queries)), scores.argmax(axis=1)]
            assert (first == best).mean() >= 0.99, (dtype, index)
            collection.delete(best[:1])
            assert best[0] not in collection.nearest(queries[:1], _K)[0]
            collection.seal(None)
            self.check(collection, ids[ids != best[0]], vectors[ids != best[0]], queries[:9], dtype=dtype)

    def test_it_describes_itself_in_json(self, filled: Collection, name: str) -> None:
        about = json.loads(json.dumps(filled.describe()))
        assert about["store"]
        wanted = {"collection": name, "count": _IMAGES, "dimensions": DIMENSIONS, "dtype": "float32"}
        assert {key: about[key] for key in wanted} == wanted

    # --- collections by name, and connections -----------------------------------------------------------------

    def test_collections_are_created_once_opened_named_and_dropped(
        self, store: Store, name: str, world: _World
    ) -> None:
        first = store.create(name, DIMENSIONS)
        first.write(make_entries(world[0][:3], world[1][:3]))
        store.create(f"{name}_b", 128)
        with pytest.raises(StoreConflict, match=name):
            store.create(name, DIMENSIONS)
        assert store.open(name).count() == 3
        assert (store.open(f"{name}_b").dimensions, store.open(name).dtype) == (128, "float32")
        assert store.names(name) == [name, f"{name}_b"]
        for _ in range(2):
            store.drop(name)
            assert store.names(name) == [f"{name}_b"]
        with pytest.raises(StoreConflict, match=name):
            store.open(name)
        assert store.create(name, DIMENSIONS).count() == 0

    def test_two_connections_see_each_other_at_once(
        self, store: Store, url: str, filled: Collection, world: _World
    ) -> None:
        ids, vectors, queries = world
        other = self.connect(url)
        theirs = other.open(filled.name)
        for step in range(5):
            vector = 10 * queries[step : step + 1]
            writer, reader = (filled, theirs) if step % 2 else (theirs, filled)
            writer.write(make_entries(np.array([10**6 + step]), vector))
            assert reader.nearest(queries[step : step + 1], 1)[0].tolist() == [[10**6 + step]]
            writer.delete([10**6 + step])
            assert reader.count() == _IMAGES
        self.check(theirs, ids, vectors, queries)
        store.put(f"{filled.name}/a", b"first")
        assert other.read(f"{filled.name}/a") == b"first"
        assert other.swap(f"{filled.name}/a", b"first", b"second")
        assert store.read(f"{filled.name}/a") == b"second"
        other.close()

    # --- documents and pieces ---------------------------------------------------------------------------------

    def test_documents_of_any_size_are_put_read_listed_and_erased(self, store: Store, name: str) -> None:
        large = np.random.default_rng(0).bytes(20_000_000)
        kept = {f"{name}/b/file.npy": large, f"{name}/a": b"", f"{name}/b/é": b"\x00\xff"}
        assert store.read(f"{name}/a") is None
        for key, data in kept.items():
            store.put(key, data)
        assert store.keys(f"{name}/") == sorted(kept)
        assert store.keys(f"{name}/b/") == sorted(kept)[1:]
        for key, data in kept.items():
            assert store.read(key) == data
        store.put(f"{name}/b/file.npy", b"short")
        assert store.read(f"{name}/b/file.npy") == b"short"
        for _ in range(2):
            store.erase(f"{name}/a")
            assert store.read(f"{name}/a") is None
            assert store.keys(f"{name}/") == sorted(kept)[1:]

    def test_pieces_are_put_and_read_many_at_a_time_and_erased_by_what_lists_them(
        self, store: Store, url: str, name: str
    ) -> None:
        folder, other = f"{name}/patches/", f"{name}/other/"
        large = np.random.default_rng(0).bytes(100_000)
        kept = {number: large[: 1000 * number] for number in (0, 3, 70, 99)}
        assert store.read_pieces(folder, [3, 4]) == {}
        store.put_pieces(other, {3: b"another folder's"})
        store.put_pieces(folder, dict(list(kept.items())[:3]))
        store.put_pieces(folder, dict(list(kept.items())[1:]))
        store.seal_pieces(folder)
        store.put_pieces(folder, {7: b"added"})
        seen = self.connect(url)
        assert seen.read_pieces(folder, [7, *kept, 5]) == {**kept, 7: b"added"}
        listed = seen.keys(folder)
        assert listed
        assert all(key.startswith(folder) for key in listed)
        for key in listed:
            store.erase(key)
        assert seen.keys(folder) == []
        assert seen.read_pieces(other, [3]) == {3: b"another folder's"}
        seen.close()

    def test_a_swap_happens_only_if_nobody_was_faster(self, store: Store, name: str) -> None:
        key = f"{name}/header"
        assert not store.swap(key, b"old", b"new")
        assert store.read(key) is None
        assert store.swap(key, None, b"one")
        assert not store.swap(key, None, b"other")
        assert not store.swap(key, b"On", b"other")
        assert store.read(key) == b"one"
        assert store.swap(key, b"one", b"two")
        assert store.read(key) == b"two"
        store.erase(key)
        assert store.swap(key, None, b"three")

    def test_of_eight_that_swap_at_once_one_wins(self, store: Store, url: str, name: str) -> None:
        other, key, old = self.connect(url), f"{name}/header", None
        together = Barrier(8)

        def try_it(turn: int, who: int) -> bytes | None:
            new = f"{turn} {who} ".encode() * 20
            together.wait()
            return new if (store, other)[who % 2].swap(key, old, new) else None

        with ThreadPoolExecutor(8) as threads:
            for turn in range(12):
                won = [new for new in threads.map(try_it, [turn] * 8, range(8)) if new is not None]
                assert len(won) == 1
                assert store.read(key) == other.read(key) == won[0]
                old = won[0]
        other.close()
