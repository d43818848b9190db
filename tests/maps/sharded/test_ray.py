"""Sharded builds on a real Ray cluster of two nodes: the same map, also when a worker or a node is killed."""

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
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.maps.conftest import photo
from tests.maps.sharded.builders import LOG, Published, build, same
from tfa.errors import EngineUnavailable
from tfa.maps.sharded.ray_executor import RayExecutor

pytestmark = [
    pytest.mark.engines,
    pytest.mark.kill,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed; pip install 'tfa-vpr[ray]'"),
]
PATIENCE = 60.0  # seconds for a node to start


class Cluster:
    """Nodes of two cores each, in processes of their own, all on loopback."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="r"))  # Ray's sockets lie below it, and their paths must be short
        # A token of its own: nobody else runs anything on it.
        self.keys = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.log = self.folder / "encoded"
        self.log.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._start("--head", f"--port={self.address.rpartition(':')[2]}", "--include-dashboard=false",
                    f"--temp-dir={self.folder}")  # fmt: skip
        self._start(f"--address={self.address}")

    def _start(self, *options: str) -> None:
        ours = {
            "RAY_USAGE_STATS_ENABLED": "0",
            LOG: str(self.log),
            **self.keys,
            "OMP_NUM_THREADS": "1",
        }
        paths = {"PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}
        common = ("--block", "--node-ip-address=127.0.0.1", "--num-cpus=2", "--object-store-memory=100000000")
        script = "from ray.scripts.scripts import main; main()"
        command = [sys.executable, "-c", script, "start", *common, "--disable-usage-stats", *options]
        output = open(self.folder / f"node{len(self.nodes)}.txt", "wb")  # noqa: SIM115  # as long as the node
        with output:
            node = subprocess.Popen(
                command, env={**os.environ, **ours, **paths}, stdout=output, stderr=output, start_new_session=True
            )
        self.nodes.append(node)
        deadline = time.monotonic() + PATIENCE
        while b"runtime started" not in Path(output.name).read_bytes():
            if node.poll() is not None or time.monotonic() > deadline:
                said = Path(output.name).read_text()
                self.stop()
                pytest.skip(f"a node of Ray did not start within {PATIENCE:.0f} s: {said[-300:]}")
            time.sleep(0.1)

    def raylet(self, node: int) -> int:
        """The process that is the node to the others."""
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue  # it has just ended
            if name == "raylet" and int(rest.split()[1]) == self.nodes[node].pid:
                return int(path.parent.name)
        raise AssertionError("the node has no raylet")

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


@pytest.fixture(scope="module")
def cluster():
    made = Cluster()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Photos, and their map by one process."""
    root = tmp_path_factory.mktemp("plain")
    for number in range(75):
        photo(root / "fleet" / f"{number:03d}.png", number // 3, light=1.0 - 0.1 * (number % 3))
    build(root / "fleet", f"sqlite://{root}/plain.db/places", work=root / "work")
    return root


DRIVER = """
import sys
from tests.maps.sharded import builders
from tfa.maps.sharded.ray_executor import RayExecutor
address, root, name, encoder = sys.argv[1:]
with RayExecutor(address) as executor:
    assert executor.workers == 4, executor.workers
    builders.build(f"{root}/fleet", f"sqlite://{root}/{name}.db/places", executor=executor, work=f"{root}/work",
                   encoder=getattr(builders, encoder))
"""


def built(plain: Path, cluster: Cluster, name: str, encoder: str) -> Published:
    """A map by a driver in a process of its own: what Ray is told by the environment it reads once."""
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}
    driver = subprocess.run(
        [sys.executable, "-c", DRIVER, cluster.address, str(plain), name, encoder],
        env={**os.environ, **paths, **cluster.keys}, check=False, timeout=80, capture_output=True, text=True,
    )  # fmt: skip
    assert driver.returncode == 0, driver.stderr[-2000:]
    return Published(f"sqlite://{plain}/{name}.db/places")


def test_two_nodes_make_the_map_of_one_process_though_a_worker_is_killed(plain, cluster):
    found = built(plain, cluster, "worker", "DyingEncoder")
    assert (cluster.log / "died").exists()
    assert found.ids.tolist() == list(range(75))
    same(found, Published(f"sqlite://{plain}/plain.db/places"))


def test_a_killed_node_that_nobody_replaces_costs_no_image(plain, cluster):
    killed = []

    def kill() -> None:
        deadline = time.monotonic() + PATIENCE
        while not list((plain / "work").glob("*/descriptors-*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        killed.append(cluster.raylet(1))
        os.kill(killed[0], signal.SIGKILL)

    watcher = threading.Thread(target=kill)
    watcher.start()
    found = built(plain, cluster, "node", "SlowEncoder")
    watcher.join()
    assert killed
    assert found.ids.tolist() == list(range(75))
    same(found, Published(f"sqlite://{plain}/plain.db/places"))


def test_an_address_where_nobody_answers_is_one_sentence():
    with pytest.raises(EngineUnavailable, match=r"Ray does not answer at 127.0.0.1:1 .*ray start"):
        RayExecutor("127.0.0.1:1")
