"""Running an app with uvicorn on a socket that is bound before anything is promised, with bounded connections."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from logging import getLogger
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tfa.errors import TfaError
from tfa.service.settings import STOP_SECONDS, ServiceSettings

# --- connections -----------------------------------------------------------------------------------------------------

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
            log_rarely(
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


def log_rarely(about: str, sentence: str, *values: object) -> None:
    """Log a warning, at most once in a while."""
    now = time.monotonic()
    if now - _last_logged.get(about, -LOGGED_EVERY) >= LOGGED_EVERY:
        _last_logged[about] = now
        _log.warning(sentence, *values)


def log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception handler: asyncio reports every connection it cannot accept, hundreds at a time."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
        log_rarely("accept", "no connection can be accepted at the moment: %s", error)
    else:
        loop.default_exception_handler(context)


def raise_file_limit() -> int:
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


# --- server ----------------------------------------------------------------------------------------------------------

GRACE_SHARE = 2 / 3  # of the time to stop in, for requests under way; the rest is for edits, jobs and cameras
BACKLOG = 512
LAST_SECONDS = 1.0  # to note what is cut off


class CannotListen(TfaError):
    """The address is taken, or not of this machine."""


def bind_socket(settings: ServiceSettings) -> socket.socket:
    """A listening socket at the settings' address; port 0 takes any that is free."""
    host, port = settings.host.strip("[]"), settings.port
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        # Who calls before the app runs waits instead of being refused.
        return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]  # the address is named once
        sentence = f"cannot listen on {settings.host}:{port}: {reason}; choose another --port or --host"
        raise CannotListen(sentence) from None


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class BoundedServer(uvicorn.Server):
    """uvicorn's server, which ends in time whatever hangs."""

    def __init__(self, config: uvicorn.Config, stop_seconds: float, give_up: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop_seconds, self._give_up = stop_seconds, give_up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(log_loop_error)
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:  # the first signal
            last = threading.Timer(self._stop_seconds, self._end)
            last.daemon = True
            last.start()
        super().handle_exit(sig, frame)

    def _end(self) -> None:
        # What was cut off goes into the audit log, unless the disk is what hangs.
        noting = threading.Thread(target=self._give_up, daemon=True)
        noting.start()
        noting.join(LAST_SECONDS)
        busy = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("tfa-"))
        _log.error(
            "the service did not stop within %g s and is ended; accepted edits are on disk. Still at work: %s",
            self._stop_seconds,
            ", ".join(busy) or "uvicorn",
        )
        logging.shutdown()
        os._exit(1)  # a thread that hangs cannot be ended otherwise


def run_server(
    app: Any, listening: socket.socket, *, access_log: bool = False, stop_seconds: float = STOP_SECONDS
) -> None:
    """Serve until SIGINT (raised again as KeyboardInterrupt) or SIGTERM; requests under way are finished first.

    Should something hang, the process is ended `stop_seconds` after the signal, with exit code 1.
    """
    room = raise_file_limit()
    config = uvicorn.Config(
        app,
        http=type("Connection", (BoundedConnection,), {"most": room}),
        lifespan="on",
        log_level="info" if access_log else "warning",
        access_log=access_log,
        ws="none",
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=max(1, int(GRACE_SHARE * stop_seconds)),
    )
    BoundedServer(config, stop_seconds, app.state.service.jobs.give_up).run(sockets=[listening])
