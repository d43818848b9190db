"""A real Ray cluster of nodes on loopback, in processes of its own, whose workers and nodes can be killed."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tfa.bench.scale.local_servers import free_port
from tfa.errors import EngineUnavailable

PATIENCE = 60.0  # seconds for a node to start
SCRIPT = "from ray.scripts.scripts import main; main()"


class Cluster:
    """Two nodes of two cores each."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """`environment` is what workers see beside ours."""
        self.folder = Path(tempfile.mkdtemp(prefix="r"))  # Ray's sockets lie below it, and their paths must be short
        # A token of its own: nobody else runs anything on it.
        self.keys = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self._environment = dict(environment or {})
        self.address = f"127.0.0.1:{free_port()}"
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._start("--head", f"--port={self.address.rpartition(':')[2]}", "--include-dashboard=false",
                    f"--temp-dir={self.folder}")  # fmt: skip
        self.add_node()

    def add_node(self) -> None:
        self._start(f"--address={self.address}")

    def _start(self, *options: str) -> None:
        ours = {"RAY_USAGE_STATS_ENABLED": "0", **self.keys, "OMP_NUM_THREADS": "1", **self._environment}
        common = ("--block", "--node-ip-address=127.0.0.1", "--num-cpus=2", "--object-store-memory=100000000")
        command = [sys.executable, "-c", SCRIPT, "start", *common, "--disable-usage-stats", *options]
        said = self.folder / f"node{len(self.nodes)}.txt"
        with said.open("wb") as output:
            node = subprocess.Popen(
                command, env={**os.environ, **ours, **paths()}, stdout=output, stderr=output, start_new_session=True
            )
        self.nodes.append(node)
        deadline = time.monotonic() + PATIENCE
        while b"runtime started" not in said.read_bytes():
            if node.poll() is not None or time.monotonic() > deadline:
                tail = said.read_text()[-300:]
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
