"""Running an app with uvicorn on a socket that is bound before anything is promised."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn

from tfa.errors import TfaError
from tfa.service.settings import ServiceSettings

GRACE_SECONDS = 30  # for requests under way when the service is to stop
BACKLOG = 512


class CannotListen(TfaError):
    """The address is taken, or not of this machine."""


def bound(settings: ServiceSettings) -> socket.socket:
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


def run(app: Any, listening: socket.socket, *, access_log: bool = False) -> None:
    """Serve until SIGINT (raised again as KeyboardInterrupt) or SIGTERM; requests under way are finished first."""
    config = uvicorn.Config(
        app,
        lifespan="on",
        log_level="info" if access_log else "warning",
        access_log=access_log,
        ws="none",
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    uvicorn.Server(config).run(sockets=[listening])
