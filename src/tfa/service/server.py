"""Running an app with uvicorn on a socket that is bound before anything is promised."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from tfa.errors import TfaError
from tfa.service.connections import BoundedConnection, quieter, raised_file_limit
from tfa.service.settings import STOP_SECONDS, ServiceSettings

GRACE_SHARE = 2 / 3  # of the time to stop in, for requests under way; the rest is for edits, jobs and cameras
BACKLOG = 512
LAST_SECONDS = 1.0  # to note what is cut off
_log = logging.getLogger("tfa.service")


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
        asyncio.get_running_loop().set_exception_handler(quieter)
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
    room = raised_file_limit()
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
