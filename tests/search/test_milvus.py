"""Milvus passes the store contract; its locks, partitions and lost connections."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from uuid import uuid4

import numpy as np
import pytest

from tests.waiting import PATIENCE
from tfa.errors import BadSpec, StoreConflict, StoreUnavailable
from tfa.search.store import Entries
from tfa_bench.store_contract import DIMENSIONS, StoreContract, make_entries, make_vectors, rank_by_definition

pytest.importorskip("tfa_milvus", reason="tfa-milvus is not installed: pip install -e plugins/tfa-milvus")
from tfa_milvus import collection as milvus_collection
from tfa_milvus import documents as milvus_documents
from tfa_milvus.connection import Connection
from tfa_milvus.store import MilvusStore

pytestmark = pytest.mark.stores

COUNT_UP = """
import sys
from tfa.errors import StoreUnavailable
from tfa_milvus.store import MilvusStore
store, key, times = MilvusStore.connect(sys.argv[1]), sys.argv[2], int(sys.argv[3])
while times:
    old = store.read(key)
    try:
        times -= store.swap(key, old, b"%d" % (int(old or b"0") + 1))
    except StoreUnavailable as error:
        if "is unchanged" not in str(error):  # the machine was so busy that the claim became too old
            raise
"""


class TestMilvus(StoreContract):
    coarse = ("ivf_sq8", "hnsw")

    @pytest.fixture
    def url(self, milvus_address):
        return f"milvus://{milvus_address}"

    def test_equal_vectors_among_others_are_ordered_by_id_in_every_batch(self, store, name):
        vectors, queries = make_vectors(2000, DIMENSIONS)
        vectors[::11] = vectors[0]  # 182 of them, more than are asked for
        ids = np.random.default_rng(3).permutation(2000)
        collection = store.create(name, DIMENSIONS)
        for part in np.array_split(np.arange(2000), 3):
            collection.write(make_entries(ids[part], vectors[part]))
        asked = np.concatenate([queries[:40], 5 * vectors[:1]])
        found, _ = collection.nearest(asked, 20)
        np.testing.assert_array_equal(found, rank_by_definition(ids, vectors, asked, 20)[0])

    def test_writes_are_sent_in_pieces(self, store, name, world, monkeypatch):
        monkeypatch.setattr(milvus_collection, "BATCH_BYTES", 5000)
        monkeypatch.setattr(milvus_collection, "FETCHED", 7)
        collection = store.create(name, DIMENSIONS)
        collection.write(make_entries(*world[:2]))
        assert collection.count() == len(world[0])
        assert collection.fetch(world[0]).ids.tolist() == world[0].tolist()
        assert len(collection.find([f"{int(one):064x}" for one in world[0]])) == len(world[0])

    def test_what_does_not_fit_a_row_is_refused_by_its_id(self, store, name, world):
        collection = store.create(name, DIMENSIONS)
        with pytest.raises(BadSpec, match=r"image 77 .* 65535"):
            collection.write(Entries(np.array([77]), world[1][:1], [{}], [bytes(50_000)]))
        assert collection.count() == 0

    def test_a_collection_of_somebody_else_is_left_alone(self, store, name, url):
        client = store._connection.client()
        client.create_collection(name, dimension=8, metric_type="IP")
        with pytest.raises(StoreConflict, match=rf"{name}.*not created by tfa.*fields"):
            store.open(name)
        client.create_collection(f"{name}_l2", schema=milvus_collection.schema_of(8))
        params = client.prepare_index_params()
        params.add_index("vector", index_name="vector", index_type="FLAT", metric_type="L2")
        client.create_index(f"{name}_l2", params)
        with pytest.raises(StoreConflict, match="metric is L2, not IP"):
            store.open(f"{name}_l2")

    def test_a_collection_whose_maker_died_before_the_index_is_finished_when_opened(self, store, name, world):
        store._connection.call("create_collection", name, schema=milvus_collection.schema_of(DIMENSIONS))
        collection = store.open(name)
        collection.write(make_entries(*world[:2]))
        self.check(collection, *world)

    def test_a_write_that_was_never_finished_leaves_the_document_as_it_was(self, store, name, monkeypatch):
        key, documents = f"{name}/skeleton", store._documents
        store.put(key, b"whole" * 30_000)
        with monkeypatch.context() as patch:
            patch.setattr(documents, "_settle", lambda: (_ for _ in ()).throw(StoreUnavailable("killed here")))
            with pytest.raises(StoreUnavailable):
                store.put(key, b"other" * 30_000)
        assert store.read(key) == b"whole" * 30_000
        assert store.keys(name) == [key]
        monkeypatch.setattr(milvus_documents, "LEFT_SECONDS", 0)  # as if it had been an hour ago
        store.put(key, b"third" * 30_000)
        documents._settle()
        rows = documents._request(f'document == "{key.encode().hex()}" and part >= 0', ["version"])
        assert len(rows) == 4  # 150,000 bytes: the parts of one version
        assert store.read(key) == b"third" * 30_000

    def test_a_reader_gets_one_whole_version_while_it_is_replaced(self, store, name, url):
        key, versions = f"{name}/file", [bytes([one]) * 200_000 for one in range(6)]
        store.put(key, versions[0])
        other, ended = self.connect(url), Event()

        def read_on() -> set[bytes]:
            seen = set()
            while not ended.is_set():
                seen.add(other.read(key))
            return seen

        with ThreadPoolExecutor(1) as reader:
            seen = reader.submit(read_on)
            for version in versions[1:]:
                store.put(key, version)
            ended.set()
            assert seen.result() <= set(versions)
        other.close()

    def test_the_latest_document_is_asked_for_strongly(self, store, name, monkeypatch):
        key, asked, ask = f"{name}/claim", [], store._connection.request
        store.put(key, b"mine")

        def noted(*given, **options):
            asked.append(options["consistency_level"])
            return ask(*given, **options)

        monkeypatch.setattr(store._connection, "request", noted)
        assert store.read(key) == store.read_latest(key) == b"mine"
        assert asked == ["Bounded", "Strong"]

    def test_the_claim_of_somebody_who_died_is_given_up(self, store, name, monkeypatch):
        monkeypatch.setattr(milvus_documents, "ABANDONED_SECONDS", 1)
        key, documents = f"{name}/header", store._documents
        documents._write([documents._row(f"claim-{uuid4().hex}", key, -2, "0" * 20, 0, b"")])
        began = time.monotonic()
        assert store.swap(key, None, b"new")
        assert time.monotonic() - began >= 1  # and not before
        assert store.read(key) == b"new"

    def test_a_claim_held_too_long_is_not_used(self, store, name, monkeypatch):
        monkeypatch.setattr(milvus_documents, "HOLDING_SECONDS", 0)
        monkeypatch.setattr(milvus_documents.Documents, "_alone", lambda *_: True)
        with pytest.raises(StoreUnavailable, match="is unchanged"):
            store.swap(f"{name}/header", None, b"new")
        assert store.read(f"{name}/header") is None

    @pytest.mark.kill
    def test_processes_that_count_up_by_swapping_lose_no_count(self, store, name, url):
        key, times = f"{name}/count", 5
        command = [sys.executable, "-c", COUNT_UP, url, key, str(times)]
        counters = [subprocess.Popen(command) for _ in range(3)]
        assert [counter.wait(PATIENCE) for counter in counters] == [0, 0, 0]
        assert store.read(key) == b"%d" % (3 * times)


def test_nobody_at_the_address_is_an_error_that_names_it():
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:9 does not answer"):
        MilvusStore.connect("milvus://127.0.0.1:9")
    with pytest.raises(BadSpec, match="milvus://HOST"):
        MilvusStore.connect("milvus://")


def test_a_refused_token_is_a_sentence_without_the_token():
    pymilvus = pytest.importorskip("pymilvus")
    connection = Connection("milvus://:secret@127.0.0.1:9")
    error = connection._meaning(pymilvus.MilvusException(1400, "auth check failure, please check api key"))
    assert isinstance(error, StoreUnavailable)
    assert "127.0.0.1:9 refuses this user or token" in str(error)
    assert "secret" not in str(error)


def test_what_grpc_raises_itself_is_an_error_of_ours_too(monkeypatch):
    grpc = pytest.importorskip("grpc")

    class Late(grpc.RpcError):
        def code(self):
            return grpc.StatusCode.DEADLINE_EXCEEDED

        def details(self):
            return "Deadline Exceeded"

    class Client:
        def query(self, *_, **__):
            raise Late

        def close(self):
            pass

    connection = Connection("milvus://127.0.0.1:9")
    monkeypatch.setattr(connection, "client", Client)
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:9 does not answer \(Deadline Exceeded\)"):
        connection.request("places", "query")
