"""Slow, half-open and very many clients; shutdown while requests hang."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import threading
import time
from urllib.request import urlopen

import httpx2
import pytest

from tests.faults.service.raw import HEAD, answered, connected, serving
from tests.service.conftest import picture
from tests.waiting import PATIENCE, wait_until
from tfa.client import Client

pytestmark = pytest.mark.kill


@pytest.fixture(scope="module")
def shared(built, tmp_path_factory):
    """A service that gives a head three seconds to arrive."""
    folder = tmp_path_factory.mktemp("connections")
    town = shutil.copytree(built / "town.tfa", folder / "town.tfa")
    with serving(town, folder / "log", "--head_seconds", "3") as child:
        yield child


def test_half_open_heads_are_ended_and_others_are_served(shared, campaign):
    attempts = campaign.size(30, 150)
    with contextlib.ExitStack() as stack:
        half = []
        for number in range(attempts):
            half.append(stack.enter_context(connected(shared.url)))
            half[-1].sendall(HEAD[: number % len(HEAD)])
        assert urlopen(f"{shared.url}/healthz", timeout=PATIENCE).status == 200
        assert all(answered(one).startswith(b"HTTP/1.1 408") for one in half)
    campaign.count("half-open requests", attempts)


def test_bytes_that_drip_do_not_extend_the_time_of_a_head(shared):
    with connected(shared.url) as one:
        deadline = time.monotonic() + PATIENCE
        one.settimeout(0.1)
        received = b""
        with contextlib.suppress(ConnectionError):
            while not received and time.monotonic() < deadline:
                one.sendall(b"X")
                with contextlib.suppress(TimeoutError):
                    received = one.recv(1000)
        assert received.startswith(b"HTTP/1.1 4")


def test_a_connection_that_is_kept_open_has_time_for_each_head(shared):
    with connected(shared.url) as one:
        for _ in range(3):
            one.sendall(HEAD + b"\r\n")
            received = b""
            while not received.endswith(b'"ok"}'):
                received += one.recv(65_536)
        one.sendall(HEAD)  # the fourth stays half open
        assert answered(one).startswith(b"HTTP/1.1 408")


def test_few_descriptors_cost_neither_the_log_nor_the_service(town, tmp_path, campaign):
    attempts, log = campaign.size(150, 600), tmp_path / "log"
    with contextlib.ExitStack() as stack, serving(town, log, "--files", "128", "--head_seconds", "2") as child:
        half = []
        for _ in range(attempts):
            with contextlib.suppress(OSError):
                half.append(stack.enter_context(connected(child.url)))
        for one in half:
            answered(one)  # hung up on, at once or when its time is over
        with Client(child.url) as client:
            assert client.query(picture(5), k=1)[0].id == 5
        assert log.stat().st_size < 10_000
    campaign.count("connections beyond the limit of open files", attempts)


def test_a_body_that_is_dropped_costs_one_line(shared, campaign):
    attempts = campaign.size(5, 100)
    head = b"POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
    for _ in range(attempts):
        with connected(shared.url) as one:
            one.sendall(head + b"Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n")
            one.shutdown(socket.SHUT_RDWR)
    with Client(shared.url) as client:
        assert client.query(picture(5), k=1)[0].id == 5
    told = shared._log.read_text()
    assert "Traceback" not in told
    assert len(told.splitlines()) <= attempts
    campaign.count("request bodies cut off midway", attempts)


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_a_service_that_hangs_ends_in_the_time_it_states(town, tmp_path, told, campaign):
    log = tmp_path / "log"
    with serving(town, log, "--hang", "true", "--stop_seconds", "2") as child:
        asking = threading.Thread(target=_asked, args=(child.url,), daemon=True)
        asking.start()
        _wait_for_a_query(child.url)
        child._process.send_signal(told)
        assert child._process.wait(PATIENCE) == 1
        asking.join(PATIENCE)
    assert "did not stop within 2 s and exits now" in log.read_text()
    assert "tfa-queries-town" in log.read_text()
    campaign.count("shutdown of a hanging service", 1)


def test_a_calibration_that_hangs_is_in_the_audit_log_when_the_service_is_ended(town, tmp_path):
    audit = tmp_path / "audit.jsonl"
    options = ("--hang", "true", "--stop_seconds", "2", "--audit_log", json.dumps(str(audit)))
    with serving(town, tmp_path / "log", *options) as child:
        photos = [("images", (f"{place}.png", picture(place, 0.7))) for place in range(3)]
        job = httpx2.post(f"{child.url}/v1/calibrations", files=photos, timeout=PATIENCE).json()["job"]
        child._process.send_signal(signal.SIGTERM)
        assert child._process.wait(PATIENCE) == 1
    start, end = (json.loads(line) for line in audit.read_text().splitlines())
    assert (start["action"], start["result"]) == ("POST /v1/calibrations", {"job": job})
    assert (end["action"], end["result"]["job"]) == ("calibrate failed", job)
    assert end["result"]["error"].startswith("the service was killed before the job finished")


def _asked(url: str) -> None:
    with contextlib.suppress(Exception), Client(url, retries=0) as client:
        client.query(picture(5))


def _wait_for_a_query(url: str) -> None:
    begun = 'tfa_batches_total{map="town"} 1.0'
    wait_until(lambda: begun in urlopen(f"{url}/metrics", timeout=PATIENCE).read().decode())
