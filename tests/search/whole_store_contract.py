"""The part of the suite of stores that is about the store: collections by name, and connections."""

from __future__ import annotations

import numpy as np
import pytest

from tests.search.document_contract import DocumentContract
from tests.search.store_world import DIMENSIONS, IMAGES, entries_of
from tfa.errors import EngineConflict


class WholeStoreContract(DocumentContract):
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
