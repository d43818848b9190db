"""The part of the suite of stores that is about the store: collections by name, connections, documents."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from tests.search.store_world import DIMENSIONS, IMAGES, entries_of
from tfa.errors import EngineConflict


class WholeStoreContract:
    """For StoreContract, which has the fixtures."""

    def test_collections_are_created_once_opened_named_and_dropped(self, store, name, world):
        first = store.create(name, DIMENSIONS)
        first.write(entries_of(world[0][:3], world[1][:3]))
        store.create(f"{name}_b", 128)
        with pytest.raises(EngineConflict, match=name):
            store.create(name, DIMENSIONS)
        assert store.open(name).count() == 3
        assert (store.open(f"{name}_b").dimensions, store.open(name).dtype) == (128, "float32")
        assert store.names(name) == [name, f"{name}_b"]
        for _ in range(2):
            store.drop(name)
            assert store.names(name) == [f"{name}_b"]
        with pytest.raises(EngineConflict, match=name):
            store.open(name)
        assert store.create(name, DIMENSIONS).count() == 0

    def test_two_connections_see_each_other_at_once(self, store, url, filled, world):
        ids, vectors, queries = world
        other = self.connect(url)
        theirs = other.open(filled.name)
        for step in range(5):
            vector = 10 * queries[step : step + 1]
            writer, reader = (filled, theirs) if step % 2 else (theirs, filled)
            writer.write(entries_of(np.array([10**6 + step]), vector))
            assert reader.nearest(queries[step : step + 1], 1)[0].tolist() == [[10**6 + step]]
            writer.delete([10**6 + step])
            assert reader.count() == IMAGES
        self.check(theirs, ids, vectors, queries)
        store.put(f"{filled.name}/a", b"first")
        assert other.read(f"{filled.name}/a") == b"first"
        assert other.swap(f"{filled.name}/a", b"first", b"second")
        assert store.read(f"{filled.name}/a") == b"second"
        other.close()

    def test_documents_of_any_size_are_put_read_listed_and_erased(self, store, name):
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

    def test_a_swap_happens_only_if_nobody_was_faster(self, store, name):
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

    def test_of_eight_that_swap_at_once_one_wins(self, store, url, name):
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
