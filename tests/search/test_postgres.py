"""PostgreSQL keeps the contract of stores, over the wire."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from tests.servers import PostgresServer
from tests.waiting import wait_until
from tfa.errors import BadSpec, StoreUnavailable
from tfa.search.store import Entries, Where
from tfa_bench.store_contract import StoreContract, make_entries, make_vectors

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed (pip install -e '.[dev]')")
from pgvector import Vector  # noqa: E402
from psycopg import sql  # noqa: E402

pytestmark = pytest.mark.stores


class TestPostgres(StoreContract):
    dtypes = ("float32", "float16")
    coarse = ("ivfflat", "hnsw", "bit")

    @pytest.fixture
    def url(self, postgres) -> str:
        return postgres.url


@pytest.fixture(scope="module")
def cluster():
    """A server that is asked, two shards, and a replica of the second."""
    first, second, asked = (PostgresServer(password="of all three") for _ in range(3))
    for server in (first, second, asked):
        server.start()
    yield asked, first, second
    for server in (asked, first, second):
        server.remove()


def sharded(asked: PostgresServer, *shards: PostgresServer, replicas: str = "") -> str:
    wanted = ",".join(shard.address for shard in shards)
    return f"{asked.url}?shards={wanted}{replicas}".replace("of all three", "of%20all%20three")


class TestShards(StoreContract):
    dtypes = ("float32", "float16")

    @pytest.fixture
    def url(self, cluster) -> str:
        return sharded(*cluster)


def test_shards_hold_a_part_each_and_order_it_themselves(cluster):
    _, first, second = cluster
    store = StoreContract.connect(sharded(*cluster))
    vectors, queries = make_vectors(400, 64)
    collection = store.create("parts__v1", 64, "float16")
    collection.write(make_entries(np.arange(400), vectors))
    collection.seal()
    assert collection.describe()["shards"] == [first.address, second.address]
    held = [StoreContract.connect(one.url.replace(" ", "%20")) for one in (first, second)]
    counts = [one._server.run(lambda c: c.execute('select count(*) from tfa."parts__v1"').fetchone()) for one in held]
    assert sum(count for (count,) in counts) == 400
    assert min(count for (count,) in counts) > 100
    command = collection._search().format(table=collection._table, condition=sql.SQL("true"))
    values = {"query": Vector(queries[0]), "rough": collection._vector(queries[0]), "k": 10, "spare": 26}
    explain = sql.SQL("explain (verbose) ") + command
    plan = "\n".join(line for (line,) in store._server.run(lambda c: c.execute(explain, values).fetchall()))
    assert "Merge Append" in plan
    assert plan.count("Remote SQL") == plan.count("ORDER BY") == 2
    with pytest.raises(BadSpec, match="hnsw does not support shards"):
        collection.seal("hnsw")
    store.drop("parts__v1")
    for one in (*held, store):
        one.close()


@pytest.mark.kill
def test_a_lost_shard_is_named_and_its_replica_answers(cluster):
    _, first, second = cluster
    vectors, queries = make_vectors(400, 64)
    store = StoreContract.connect(sharded(*cluster))
    collection = store.create("lost__v1", 64)
    collection.write(make_entries(np.arange(400), vectors))
    answer = collection.nearest(queries[:3], 10)
    second.kill()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=second.address) as refusal:
            collection.nearest(queries[:3], 10)
        assert "of all three" not in str(refusal.value)
    second.start()
    for got, wanted in zip(collection.nearest(queries[:3], 10), answer, strict=True):
        np.testing.assert_array_equal(got, wanted)
    store.drop("lost__v1")
    store.close()

    replica = second.replica().start()
    url = sharded(*cluster, replicas=f"&replicas={first.address},{replica.address}")
    store = StoreContract.connect(url)
    collection = store.create("lost__v2", 64)
    collection.write(make_entries(np.arange(400), vectors))
    caught_up(replica, "lost__v2", second)
    second.kill()
    for got, wanted in zip(collection.nearest(queries[:3], 10), answer, strict=True):
        np.testing.assert_array_equal(got, wanted)
    with pytest.raises(StoreUnavailable, match="replica is read-only"):
        collection.write(make_entries(np.arange(400), vectors))
    second.start()
    collection.write(make_entries(np.arange(10), vectors[:10]))
    assert collection.count() == 400
    store.drop("lost__v2")
    store.close()
    replica.remove()


def caught_up(replica: PostgresServer, name: str, primary: PostgresServer) -> None:
    """Wait until a standby has what its primary has."""
    command = sql.SQL("select count(*) from {}").format(sql.Identifier("tfa", name))

    def rows(server):
        login = {"user": "tfa", "password": server.password, "dbname": "postgres"}
        with psycopg.connect(host="127.0.0.1", port=server.port, **login) as connection:
            if connection.execute("select to_regclass(%s)", (f"tfa.{name}",)).fetchone() == (None,):
                return None
            return connection.execute(command).fetchone()[0]

    wait_until(lambda: rows(replica) == rows(primary))


@pytest.mark.kill
def test_a_killed_server_is_named_and_has_every_acknowledged_write_when_it_is_back():
    server = PostgresServer().start()
    try:
        store = StoreContract.connect(server.url)
        vectors, queries = make_vectors(300, 64)
        collection = store.create("killed__v1", 64)
        collection.write(make_entries(np.arange(250), vectors[:250]))
        collection.seal()
        collection.write(make_entries(np.arange(250, 300), vectors[250:]))
        store.put("killed/header", b"of version 1")
        server.kill()
        for use in (lambda: collection.nearest(queries, 10), lambda: store.read("killed/header"), collection.count):
            with pytest.raises(StoreUnavailable, match=server.address):
                use()
        with pytest.raises(StoreUnavailable, match=server.address):
            StoreContract.connect(server.url)
        server.start()
        assert collection.count() == 300
        assert store.read("killed/header") == b"of version 1"
        assert store.swap("killed/header", b"of version 1", b"of version 2")
        TestPostgres().check(collection, np.arange(300), vectors, queries)
        server.kill()
        server.start()
        assert store.swap("killed/header", b"of version 2", b"of version 3")  # its connection was lost meanwhile
        store.close()
    finally:
        server.remove()


def test_a_host_that_is_gone_is_noticed_by_every_connection(postgres):
    names = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3, socket.TCP_USER_TIMEOUT: 25_000}

    def read_options(connection):
        with socket.socket(fileno=os.dup(connection.fileno())) as one:
            return {name: one.getsockopt(socket.IPPROTO_TCP, name) for name in names}

    with closing(StoreContract.connect(postgres.url)) as store:
        assert store._server.run(read_options) == names


def test_what_keeps_us_out_is_said_without_the_password(postgres, cluster):
    asked = cluster[0]
    with pytest.raises(BadSpec, match="rejects user 'tfa'") as refusal:
        StoreContract.connect(f"postgres://tfa:s3cret@{asked.address}/postgres")
    assert "s3cret" not in str(refusal.value)
    with pytest.raises(BadSpec, match='database "elsewhere" does not exist'):
        StoreContract.connect(f"postgres://tfa@{postgres.address}/elsewhere")
    with psycopg.connect(f"postgresql://tfa@{postgres.address}/postgres", autocommit=True) as connection:
        connection.execute("create role guest login")
        connection.execute("create database bare")
    with pytest.raises(BadSpec, match=r"lacks the extension 'vector'.*create extension vector"):
        StoreContract.connect(f"postgres://guest@{postgres.address}/bare")
    StoreContract.connect(f"postgres://tfa@{postgres.address}/bare").close()
    with pytest.raises(BadSpec, match="user 'guest' lacks permission"):
        StoreContract.connect(f"postgres://guest@{postgres.address}/bare")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?shard=a:1", "use shards= or replicas="),
        ("?shards=nowhere", "HOST:PORT"),
        ("?shards=a:1,b:2&replicas=c:3", "2 shards and 1 replicas"),
        ("?shards=127.0.0.1:5432", "cannot be its own shard"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused(query, said):
    with pytest.raises(BadSpec, match=said):
        StoreContract.connect(f"postgres://tfa@127.0.0.1:5432/postgres{query}")


def test_indexes_that_cannot_be_are_refused(postgres):
    store = StoreContract.connect(postgres.url)
    wide = store.create("wide__v1", 2048)
    wide.seal()
    assert wide.describe()["index"] == "scan"
    with pytest.raises(BadSpec, match=r"at most 2000 dimensions.*2048"):
        wide.seal("hnsw")
    with pytest.raises(BadSpec, match="use scan, ivfflat, hnsw, bit"):
        wide.seal("annoy")
    with pytest.raises(BadSpec, match="float32 or float16"):
        store.create("bytes__v1", 64, "int8")
    store.drop("wide__v1")
    store.close()


def test_a_connection_lost_inside_a_pipeline_is_closed_and_the_query_answered(postgres):
    store = StoreContract.connect(postgres.url)
    vectors, queries = make_vectors(40, 64)
    collection = store.create("pipeline__v1", 64)
    collection.write(make_entries(np.arange(40), vectors))
    answer = collection.nearest(queries[:3], 10)
    [connection] = store._server._idle
    send = connection.execute

    def lose(*_given, **_named):
        raise psycopg.OperationalError("consuming input failed: Connection timed out")

    def send_and_lose(*given, **named):
        if connection.info.pipeline_status:  # the query is sent, its answer never arrives
            connection.wait = lose
        return send(*given, **named)

    connection.execute = send_and_lose
    for got, expected in zip(collection.nearest(queries[:3], 10), answer, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert connection.wait is lose
    assert connection.closed
    assert connection not in store._server._idle
    assert collection.count() == 40
    store.drop("pipeline__v1")
    store.close()


def test_images_that_are_deleted_during_a_search_do_not_fail_it(postgres, monkeypatch):
    store = StoreContract.connect(postgres.url)
    vectors, queries = make_vectors(12, 64)
    collection = store.create("shrinking__v1", 64)
    collection.write(make_entries(np.arange(12), vectors))
    ids, scores = collection.nearest(queries[:3], 20)
    written = type(collection)._sql

    def count_fewer(self, text):  # as after a deletion between the searches and the count
        return written(self, text.replace("select 1 from {table}", "select 1 from {table} where id < 7"))

    monkeypatch.setattr(type(collection), "_sql", count_fewer)
    for got, expected in zip(collection.nearest(queries[:3], 20), (ids, scores), strict=True):
        np.testing.assert_array_equal(got, expected)
    monkeypatch.undo()
    store.drop("shrinking__v1")
    store.close()


@pytest.mark.parametrize("threads_of_a_pool", [8, 2], ids=["server", "shards"])
def test_threads_in_four_pools_that_write_the_same_images_all_succeed(request, threads_of_a_pool):
    shards = threads_of_a_pool == 2  # each thread connects to three servers then
    fixture = request.getfixturevalue("cluster" if shards else "postgres")
    pools = [StoreContract.connect(sharded(*fixture) if shards else fixture.url) for _ in range(4)]
    collection = pools[0].create("twice__v1", 64)
    vectors, _ = make_vectors(40, 64)
    writers = [pool.open("twice__v1") for pool in pools] * threads_of_a_pool
    begin = threading.Barrier(len(writers))

    def write(collection):
        begin.wait()
        collection.write(make_entries(np.arange(40), vectors))

    with ThreadPoolExecutor(len(writers)) as threads:
        for done in [threads.submit(write, one) for one in writers]:
            done.result()
    assert collection.count() == 40
    pools[0].drop("twice__v1")
    for one in pools:
        one.close()


def test_names_that_text_cannot_hold_are_kept(postgres):
    store = StoreContract.connect(postgres.url)
    collection = store.create("odd__v1", 4)
    odd = {"path": "caf\udce9.jpg", "digest": "d", "session": "a\udce9\x00b", "position": None}
    collection.write(Entries(np.array([1]), np.ones((1, 4), np.float32), [odd], [b""]))
    assert dict(collection.fetch([1]).payload[0]) == odd
    assert collection.nearest(np.ones((1, 4)), 1, Where((odd["session"],)))[0].tolist() == [[1]]
    store.drop("odd__v1")
    store.close()
