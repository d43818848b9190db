"""The service with a map in a store: replicas, an unreachable store, and refused requests."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo
from tests.maps.store.stores import Flaky, memory_store, new_url
from tests.service.conftest import add, ask, ids, picture
from tests.waiting import wait_until
from tfa.maps import PlaceMap
from tfa.maps.store import StoreStorage
from tfa.service.app import create_app
from tfa.service.settings import ServiceSettings

PLACES = 14


@pytest.fixture
def url(tmp_path, monkeypatch):
    """A map in a store."""
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    for place in range(PLACES):
        photo(tmp_path / "town" / f"@{place}@{place}@.png", place)
    small = PlaceMap.build(tmp_path / "town", head="second-order", encoder=FakeEncoder(), spec=SPEC)
    address = new_url("memory://test{n}")
    small.publish(address, dims=64)
    return address


@pytest.fixture
def store(url):
    return Flaky(memory_store(url))


@pytest.fixture
def replica(url, store):
    """Starts a replica of the service."""
    clients = []

    def start():
        app = create_app([PlaceMap(StoreStorage(store, "town", url, 5_000), FakeEncoder())], ServiceSettings())
        client = TestClient(app, base_url="http://localhost").__enter__()
        clients.append(client)
        wait_until(lambda: client.get("/readyz").status_code == 200)
        return client

    yield start
    store.there = True
    for client in clients:
        client.__exit__(None, None, None)


def best(client):
    return ask(client, picture(40, 0.9), k=1).json()["hits"][0]


def test_an_edit_through_one_replica_is_seen_in_another_within_a_second(replica):
    one, other = replica(), replica()
    before = best(other)
    added = add(one, ("new.png", picture(40))).json()
    assert added["added"] == [PLACES]
    wait_until(lambda: best(other)["id"] == PLACES)
    told = other.get("/v1/map").json()
    assert (told["images"], told["verification"]["cache"]["most_bytes"]) == (PLACES + 1, 5_000)
    shown = other.get(f"/v1/images/{PLACES}/file")  # the photo that the other replica was sent
    assert (shown.status_code, shown.headers["content-type"]) == (200, "image/jpeg")
    again = add(other, ("copy.png", picture(40))).json()
    assert again["skipped"][0][1] == f"already in the map as image {PLACES}"
    assert one.delete(f"/v1/images/{PLACES}").json()["removed"] == [PLACES]
    wait_until(lambda: best(other)["id"] == before["id"])
    assert ids(one) == list(range(PLACES))


def test_images_are_listed_by_pages(replica):
    client = replica()
    page = client.get("/v1/images", params={"offset": 5, "limit": 3}).json()
    assert (page["total"], [one["id"] for one in page["images"]]) == (PLACES, [5, 6, 7])
    found = client.get("/v1/images", params={"filter": "@3@"}).json()
    assert (found["total"], len(found["images"])) == (1, 1)
    assert client.get("/v1/positions").json()["kind"] == "xy"
    assert client.delete("/v1/images/99").status_code == 404


def test_a_store_that_is_away_is_named_and_the_service_comes_back_by_itself(replica, store):
    client = replica()
    expected = ask(client, picture(3, 0.8)).json()["hits"]
    store.there = False
    wait_until(lambda: client.get("/readyz").status_code == 503)
    assert "flaky://here does not answer" in client.get("/readyz").json()["status"]
    answer = ask(client, picture(3, 0.8))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "flaky://here does not answer" in answer.json()["error"]
    for path in ("/v1/map", "/v1/images", "/v1/images/1/file"):
        assert client.get(path).status_code == 503, path
    assert add(client, ("new.png", picture(40))).status_code == 503
    assert client.get("/healthz").status_code == 200
    assert client.get("/metrics").status_code == 200
    store.there = True
    wait_until(lambda: client.get("/readyz").status_code == 200)
    assert ask(client, picture(3, 0.8)).json()["hits"] == expected


def test_regions_and_sessions_choose_who_may_answer(replica):
    client = replica()
    inside = ask(client, picture(3, 0.8), region="5,5,9,9", k=20).json()["hits"]
    assert sorted(hit["position"]["x"] for hit in inside) == [5, 6, 7, 8, 9]
    assert ask(client, picture(3, 0.8), sessions="night").json()["hits"] == []
    for place, session in ((40, "night, rain"), (41, "noon"), (42, "night")):
        assert add(client, (f"{place}.png", picture(place)), session=session).status_code == 200
    both = ask(client, picture(40, 0.9), sessions=["night, rain", "noon"], k=20).json()["hits"]
    assert {hit["id"] for hit in both} == {PLACES, PLACES + 1}
    assert [hit["id"] for hit in ask(client, picture(3, 0.8), sessions="night, rain").json()["hits"]] == [PLACES]
    wrong = ask(client, picture(3, 0.8), region="9,9,5,5")
    assert wrong.status_code == 422
    assert "is not a region" in wrong.json()["error"]


def test_what_a_store_cannot_do_is_refused_in_a_sentence(replica):
    client = replica()
    camera = ask(client, picture(3, 0.8), camera="cam0")
    assert camera.status_code == 409
    assert "has no cameras" in camera.json()["error"]
    assert client.get("/v1/cameras").json() == {"most": 0, "cameras": []}
    why = client.post("/v1/explain", files={"image": ("q.png", picture(3, 0.8))}, data={"id": 3})
    assert why.status_code == 501
    assert ask(client, picture(3, 0.8), calibration="noon").status_code == 422


def test_a_map_of_another_encoder_is_refused(replica):
    client = replica()
    client.app.state.service.maps["town"].encoder.model = "another"
    sentence = "town was rebuilt with another encoder; restart the service"
    assert client.get("/readyz").json() == {"status": sentence}
    for answer in (ask(client, picture(3)), client.get("/v1/map"), client.delete("/v1/images/3")):
        assert (answer.status_code, answer.json()["error"]) == (409, sentence)


def test_a_calibration_through_one_replica_answers_in_the_other(replica):
    one, other = replica(), replica()
    photos = [("images", (f"{place}.png", picture(place, 0.7))) for place in range(10)]
    job = one.post("/v1/calibrations", files=photos, data={"name": "night"}).json()["job"]
    wait_until(lambda: one.get(f"/v1/jobs/{job}").json()["state"] in ("done", "failed"))
    told = one.get(f"/v1/jobs/{job}").json()
    assert told["error"] is None
    assert told["result"]["used"] == 10
    assert 'tfa_edits_total{kind="calibrate",map="town"} 1.0' in one.get("/metrics").text
    wait_until(lambda: ask(other, picture(3, 0.8)).json().get("calibration") == "night")
    assert other.post("/v1/calibrations/active", json={"name": None}).json() == {"active": None}
    wait_until(lambda: ask(one, picture(3, 0.8)).json().get("calibration") is None)
    assert one.delete("/v1/calibrations/night").status_code == 200
    wait_until(lambda: other.get("/v1/map").json()["calibrations"] == [])
