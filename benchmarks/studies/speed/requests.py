"""Time requests on one connection that stays open, over a bare exchange of bytes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import uvicorn

from studies.speed.measure import Bar, Line, OverFloor, compared, machine
from tfa.core.progress import Progress
from tfa.service.server import BoundedConnection, bind_socket
from tfa.service.settings import ServiceSettings

_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
_ANSWER = b'{"status":"ok"}'
_MOST = 25.0  # a delayed acknowledgement alone takes hundreds of times the floor


@dataclass(frozen=True, kw_only=True)
class RequestsBenchmark(OverFloor):
    """Seconds of one request, and of a bare exchange."""

    requests: int

    def lines(self) -> list[Line]:
        what = f"a request on an open connection, median of {self.requests}"
        return [compared(what, self.seconds, self.floor, Bar(_MOST))]

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "machine": machine()}


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(_ANSWER)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": _ANSWER})


def run_requests_benchmark(requests: int = 200, progress: bool | Progress | None = None) -> RequestsBenchmark:
    """Time requests to the service's socket and connection class, in turn with a bare exchange."""
    with bind_socket(ServiceSettings(port=0)) as listening, socket.create_server(("127.0.0.1", 0)) as bare:
        config = uvicorn.Config(_answer, http=BoundedConnection, lifespan="off", log_level="error", ws="none")
        server = uvicorn.Server(config)
        threads = [
            threading.Thread(target=server.run, args=([listening],)),
            threading.Thread(target=_echo, args=(bare,)),
        ]
        for thread in threads:
            thread.start()
        try:
            with _connect(listening) as client, _connect(bare) as other:
                client.settimeout(60)
                times = [(_time(client, _ends_in_answer), _time(other, _is_whole)) for _ in range(requests)]
        finally:
            server.should_exit = True
            for thread in threads:
                thread.join()
    served, floor = (median(column) for column in zip(*times, strict=True))
    return RequestsBenchmark(seconds=served, floor=floor, requests=requests)


def _connect(listening: socket.socket) -> socket.socket:
    client = socket.create_connection(listening.getsockname()[:2])
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def _time(client: socket.socket, complete: Callable[[bytes], bool]) -> float:
    started, received = time.perf_counter(), b""
    client.sendall(_REQUEST)
    while not complete(received):
        received += client.recv(4096)
    return time.perf_counter() - started


def _ends_in_answer(received: bytes) -> bool:
    return received.endswith(_ANSWER)


def _is_whole(received: bytes) -> bool:
    return len(received) >= len(_REQUEST)


def _echo(bare: socket.socket) -> None:
    accepted, _ = bare.accept()
    with accepted:
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while content := accepted.recv(4096):
            accepted.sendall(content)
