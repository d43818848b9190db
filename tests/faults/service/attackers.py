"""Attackers of a service in a separate process: a flood, hostile requests and slow clients."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.faults.service.hostile import MUTATED_KINDS, many_scans, mutated, saved
from tests.faults.service.raw import HEAD, connected
from tests.service.conftest import picture
from tests.waiting import PATIENCE
from tfa.client import Client, ServiceError
from tfa.photos.images import limit_scans

LARGE = (4000, 3000)  # size of the flood's photos, which have the maximum number of scans
FLOODING, HURRYING = 12, 2  # threads that send expensive photos, and cheap ones
HOSTILE_PAUSE = 0.2  # seconds between hostile requests
ANSWERS = {"flood": {422, 429, 503}, "hostile": {413, 415, 422, 429}}  # refusals that attackers deserve


@contextlib.contextmanager
def attackers(url: str, keys: Mapping[str, str], answers: Counter[str]) -> Iterator[None]:
    """Attack with the keys `flood` and `hostile`, and count the answers. The caller's interpreter is not slowed."""
    context = multiprocessing.get_context("spawn")
    begun, over, counts = context.Event(), context.Event(), context.Queue()
    process = context.Process(target=attack, args=(url, dict(keys), begun, over, counts), daemon=True)
    process.start()
    try:
        assert begun.wait(PATIENCE)
        yield
    finally:
        over.set()
        answers.update(counts.get(timeout=PATIENCE))
        process.join(PATIENCE)


def attack(url: str, keys: dict[str, str], begun: Any, over: Any, counts: Any) -> None:
    """Flood, send hostile requests, and be slow, until `over` is set; then send what was answered."""
    answers, lock, expensive = Counter[str](), threading.Lock(), many_scans(limit_scans(LARGE), LARGE)

    def work(name: str, send: Callable[[Client, random.Random], None], number: int) -> None:
        choose = random.Random(number)
        with Client(url, keys[name], map="town", retries=0) as client:
            while not over.is_set():
                status: int | str | None = 200
                try:
                    send(client, choose)
                except ServiceError as error:
                    status = error.status if error.status in ANSWERS[name] else f"failed: {error} ({error.status})"
                with lock:
                    answers[f"{name} {status}"] += 1

    works: list[tuple[Any, ...]] = [("flood", lambda client, _: client.query(expensive))] * FLOODING
    works += [("flood", lambda client, _: client.query(picture(0)))] * HURRYING
    works += [("hostile", lambda client, choose: send_hostile(client, url, choose))]
    threads = [threading.Thread(target=work, args=(*one, number)) for number, one in enumerate(works)]
    threads.append(threading.Thread(target=be_slow, args=(url, keys["hostile"], over, answers)))
    for thread in threads:
        thread.start()
    begun.set()
    for thread in threads:
        thread.join()
    counts.put(dict(answers))


def send_hostile(client: Client, url: str, choose: random.Random) -> None:
    """Send a damaged photo, an edit, or half a request."""
    match choose.randrange(4):
        case 0:
            with connected(url) as one:
                one.sendall(HEAD)  # and hang up
        case 1:
            client.query(saved(choose.choice(MUTATED_KINDS), choose.randrange(10**6)), camera=f"cam{choose.random()}")
        case _:
            client.query(mutated(saved(choose.choice(MUTATED_KINDS), choose.randrange(10**6)), choose))
    time.sleep(HOSTILE_PAUSE)


def be_slow(url: str, key: str, over: Any, answers: Counter[str]) -> None:
    """Be one slow client after the other: a slow head, a slow body, a slow reader."""
    login = f"Authorization: Bearer {key}\r\n".encode()
    body = login + b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 99999\r\n\r\n--b\r\n"
    texts = (HEAD, HEAD.replace(b"GET /healthz", b"POST /v1/query") + body, HEAD + b"\r\n")
    while not over.is_set():
        for text in texts:
            answers["slow clients"] += 1
            with contextlib.suppress(OSError), connected(url) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                for byte in text:
                    one.send(bytes([byte]))
                    if over.wait(0.05):
                        return
                while text is texts[2] and one.recv(1):
                    if over.wait(0.05):
                        return
