"""Connections to one service that are kept open between requests, for any number of threads."""

from __future__ import annotations

import selectors
import threading
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

IDLE = 8  # connections kept open at most while nobody uses them


@dataclass(frozen=True)
class Reply:
    """What a service answered; `retry_after` is in seconds, None if it named none."""

    status: int
    reason: str
    body: bytes
    retry_after: float | None


class Connections:
    """Each request has a connection to itself; afterwards the next request may use it."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self._lock = threading.Lock()
        self._idle: list[HTTPConnection] = []
        proxy = getproxies().get(self._address.scheme)
        self._proxy = urlsplit(proxy) if proxy and not proxy_bypass(self._address.netloc) else None

    def send(self, method: str, target: str, body: bytes | None, headers: dict[str, str], timeout: float) -> Reply:
        """Send a request whose `target` is relative to the service's address, and read its answer."""
        connection = self._take()
        if connection.sock is None:
            connection.timeout = timeout
        else:
            connection.sock.settimeout(timeout)
        target = self._address.path + target
        if self._proxy is not None and self._address.scheme == "http":
            target = f"http://{self._address.netloc}{target}"  # a proxy must know whom to call
        try:
            connection.request(method, target, body, headers)
            with connection.getresponse() as answer:
                after = answer.headers.get("Retry-After", "").strip()
                seconds = float(after) if after.isdecimal() else None
                reply = Reply(answer.status, answer.reason, answer.read(), seconds)
        except BaseException:  # what state it is in, nobody knows
            connection.close()
            raise
        self._give_back(connection)
        return reply

    def _take(self) -> HTTPConnection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._new()
            if _is_open(connection):
                return connection
            connection.close()

    def _new(self) -> HTTPConnection:
        kind = HTTPSConnection if self._address.scheme == "https" else HTTPConnection
        if self._proxy is None:
            return kind(self._address.hostname or "", self._address.port)
        connection = kind(self._proxy.hostname or "", self._proxy.port)
        if kind is HTTPSConnection:
            connection.set_tunnel(self._address.hostname or "", self._address.port)
        return connection

    def _give_back(self, connection: HTTPConnection) -> None:
        with self._lock:
            if connection.sock is not None and len(self._idle) < IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __del__(self) -> None:
        self.close()


def _is_open(connection: HTTPConnection) -> bool:
    """Nothing is to be read from an idle connection, unless the service has closed it."""
    if connection.sock is None:
        return False
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return not selector.select(0)
