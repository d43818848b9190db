"""One caller must not stop the others: queries, edits, copies, lists, checks of a store, and bodies in memory."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from tests.fakes import FakeEncoder
from tests.service.conftest import opened, picture
from tests.service.test_api_keys import NAMED, ROBOT1, ROBOT2, ask_as
from tests.waiting import PATIENCE, wait_until
from tfa.maps import PlaceMap
from tfa.service import auth, decoders
from tfa.service.auth import RateLimit
from tfa.service.context import Service
from tfa.service.decoders import FairTurns, shared_decoders
from tfa.service.live import LiveMap
from tfa.service.middleware import HELD_BODIES, LARGEST_JSON, BodyLimit
from tfa.service.problems import Refused
from tfa.service.routes import map as map_routes
from tfa.service.settings import ALL_AT_ONCE, ApiKey, ServiceSettings

pytestmark = pytest.mark.slow
JSON = {"Content-Type": "application/json"}
real_is_uploaded = LiveMap.is_uploaded


class HeldEncoder(FakeEncoder):
    """Waits in each batch while it is held."""

    def __init__(self):
        super().__init__()
        self.free = threading.Event()
        self.free.set()

    def encode(self, images):
        assert self.free.wait(PATIENCE)
        return super().encode(images)


def test_a_caller_with_many_queries_is_refused_and_no_other(serve, town):
    encoder = HeldEncoder()
    client = serve(
        opened(town, encoder), api_keys=NAMED, max_waiting=8, batch_size=2, rate_limit=0, stall_seconds=PATIENCE
    )
    turns = client.app.state.service.maps["town"].turns
    encoder.free.clear()
    with ThreadPoolExecutor(24) as senders:
        try:
            flood = []
            for number in range(1, 12):  # three have turns, and eight wait
                flood.append(senders.submit(ask_as, client, ROBOT1))
                wait_until(lambda number=number: len(turns) + turns._running.total() == number)
            refused = senders.submit(ask_as, client, ROBOT1).result(PATIENCE)
            honest = senders.submit(ask_as, client, ROBOT2, 5, k=1)
            wait_until(lambda: turns._running.total() == 4)  # a place was left for it
            assert len(turns) == 8
        finally:
            encoder.free.set()
        assert honest.result(PATIENCE).json()["hits"][0]["id"] == 5
    assert {one.result().status_code for one in flood} == {200}
    assert refused.status_code == 503
    assert refused.json()["error"] == "8 requests are waiting, 8 of them yours; retry in a moment"
    wait_until(lambda: turns._free == 4)
    assert (len(turns), turns._running) == (0, {})


def test_callers_with_equally_many_requests_are_not_refused_for_a_new_one():
    async def run():
        turns = FairTurns(1, 1, 2)
        await turns.acquire("a")
        waiting = [asyncio.create_task(turns.acquire(caller)) for caller in "bc"]
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="2 requests are waiting, 0 of them yours"):
            await turns.acquire("d")
        for caller, task in zip("abc", [*waiting, None], strict=True):
            turns.release(caller)
            if task is not None:
                await task
        assert (turns._free, turns._running, len(turns)) == (1, {}, 0)

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_a_query_that_is_given_up_leaves_its_turn():
    async def run():
        turns = FairTurns(1, 1, 8)
        await turns.acquire("a")
        waiting = asyncio.create_task(turns.acquire("b"))
        await asyncio.sleep(0)
        turns.release("a")  # the turn of b begins, and its client disconnects before it notices
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await turns.acquire("c")
        turns.release("c")
        assert (turns._free, turns._running, len(turns)) == (1, {}, 0)

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_copies_are_decoded_in_another_process_and_delay_no_other_caller(serve, monkeypatch):
    client, decode = serve(api_keys=NAMED, rate_limit=0), shared_decoders().decode
    free, taken = threading.Event(), list[str]()

    def held(upload, *rest):
        taken.append(upload.name)
        assert free.wait(PATIENCE)
        return decode(upload, *rest)

    monkeypatch.setattr(decoders.DecoderPool, "decode", lambda self, *rest: held(*rest))
    with ThreadPoolExecutor(24) as senders:
        try:
            copies = [
                senders.submit(client.get, "/v1/images/3/file", params={"size": size}, headers=ROBOT1)
                for size in range(100, 120)
            ]
            wait_until(lambda: len(taken) > 0 and len(client.app.state.service._work_turns["town"]) >= 18)
            assert set(taken) == {"photo"}
            assert client.get("/v1/images", headers=ROBOT2).json()["total"] == 14
            assert client.get("/v1/map", headers=ROBOT2).status_code == 200
        finally:
            free.set()
        assert {one.result(PATIENCE).status_code for one in copies} == {200}


def test_a_copy_of_a_large_photo_is_made_although_no_client_may_send_it(serve, town):
    client = serve(max_pixels=64 * 48 - 1)
    refused = client.post("/v1/query", files={"image": ("a.png", picture(3))})
    assert (refused.status_code, client.get("/v1/images/3/file").status_code) == (413, 200)


@pytest.mark.parametrize("uploaded", [False, True])
def test_a_copy_of_another_format_is_made_in_the_service_unless_a_client_sent_it(client, town, monkeypatch, uploaded):
    live = client.app.state.service.maps["town"]
    record = live.current.storage.record(3)
    with Image.open(record.path) as image:
        image.save(town.parent / "3.ppm")
    content = (town.parent / "3.ppm").read_bytes()
    monkeypatch.setattr(LiveMap, "read_photo", lambda self, record: content)
    monkeypatch.setattr(LiveMap, "is_uploaded", lambda self, record: uploaded)
    answer = client.get("/v1/images/3/file", params={"size": 32})
    assert answer.status_code == (404 if uploaded else 200)
    assert not real_is_uploaded(live, record)
    added = client.post("/v1/images", files={"images": ("new.png", picture(40))}).json()["added"]
    assert real_is_uploaded(live, live.current.storage.record(added[0]))


def test_photos_of_one_caller_in_memory_are_few(serve, monkeypatch):
    client, decode = serve(api_keys=NAMED, rate_limit=0), shared_decoders().decode
    free, read, read_photo = threading.Event(), list[int](), LiveMap.read_photo

    def held(self, *rest):
        assert free.wait(PATIENCE)
        return decode(*rest)

    def watched(self, record):
        read.append(record.id)
        return read_photo(self, record)

    monkeypatch.setattr(decoders.DecoderPool, "decode", held)
    monkeypatch.setattr(LiveMap, "read_photo", watched)
    turns = client.app.state.service._work_turns["town"]
    with ThreadPoolExecutor(12) as senders:
        try:
            path = "/v1/images/3/file"
            sent = [senders.submit(client.get, path, params={"size": n}, headers=ROBOT1) for n in range(100, 110)]
            wait_until(lambda: len(turns) == 8)
            wait_until(lambda: len(read) == 2)
        finally:
            free.set()
        assert {one.result(PATIENCE).status_code for one in sent} == {200}
    assert len(read) == 10


def test_lists_are_made_by_turns(serve, monkeypatch):
    client, free, taken = serve(api_keys=NAMED, rate_limit=0), threading.Event(), list[int]()
    listed = map_routes._list_positions

    def held(live):
        taken.append(1)
        assert free.wait(PATIENCE)
        return listed(live)

    monkeypatch.setattr(map_routes, "_list_positions", held)
    with ThreadPoolExecutor(12) as senders:
        try:
            flood = [senders.submit(client.get, "/v1/positions", headers=ROBOT1) for _ in range(10)]
            wait_until(lambda: len(taken) == 2)  # of three threads
            assert client.get("/v1/images", headers=ROBOT2).json()["total"] == 14
        finally:
            free.set()
        assert {one.result(PATIENCE).status_code for one in flood} == {200}


def test_a_caller_with_many_edits_delays_no_other(serve, monkeypatch):
    client = serve(api_keys=(ApiKey("one", True, "1" * 16), ApiKey("two", True, "2" * 16)), rate_limit=0)
    turns, free, done = client.app.state.service.maps["town"].edit_turns, threading.Event(), list[str]()

    def drop(self, name):
        done.append(name)
        assert free.wait(PATIENCE)

    def send(key, name):
        headers = {"Authorization": f"Bearer {key * 16}"}
        return senders.submit(client.delete, f"/v1/calibrations/{name}", headers=headers)

    monkeypatch.setattr(PlaceMap, "drop_calibration", drop)
    with ThreadPoolExecutor(12) as senders:
        try:
            sent = [send("1", "first")]
            wait_until(lambda: done == ["first"])
            sent += [send("1", "flood") for _ in range(6)]
            wait_until(lambda: len(turns) == 6)
            sent.append(send("2", "honest"))
            wait_until(lambda: turns._running.total() == 2)
        finally:
            free.set()
        assert {one.result(PATIENCE).status_code for one in sent} == {200}
    assert done == ["first", "honest", *["flood"] * 6]


def test_answers_are_written_outside_the_event_loop(client, monkeypatch):
    loops, reply = [], map_routes.reply

    def watched(*rest):
        try:
            loops.append(asyncio.get_running_loop())
        except RuntimeError:
            loops.append(None)
        return reply(*rest)

    monkeypatch.setattr(map_routes, "reply", watched)
    for path in ("positions", "report", "map"):
        assert client.get(f"/v1/{path}").status_code == 200
    assert loops == [None] * 3


def test_a_store_that_hangs_stops_only_its_own_check(serve, monkeypatch):
    client, free, checks, arrived = serve(), threading.Event(), list[int](), list[int]()
    find_trouble = Service.find_trouble

    def trouble(self):
        checks.append(1)
        assert free.wait(PATIENCE)

    async def watched(self):
        arrived.append(1)
        return await find_trouble(self)

    monkeypatch.setattr(LiveMap, "trouble", property(trouble))
    monkeypatch.setattr(Service, "find_trouble", watched)
    with ThreadPoolExecutor(60) as senders:
        try:
            probes = [senders.submit(client.get, "/readyz") for _ in range(50)]  # more than there are threads
            wait_until(lambda: len(checks) > 0 and len(arrived) == 50)
            assert client.get("/v1/map").json()["images"] == 14
            assert client.post("/v1/query", files={"image": ("a.png", picture(5))}).json()["hits"][0]["id"] == 5
        finally:
            free.set()
        assert {one.result(PATIENCE).status_code for one in probes} == {200}
    assert len(checks) == 1  # all share its result


def test_keys_are_checked_in_the_event_loop(serve, monkeypatch):
    """The rate limit is not thread-safe."""
    client, threads, wait = serve(edit_api_key="e" * 16), set(), RateLimit.wait

    def watched(self, who):
        threads.add(asyncio.get_running_loop())  # raises in a thread without one
        return wait(self, who)

    monkeypatch.setattr(auth.RateLimit, "wait", watched)
    assert client.get("/v1/map").status_code == 200
    assert client.delete("/v1/cameras", headers={"Authorization": f"Bearer {'e' * 16}"}).status_code == 200
    assert len(threads) == 1


@pytest.mark.parametrize("form", [False, True])
def test_a_list_of_many_items_is_refused_as_a_whole(client, form):
    if form:
        sent = {"files": {"image": ("a.png", picture(5))}, "data": {"region": "1," * 100_000}}
    else:
        body = {"image": base64.b64encode(picture(5)).decode(), "sessions": [1] * 19_000}
        sent = {"content": json.dumps(body), "headers": JSON}
    refused = client.post("/v1/query", **sent)
    assert refused.status_code == 413, refused.text[:300]
    assert "items; send at most 1,024" in refused.json()["error"]
    assert len(refused.text) < 200


def test_bodies_of_one_caller_in_memory_are_limited():
    settings = ServiceSettings(max_upload=1000)
    piece, most = 50_000, HELD_BODIES * ALL_AT_ONCE * settings.single_bytes

    async def run():
        read, over = list[str](), asyncio.Event()

        async def app(scope, receive, send):
            scope["state"] = {"caller": scope["path"].rpartition("#")[2]}
            await receive()
            read.append(scope["state"]["caller"])
            await over.wait()

        limited = BodyLimit(app, settings)

        async def send_piece():
            return {"type": "http.request", "body": bytes(piece), "more_body": True}

        def request(caller):
            path = f"/v1/query#{caller}"
            return asyncio.create_task(limited({"type": "http", "path": path, "headers": []}, send_piece, None))

        held = [request("flood") for _ in range(most // piece)]
        for _ in range(9):
            await asyncio.sleep(0)
        assert len(read) == len(held)
        with pytest.raises(Refused, match="your unanswered requests have more than") as refusal:
            await request("flood")
        assert refusal.value.status == 503
        other = request("honest")
        for _ in range(9):
            await asyncio.sleep(0)
        assert read[-1] == "honest"
        over.set()
        await asyncio.gather(other, *held)
        await request("flood")
        assert not limited._held

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_json_with_many_photos_is_smaller_than_a_form(client):
    length = {"Content-Length": str(LARGEST_JSON + 1)}
    refused = client.post("/v1/query/batch", content=b"{}", headers={**JSON, **length})
    assert refused.status_code == 413
    assert "send fewer photos at a time, or as multipart/form-data" in refused.json()["error"]


def test_nobody_without_a_key_fills_the_audit_log(serve, tmp_path):
    log = tmp_path / "audit.jsonl"
    client = serve(api_keys=NAMED, audit_log=str(log))
    for _ in range(3):
        assert client.post("/v1/calibrations/active", content=b"{", headers=JSON).status_code == 422
    assert log.read_text() == ""
    assert client.delete(f"/v1/calibrations/{'x' * 5000}", params={"map": "y" * 5000}).status_code == 401
    (line,) = log.read_text().splitlines()
    assert len(line) < 1000
    assert json.loads(line)["status"] == 401
