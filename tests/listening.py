"""List the addresses on which a process and its children listen."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}  # as /proc writes it
LISTENS = "0A"


def listened_at(process: int) -> set[str]:
    """Addresses as /proc/net/tcp has them, of the process and everything below it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    family = {process}
    while more := {own for own, parent in parents.items() if parent in family} - family:
        family |= more
    sockets = set()
    for own in family:
        with contextlib.suppress(OSError):
            sockets |= {os.readlink(path) for path in Path(f"/proc/{own}/fd").iterdir()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and f"socket:[{fields[9]}]" in sockets:
                found.add(fields[1].partition(":")[0])
    return found
