"""The client against real servers: connections are reused, and requests to a busy service are retried."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from tests.client.conftest import build_town, running_service
from tests.service.conftest import picture
from tests.waiting import wait_until
from tfa.client import Client, ServiceError
from tfa.errors import BadSpec
from tfa.service.problems import refuse_busy
from tfa.service.query_queue import QueryQueue
from tfa.service.settings import ServiceSettings


@pytest.fixture
def scripted():
    """A server that answers /v1/map by a list of (status, headers), and counts connections and requests."""
    replies, seen = [], {"connections": 0, "requests": 0}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self):
            seen["connections"] += 1
            super().setup()

        def log_message(self, *_):
            pass

        def do_GET(self):
            seen["requests"] += 1
            status, headers = replies.pop(0) if replies else (200, {})
            body = b'{"name": "town"}' if status == 200 else b'{"error": "too many queries wait"}'
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = headers.get("Connection") == "close"

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", replies, seen
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def pauses(monkeypatch):
    slept = []
    monkeypatch.setattr("tfa._http.time", SimpleNamespace(sleep=slept.append, monotonic=time.monotonic))
    return slept


def test_calls_in_a_row_share_a_connection(scripted):
    url, _, seen = scripted
    with Client(url) as client:
        for _ in range(5):
            assert client.report() == {"name": "town"}
    assert seen == {"connections": 1, "requests": 5}


def test_a_connection_that_the_server_closed_is_replaced(scripted):
    url, replies, seen = scripted
    replies += [(200, {"Connection": "close"}), (200, {})]
    with Client(url) as client:
        assert client.report() == client.report() == {"name": "town"}
    assert seen == {"connections": 2, "requests": 2}


def test_a_connection_that_the_server_may_be_closing_is_not_used(scripted, monkeypatch):
    url, _, seen = scripted
    monkeypatch.setattr("tfa._http._IDLE_SECONDS", 0)
    with Client(url) as client:
        assert client.report() == client.report() == {"name": "town"}
    assert seen == {"connections": 2, "requests": 2}


def test_a_closed_client_opens_a_new_connection(scripted):
    url, _, seen = scripted
    with Client(url) as client:
        assert client.report() == {"name": "town"}
        client.close()
        assert client.report() == {"name": "town"}
    assert seen == {"connections": 2, "requests": 2}


def test_a_request_to_a_busy_service_is_sent_again_after_the_time_it_names(scripted, pauses):
    url, replies, seen = scripted
    replies += [(503, {"Retry-After": "2"}), (503, {"Retry-After": "86400"})]
    with Client(url) as client:
        assert client.report() == {"name": "town"}
    assert pauses == [2.0, 30.0]  # a day is longer than a client waits
    assert seen == {"connections": 1, "requests": 3}


def test_a_service_that_stays_busy_is_given_up(scripted, pauses):
    url, replies, seen = scripted
    replies += [(503, {"Retry-After": "1"})] * 9
    with Client(url) as client, pytest.raises(ServiceError, match="too many queries wait") as refusal:
        client.report()
    assert (refusal.value.status, seen["requests"], pauses) == (503, 4, [1.0, 1.0, 1.0])
    with Client(url, retries=0) as client, pytest.raises(ServiceError):
        client.report()
    assert (seen["requests"], len(pauses)) == (5, 3)
    with pytest.raises(BadSpec, match="retries=-1"):
        Client(url, retries=-1)


@pytest.mark.parametrize("reply", [(503, {}), (503, {"Retry-After": "soon"}), (500, {"Retry-After": "1"})])
def test_other_refusals_are_not_sent_again(scripted, pauses, reply):
    url, replies, seen = scripted
    replies.append(reply)
    with Client(url) as client, pytest.raises(ServiceError):
        client.report()
    assert (seen["requests"], pauses) == (1, [])


@pytest.mark.slow
def test_a_real_service_answers_threads_of_one_client_through_busy_times(tmp_path, monkeypatch, pauses):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    path, real, refused = build_town(tmp_path), QueryQueue.submit, []

    def sometimes_full(self, *query):
        if len(refused) < 3:
            refused.append(query)
            raise refuse_busy("256 requests are waiting; retry in a moment")
        return real(self, *query)

    monkeypatch.setattr(QueryQueue, "submit", sometimes_full)
    with running_service(path, ServiceSettings(port=0), timeout_keep_alive=1) as (url, app), Client(url) as client:
        with ThreadPoolExecutor(4) as threads:
            hits = list(threads.map(lambda place: client.query(picture(place), k=1)[0].id, range(12)))
        assert hits == list(range(12))
        assert (len(refused), len(pauses)) == (3, 3)
        wait_until(lambda: not app.state.server.server_state.connections)
        assert client.query(picture(3), k=1)[0].id == 3  # on a new connection: uvicorn has closed the idle ones
