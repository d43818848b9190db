"""Maps in real stores on bad days: servers that are away, killed or locked, and several that want the same map."""

from __future__ import annotations

import threading
import time

import httpx2
import numpy as np
import pytest

from tests.client.conftest import serving
from tests.fakes import FakeEncoder
from tests.maps.building.builders import Published, build, counted
from tests.maps.building.conftest import encoded, fleet  # noqa: F401
from tests.maps.conftest import SPEC, photo
from tests.maps.store.stores import REAL, new_name, place_of
from tests.servers import PostgresServer, free_port
from tests.waiting import PATIENCE, wait_until
from tfa._http import ServiceError
from tfa.client import Client
from tfa.errors import BadMap, BadSpec, StoreConflict, StoreUnavailable
from tfa.maps import PlaceMap
from tfa.maps.building.passes import WriteEntries
from tfa.maps.store.header import ABANDONED, Builder, claim_key, claim_map
from tfa.search.store import Entries, open_map_store
from tfa.service.settings import ServiceSettings

pytestmark = pytest.mark.stores
PLACES = 14
pytest.importorskip("psycopg", reason="psycopg is not installed (pip install -e '.[dev]')")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def small(tmp_path):
    """A map of 14 places, not saved."""
    for place in range(PLACES):
        photo(tmp_path / "town" / f"@{place}@{place}@.png", place)
    return PlaceMap.build(tmp_path / "town", head="second-order", encoder=FakeEncoder(), spec=SPEC)


@pytest.fixture
def dusk(tmp_path):
    return photo(tmp_path / "dusk.png", 5, light=0.8)


def connected(url):
    return open_map_store(url)


def told(hits):
    return [(hit.id, hit.score) for hit in hits]


@pytest.mark.parametrize("scheme", ["postgres", "milvus"])
def test_a_store_that_is_down_at_the_start_is_named(scheme):
    if scheme == "milvus":
        pytest.importorskip("pymilvus")
    address = f"127.0.0.1:{free_port()}"
    middle = "postgres/" if scheme == "postgres" else ""
    with pytest.raises(StoreUnavailable, match=address) as refusal:
        PlaceMap.load(f"{scheme}://{address}/{middle}town")
    assert "start it" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.kill
def test_a_server_killed_during_a_sharded_build_is_named_and_the_next_run_finishes(
    own_postgres, fleet, encoded, monkeypatch  # noqa: F811
):  # fmt: skip
    url, write = f"{own_postgres.url}/town", WriteEntries.__call__
    build(fleet, url, dims=16)  # an older map, which must answer throughout

    def at_the_fourth_shard(self, shard):
        if shard.number == 3:
            own_postgres.kill()
        return write(self, shard)

    monkeypatch.setattr(WriteEntries, "__call__", at_the_fourth_shard)
    with pytest.raises(StoreUnavailable, match=own_postgres.address):
        build(fleet, url)
    monkeypatch.setattr(WriteEntries, "__call__", write)
    own_postgres.start()
    before = Published(url)
    assert (before.header.dims, before.header.version) == (16, 1)
    half = [name for name in before.store.names("town__v") if name != before.header.collection]
    assert before.store.open(half[0]).count() == 30  # three shards of ten
    images = counted(encoded)
    build(fleet, url)
    assert counted(encoded) == images  # nothing was encoded again
    after = Published(url)
    assert after.ids.tolist() == list(range(75))
    assert len(set(after.names)) == 75
    assert set(after.store.names("town__v")) == {after.header.collection, before.header.collection}
    for one in (before, after):
        one.store.close()


@pytest.mark.kill
def test_a_service_over_a_killed_server_says_so_and_comes_back_by_itself(own_postgres, small, dusk):
    served = small.publish(f"{own_postgres.url}/town", dims=64)
    with serving([served], ServiceSettings(port=0)) as (url, _), Client(url, retries=0) as client:
        expected = told(client.query(dusk))
        own_postgres.kill()
        with pytest.raises(ServiceError, match=own_postgres.address) as refusal:
            client.query(dusk)
        assert refusal.value.status == 503
        wait_until(lambda: httpx2.get(f"{url}/readyz", timeout=PATIENCE).status_code == 503)
        assert own_postgres.address in httpx2.get(f"{url}/readyz", timeout=PATIENCE).json()["status"]
        own_postgres.start()
        wait_until(lambda: httpx2.get(f"{url}/readyz", timeout=PATIENCE).status_code == 200)
        assert told(client.query(dusk)) == expected
    served.close()


