"""Embedded Qdrant passes the store contract; it allows one process at a time."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tfa.errors import BadSpec, StoreConflict, StoreUnavailable
from tfa_bench.store_contract import DIMENSIONS, StoreContract, make_entries

pytest.importorskip("tfa_qdrant", reason="tfa-qdrant is not installed: pip install -e plugins/tfa-qdrant")
from tfa_qdrant.store import QdrantEdgeStore

pytestmark = pytest.mark.stores

OPEN_IT = """
import sys
from tfa.errors import StoreConflict
from tfa_qdrant.store import QdrantEdgeStore
try:
    print(QdrantEdgeStore.connect(sys.argv[1]).open("places__v1").count())
except StoreConflict as error:
    print(error)
"""
WRITE_AND_DIE = """
import os, sys
import numpy as np
from tfa_bench.store_contract import DIMENSIONS, make_entries, make_vectors
from tfa_qdrant.store import QdrantEdgeStore
store = QdrantEdgeStore.connect(sys.argv[1])
collection = store.create("places__v1", DIMENSIONS)
collection.write(make_entries(np.arange(100), make_vectors(100, DIMENSIONS)[0]))
collection.delete([3])
assert store.swap("places/header", None, b"one")
os.kill(os.getpid(), 9)
"""


class TestQdrantEdge(StoreContract):
    dtypes = ("float32", "float16")
    coarse = ("turbo4",)

    @pytest.fixture
    def url(self, tmp_path):
        return f"qdrant://{tmp_path}/places of Köln"

    def test_a_second_process_is_refused_until_the_first_lets_go(self, store, url, world):
        store.create("places__v1", DIMENSIONS).write(make_entries(*world[:2]))
        ask = [sys.executable, "-c", OPEN_IT, url.replace(" ", "%20")]
        refused = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
        assert f"in use by process {os.getpid()}" in refused
        store.close()
        assert subprocess.run(ask, capture_output=True, text=True, check=True).stdout == "300\n"

    def test_what_was_dropped_or_closed_says_so(self, store, name, world):
        collection = store.create(name, DIMENSIONS)
        store.drop(name)
        with pytest.raises(StoreUnavailable, match=f"{name}.*open it again"):
            collection.nearest(world[2], 3)

    def test_a_folder_that_is_no_collection_is_left_alone(self, store, name, tmp_path):
        (tmp_path / "places of Köln" / "collections" / name).mkdir(parents=True)
        with pytest.raises(StoreConflict, match="not created by tfa"):
            store.open(name)
        with pytest.raises(StoreConflict, match=name):
            store.create(name, DIMENSIONS)

    def test_keys_may_be_anything(self, store, name):
        keys = [f"{name}/a", f"{name}/a/b", f"{name}/../c", f"{name}//d", f"{name}/\udcff%2F", f"{name}/e.document"]
        for number, key in enumerate(keys):
            store.put(key, b"%d" % number)
        assert store.keys(f"{name}/") == sorted(keys)
        assert [store.read(key) for key in keys] == [b"%d" % number for number in range(len(keys))]

    @pytest.mark.kill
    def test_a_killed_process_leaves_what_was_acknowledged_and_the_folder_free(self, url):
        command = [sys.executable, "-c", WRITE_AND_DIE, url.replace(" ", "%20")]
        assert subprocess.run(command).returncode == -9
        store = self.connect(url)
        assert store.open("places__v1").count() == 99
        assert np.concatenate([page.ids for page in store.open("places__v1").pages()])[:4].tolist() == [0, 1, 2, 4]
        assert store.read("places/header") == b"one"
        store.close()


def test_a_server_is_refused_with_what_is_possible():
    with pytest.raises(BadSpec, match="qdrant:///FOLDER/NAME"):
        QdrantEdgeStore.connect("qdrant://127.0.0.1:6333")
