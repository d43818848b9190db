"""A real Ray cluster of nodes on loopback, in processes of its own, whose workers and nodes can be killed."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tfa.errors import EngineUnavailable
from tfa_bench.scale.local_servers import free_port

PATIENCE = 60.0  # seconds for a node to start
LOOPBACK = "127.0.0.1"
# Ray takes the machine's own address instead of loopback, and then listens on all interfaces: it is made to take ours.
# It is also kept from a server for ray://, whose port would be the same for every cluster.
SCRIPT = (
    "from ray._private import services; from ray.scripts import scripts\n"
    "services.resolve_ip_for_localhost = str\n"
    "scripts.get_ray_client_dependency_error = lambda: 'not wanted'\n"
    "scripts.main()"
)
# The same for a driver, by a switch of Ray's own; nodes may not have it, as it refuses clusters of several.
ON_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


class Cluster:
    """Two nodes, of two cores each unless told otherwise."""

    def __init__(self, environment: Mapping[str, str] | None = None, cores: int = 2) -> None:
        """`environment` is what workers see beside ours."""
        self.folder = Path(tempfile.mkdtemp(prefix="r"))  # Ray's sockets lie below it, and their paths must be short
        # What a driver must have in its environment. A token of its own: nobody else runs anything on it.
        self.keys = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), ON_LOOPBACK: "0"}
        self._environment, self._cores = dict(environment or {}), cores
        self.address = f"{LOOPBACK}:{free_port()}"
        self.nodes: list[subprocess.Popen[bytes]] = []
        head = ("--head", f"--port={self.address.rpartition(':')[2]}", f"--temp-dir={self.folder}")
        self._start(*head, "--include-dashboard=false", "--no-monitor")
        self._wait(self._listens)  # the second node starts while the first is still at it
        self._start(f"--address={self.address}")
        self._wait(lambda: all(b"runtime started" in self._said(node).read_bytes() for node in range(2)))

    def _start(self, *options: str) -> None:
        ours = {"RAY_USAGE_STATS_ENABLED": "0", **self.keys, ON_LOOPBACK: "1", "OMP_NUM_THREADS": "1"}
        ours |= self._environment
        cores, store = f"--num-cpus={self._cores}", "--object-store-memory=100000000"
        common = ("--block", f"--node-ip-address={LOOPBACK}", cores, store, "--disable-usage-stats")
        command = [sys.executable, "-c", SCRIPT, "start", *common, *options]
        with self._said(len(self.nodes)).open("wb") as output:
            node = subprocess.Popen(
                command, env={**os.environ, **ours, **paths()}, stdout=output, stderr=output, start_new_session=True
            )
        self.nodes.append(node)

    def _said(self, node: int) -> Path:
        return self.folder / f"node{node}.txt"

    def _listens(self) -> bool:
        host, _, port = self.address.rpartition(":")
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), 1.0).close()
            return True
        return False

    def _wait(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            ended = any(node.poll() is not None for node in self.nodes)
            if ended or time.monotonic() > deadline:
                tail = self._said(len(self.nodes) - 1).read_text()[-300:]
                self.stop()
                raise EngineUnavailable(f"a node of Ray did not start within {PATIENCE:.0f} s: {tail}")
            time.sleep(0.1)

    def raylet(self, node: int) -> int:
        """The process that is the node to the others."""
        for own, name, parent in _processes():
            if name == "raylet" and parent == self.nodes[node].pid:
                return own
        raise EngineUnavailable("the node has no raylet")

    def busy_worker(self, node: int) -> int | None:
        """A process of the node that computes now; None if there is none."""
        raylet = self.raylet(node)
        for own, _, parent in _processes():
            if parent == raylet:
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{own}/cmdline").read_bytes().startswith(b"ray::_computed"):
                        return own
        return None

    def stop(self) -> None:
        for node in self.nodes:
            node.terminate()  # it ends the processes that it has started
        for node in self.nodes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            node.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def paths() -> dict[str, str]:
    """What lets another process import what this one can."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}


def _processes() -> list[tuple[int, str, int]]:
    """(process, name, parent) of everything that runs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            found.append((int(path.parent.name), name, int(rest.split()[1])))
    return found
