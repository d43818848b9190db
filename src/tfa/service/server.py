"""Run the app with uvicorn: a socket bound before startup, limited connections and a limited shutdown."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import ipaddress
import logging
import os
import socket
import sys
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
from tfa.service.middleware import request_log
from tfa.service.settings import STOP_SECONDS, ServiceSettings

# --- connections -----------------------------------------------------------------------------------------------------

try:
    import resource
except ImportError:  # no resource limits on this system
    resource = None  # type: ignore[assignment]

REQUEST_HEAD_SECONDS = 10.0  # time for request headers to arrive
SPARE_FILES = 64  # file descriptors reserved for maps, logs, photos and decoders
MOST_FILES = 2**20
_SET_DUMPABLE = 4  # option of prctl
LOGGED_EVERY = 60.0  # minimum seconds between log lines that clients can trigger
late = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_log = getLogger("tfa.service")


class BoundedConnection(H11Protocol):
    """uvicorn's HTTP protocol with a connection limit and a time limit for request headers."""

    head_seconds, most = REQUEST_HEAD_SECONDS, MOST_FILES
    _clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            log_rarely("connections", "connection limit (%d) reached; dropping new connections", self.most)
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
        """Run the timer while request headers are expected; between requests uvicorn's keep-alive timer runs."""
        between = self.timeout_keep_alive_task is not None
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


_last_logged: dict[str, float] = {}  # time of the last log line, by topic


def log_rarely(about: str, sentence: str, *values: object) -> None:
    """Log a warning at most once every `LOGGED_EVERY` seconds per topic."""
    now = time.monotonic()
    if now - _last_logged.get(about, -LOGGED_EVERY) >= LOGGED_EVERY:
        _last_logged[about] = now
        _log.warning(sentence, *values)


def log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle event loop errors; asyncio reports every connection it cannot accept, hundreds at a time."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
        log_rarely("accept", "cannot accept connections: %s", error)
    else:
        loop.default_exception_handler(context)


def hide_secrets(*variables: str) -> None:
    """Remove variables from the environment, and keep other processes of the user from reading this process."""
    for name in variables:
        if sys.platform == "linux" and name in os.environ:
            library = ctypes.CDLL(None)
            library.getenv.restype = ctypes.c_void_p
            ctypes.memset(
                library.getenv(name.encode()), 0, len(os.fsencode(os.environ[name]))
            )  # /proc shows this memory
        os.environ.pop(name, None)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def raise_file_limit() -> int:
    """Raise the limit of open files and return the number of connections it allows."""
    if resource is None:
        return MOST_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):  # some systems refuse their own hard limit
            pass
    files = MOST_FILES if soft == resource.RLIM_INFINITY else soft
    return max(8, files - SPARE_FILES)


# --- server ----------------------------------------------------------------------------------------------------------

GRACE_SHARE = 2 / 3  # part of the shutdown time for running requests; the rest is for edits, jobs and cameras
BACKLOG = 512
LAST_SECONDS = 1.0  # time to log unfinished jobs before exit


def bind_socket(settings: ServiceSettings) -> socket.socket:
    """Return a listening socket; port 0 selects any free port."""
    host, port = settings.host.strip("[]"), settings.port
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        # Clients that connect before the app runs wait instead of being refused.
        made = socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)
        # asyncio sends small responses at once (TCP_NODELAY) only if the socket states its protocol.
        return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=made.detach())
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]  # drop the repeated address
        raise TfaError(f"cannot listen on {settings.host}:{port}: {reason}; choose another --port or --host") from None


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class BoundedServer(uvicorn.Server):
    """uvicorn's server with a hard limit on the shutdown time."""

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
        # Log unfinished jobs in a thread, since the disk may be what hangs.
        noting = threading.Thread(target=self._give_up, daemon=True)
        noting.start()
        noting.join(LAST_SECONDS)
        busy = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("tfa-"))
        _log.error(
            "the service did not stop within %g s and exits now; accepted edits are on disk. Still running: %s",
            self._stop_seconds,
            ", ".join(busy) or "uvicorn",
        )
        logging.shutdown()
        os._exit(1)  # the only way to end a hanging thread


def run_server(
    app: Any, listening: socket.socket, *, log_requests: bool = False, stop_seconds: float = STOP_SECONDS
) -> None:
    """Serve until SIGINT (raised again as KeyboardInterrupt) or SIGTERM, and finish running requests.

    If something hangs, the process exits with code 1 `stop_seconds` after the signal.
    """
    if log_requests:
        request_log.handlers = [logging.StreamHandler()]
        request_log.setLevel(logging.INFO)
    proxies = [ipaddress.ip_network(one) for one in app.state.service.settings.proxies]
    # A socket for IPv6 and IPv4 shows IPv4 addresses in this form. Without a list, uvicorn believes any local program.
    mapped = [f"::ffff:{one.network_address}/{96 + one.prefixlen}" for one in proxies if one.version == 4]
    config = uvicorn.Config(
        app, http=type("Connection", (BoundedConnection,), {"most": raise_file_limit()}), lifespan="on",
        log_level="warning", access_log=False, ws="none", server_header=False,
        proxy_headers=bool(proxies), forwarded_allow_ips=[*map(str, proxies), *mapped],
        backlog=BACKLOG, timeout_graceful_shutdown=max(1, int(GRACE_SHARE * stop_seconds)),
    )  # fmt: skip
    BoundedServer(config, stop_seconds, app.state.service.jobs.give_up).run(sockets=[listening])