@pytest.mark.parametrize("kind", REAL)
def test_of_two_builders_one_is_refused_and_what_a_dead_one_left_is_dropped(kind, request, small):
    url = f"{place_of(kind, request)}/{new_name()}"
    store, name = connected(url)
    long_ago = time.time() - 1.5 * ABANDONED
    store.put(claim_key(name), Builder("process 1 of elsewhere", "built", long_ago, long_ago, "x").to_bytes())
    store.create(f"{name}__v77", 64)
    store.put(f"{name}/v77/skeleton/map.json", b"half")
    start, won, lost = threading.Barrier(2), [], []

    def builder():
        start.wait()
        try:
            won.append(small.publish(url, dims=64))
        except StoreConflict as error:
            lost.append(str(error))

    refused = pytest.raises(StoreConflict, match=r"is being built by process \d+ of .* for 0 min")
    with claim_map(store, name, "built", url), refused:
        small.publish(url, dims=64)
    threads = [threading.Thread(target=builder) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won
    assert len(won) + len(lost) == 2
    for said in lost:  # they may as well have come one after the other
        assert f"{name} is being built by process" in said
    assert f"{name}__v77" not in store.names()
    assert not store.keys(f"{name}/v77")
    assert store.names(f"{name}__v") == [f"{name}__v{1 + number}" for number in range(len(won))]
    for built in won:
        built.close()
    store.close()


@pytest.mark.parametrize("kind", REAL)
def test_a_collection_that_somebody_made_anew_is_refused(kind, request, small, dusk):
    url = f"{place_of(kind, request)}/{new_name()}"
    built = small.publish(url, dims=64)
    store, _ = connected(url)
    collection = built.storage.view.header.collection
    store.drop(collection)
    with pytest.raises((StoreConflict, BadMap), match="rebuild the map"):
        PlaceMap.load(url, encoder=FakeEncoder())
    payload = [{"path": "x", "digest": "x", "session": None, "position": None}]
    store.create(collection, 32).write(Entries(np.array([0]), np.ones((1, 32), np.float32), payload, [b""]))
    with pytest.raises(BadMap, match=r"has 32 dimensions, must be 64; rebuild the map"):
        PlaceMap.load(url, encoder=FakeEncoder())
    rebuilt = small.publish(url, dims=64)  # as it says
    assert rebuilt.query(dusk, k=1)[0].image.endswith("@5@5@.png")
    for one in (built, rebuilt, store):
        one.close()


def made_by_others(kind, place, name):
    """A collection of vectors of Euclidean distance."""
    if kind == "milvus":
        from pymilvus import MilvusClient

        client = MilvusClient(place.replace("milvus://", "http://"))
        client.create_collection(name, dimension=8, metric_type="L2")
        return lambda: client.has_collection(name)
    import lancedb

    database = lancedb.connect(place.removeprefix("lance://"))
    database.create_table(name, [{"id": 1, "vector": [0.0] * 8}])
    return lambda: bool(database.open_table(name).count_rows())


@pytest.mark.parametrize("kind", ["lance", "milvus"])
def test_a_collection_of_others_that_is_called_like_a_version_is_left_alone(kind, request, small, dusk):
    place, name = place_of(kind, request), new_name()
    still_there = made_by_others(kind, place, f"{name}__v5")
    built = small.publish(f"{place}/{name}", dims=64)
    assert built.storage.view.header.version == 6
    assert still_there()
    assert len(built.query(dusk, k=3)) == 3
    built.close()


@pytest.mark.kill
def test_a_lost_shard_or_a_wrong_password_is_named_and_nothing_is_answered_without(small, dusk, monkeypatch):
    servers = [PostgresServer(password="s3cret").start() for _ in range(3)]
    asked, first, second = servers
    try:
        monkeypatch.delenv("PGPASSWORD", raising=False)
        sharded = f"{asked.url}/town?shards={first.address},{second.address}"
        for wrong in (sharded.replace("s3cret", "guessed"), sharded.replace(":s3cret", "")):
            with pytest.raises(BadSpec, match=r"set them in the URL, .* or in PGUSER and PGPASSWORD") as refusal:
                small.publish(wrong, dims=64)
            assert "guessed" not in str(refusal.value)
        town = small.publish(sharded, dims=64)
        expected = told(town.query(dusk, k=PLACES))
        assert len(expected) == PLACES
        second.kill()
        with pytest.raises(StoreUnavailable, match=rf"shard {second.address} .* queries need all shards"):
            town.query(dusk)
        second.start()
        assert told(town.query(dusk, k=PLACES)) == expected
        monkeypatch.setenv("PGPASSWORD", "s3cret")
        opened = PlaceMap.load(sharded.replace(":s3cret", ""), encoder=FakeEncoder())
        assert told(opened.query(dusk, k=PLACES)) == expected
        for one in (town, opened):
            one.close()
    finally:
        for server in servers:
            server.remove()
