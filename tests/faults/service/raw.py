"""Raw sockets and a service in a separate process, for misbehaving clients."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

from studies.serve import Child, Command
from tests.waiting import PATIENCE

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


def connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname == "127.0.0.1"  # no other machine is ever attacked
    return socket.create_connection((parts.hostname, parts.port or 80), timeout=PATIENCE)


def answered(one: socket.socket) -> bytes:
    """All that comes until the other side hangs up."""
    received = b""
    try:
        while piece := one.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def serving(town: Path, log: Path, *options: str) -> Child:
    """A service of the fake encoder; options as `tests.faults.service.faulty_server` takes them."""
    return Child(town, command(*options), log)


def command(*options: str) -> Command:
    return lambda place_map: [sys.executable, "-m", "tests.faults.service.faulty_server", str(place_map), *options]
