"""Connections: one whose head never comes is ended, one too many is hung up on, and the log of it stays short."""

from __future__ import annotations

import asyncio
import errno
import time
from logging import getLogger
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

try:
    import resource
except ImportError:  # not a system with such limits
    resource = None  # type: ignore[assignment]

REQUEST_HEAD_SECONDS = 10.0  # for the head of a request to arrive, from the connection or its first byte on
SPARE_FILES = 64  # for maps, logs, photos and decoders, whatever the clients do
MOST_FILES = 2**20
LOGGED_EVERY = 60.0  # seconds; what a client can cause any number of times is logged so often
late = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_log = getLogger("tfa.service")


class BoundedConnection(H11Protocol):
    """uvicorn's protocol, which waits for the head of a request for ever, with an end to that."""

    head_seconds, most = REQUEST_HEAD_SECONDS, MOST_FILES
    _clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            tell(
                "connections",
                "%d connections are open, which is all there is room for; others are hung up on",
                self.most,
            )
            transport.abort()
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        """Let the clock run while a head is awaited: the first, or the next once its first byte is there."""
        between = self.timeout_keep_alive_task is not None  # uvicorn's own clock runs
        if self.conn.their_state is not h11.IDLE or between:
            self._stop()
        elif self._clock is None:
            self._clock = self.loop.call_later(self.head_seconds, self._give_up)

    def _stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(late)
            self.transport.close()


_last_logged: dict[str, float] = {}  # when something was last said, by what it is about


def tell(about: str, sentence: str, *values: object) -> None:
    """Log a warning, at most once in a while."""
    now = time.monotonic()
    if now - _last_logged.get(about, -LOGGED_EVERY) >= LOGGED_EVERY:
        _last_logged[about] = now
        _log.warning(sentence, *values)


def quieter(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception handler: asyncio reports every connection it cannot accept, hundreds at a time."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
        tell("accept", "no connection can be accepted at the moment: %s", error)
    else:
        loop.default_exception_handler(context)


def raised_file_limit() -> int:
    """Allow this process as many open files as it may have; how many connections there is room for."""
    if resource is None:
        return MOST_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):  # some systems promise more than they give
            pass
    files = MOST_FILES if soft == resource.RLIM_INFINITY else soft
    return max(8, files - SPARE_FILES)
