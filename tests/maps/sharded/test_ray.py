"""Sharded builds on a real Ray cluster of two nodes: the same map, also when a worker or a node is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.maps.conftest import photo
from tests.maps.sharded.builders import LOG, Published, build, same
from tfa.bench.scale.ray_cluster import PATIENCE, Cluster, paths
from tfa.errors import EngineUnavailable
from tfa.maps.sharded.ray_executor import RayExecutor

pytestmark = [
    pytest.mark.engines,
    pytest.mark.kill,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed; pip install 'tfa-vpr[ray]'"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    log = tmp_path_factory.mktemp("encoded")
    try:
        made = Cluster({LOG: str(log)})
    except EngineUnavailable as missing:
        pytest.skip(str(missing))
    made.log = log
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
    driver = subprocess.run(
        [sys.executable, "-c", DRIVER, cluster.address, str(plain), name, encoder],
        env={**os.environ, **paths(), **cluster.keys}, check=False, timeout=80, capture_output=True, text=True,
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
