"""Sharded builds on a real Ray cluster of two nodes: the same map, also when a worker, the driver or a node is killed.

One cluster, on loopback, and one driver for all of them. The last test takes a node away: the order matters.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from studies.scale.ray_builds import Cluster, paths
from tests.listening import LOOPBACK, listened_at
from tests.maps.building.builders import LOG, Published, build, counted, hold, same
from tests.maps.building.ray_driver import RayDriver
from tests.maps.conftest import photo
from tests.waiting import PATIENCE, wait_until
from tfa.errors import StoreUnavailable
from tfa.maps.building.executors import RayExecutor

pytestmark = [
    pytest.mark.stores,
    pytest.mark.kill,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed; pip install 'tfa-vpr[ray]'"),
]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Folder in which workers write down what they encode."""
    return tmp_path_factory.mktemp("encoded")


@pytest.fixture(scope="module")
def cluster(log):
    """Two nodes of a core each."""
    try:
        made = Cluster({LOG: str(log)}, cores=1)
    except StoreUnavailable as missing:
        pytest.skip(str(missing))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def driver(cluster, tmp_path_factory):
    made = RayDriver(cluster.address, cluster, tmp_path_factory.mktemp("driver") / "said.txt")
    yield made
    made.kill()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Photos, and their map by one process."""
    root = tmp_path_factory.mktemp("plain")
    for number in range(75):
        photo(root / "fleet" / f"{number:03d}.png", number // 3, light=1.0 - 0.1 * (number % 3))
    build(root / "fleet", f"sqlite://{root}/plain.db/places", work=root / "work")
    return root


def every_image_once(plain: Path, name: str) -> None:
    """The map `name` is that of one process."""
    found = Published(f"sqlite://{plain}/{name}.db/places")
    assert found.ids.tolist() == list(range(75))
    same(found, Published(f"sqlite://{plain}/plain.db/places"))


def described(work: Path) -> set[int]:
    """Shards whose descriptors are there."""
    return {int(path.stem.rpartition("-")[2]) for path in work.glob("*/descriptors-*.safetensors")}


def test_two_nodes_make_the_map_of_one_process_though_a_worker_is_killed(plain, cluster, driver, log):
    report = driver.build(plain / "fleet", f"sqlite://{plain}/worker.db/places", plain / "work", "DyingEncoder")
    assert report["workers"] == 2
    assert (log / "died").exists()
    every_image_once(plain, "worker")
    for process in (*cluster.nodes, driver.process):
        assert listened_at(process.pid) <= LOOPBACK


def test_a_full_disk_at_a_worker_is_one_sentence_and_the_build_goes_on_after(plain, driver, log):
    wanted = (plain / "fleet", f"sqlite://{plain}/full.db/places", plain / "work", "FullDiskEncoder")
    (log / "full").touch()
    report = driver.build(*wanted)
    assert report["error"] == "DiskFull"
    assert f"disk is full at {plain / 'work'}" in report["says"]
    assert "\n" not in report["says"]
    (log / "full").unlink()
    report = driver.build(*wanted)
    assert next(one["before"] for one in report["passes"] if one["name"] == "sample") == 5
    every_image_once(plain, "full")


def test_after_a_killed_driver_another_repeats_only_what_was_under_way(plain, cluster, driver, log):
    for path in log.iterdir():
        path.unlink()
    work = plain / "killed"
    wanted = (plain / "fleet", f"sqlite://{plain}/driver.db/places", work, "HeldEncoder")
    hold(log, work)
    first = RayDriver("auto", cluster, plain / "first.txt")
    try:
        first.begin(*wanted)
        wait_until(lambda: len(described(work)) >= 3)
    finally:
        first.kill()
    done = described(work)
    assert len(done) < 8, "the build ended before its driver was killed"
    (log / "hold").unlink()
    report = driver.build(*wanted)
    passes = {one["name"]: one for one in report["passes"]}
    assert passes["sample"]["before"] == 5
    assert len(done) <= passes["descriptors"]["before"] < 8  # a worker may have ended its shard before Ray ended it
    assert counted(log) <= 75 + 2 * 10  # once more at most what two workers were at
    every_image_once(plain, "driver")


def test_a_killed_node_that_nobody_replaces_costs_no_image(plain, cluster, driver, log):
    work = plain / "node"
    hold(log, work)
    driver.begin(plain / "fleet", f"sqlite://{plain}/node.db/places", work, "HeldEncoder")
    wait_until(lambda: bool(described(work)))
    os.kill(cluster.raylet(1), signal.SIGKILL)
    assert len(described(work)) < 8, "the build ended before the node was killed"
    (log / "hold").unlink()
    assert "error" not in driver.finish()
    every_image_once(plain, "node")


def test_an_address_where_nobody_answers_is_one_sentence():
    with pytest.raises(StoreUnavailable, match=r"cannot reach Ray at 127.0.0.1:1 .*ray start"):
        RayExecutor("127.0.0.1:1")


LOCAL = """
import os
from tests.listening import LOOPBACK, listened_at
from tfa.maps.building.executors import RayExecutor
with RayExecutor("local", workers=1) as executor:
    assert executor.workers == 1
    assert sorted(executor.map(abs, range(-3, 0))) == [1, 2, 3]
    heard = listened_at(os.getpid())
    assert heard and heard <= LOOPBACK, heard
"""


def test_a_cluster_of_this_machine_alone_is_heard_by_nobody_else():
    told = {name: os.environ[name] for name in os.environ if not name.startswith("RAY_")}
    run = subprocess.run(
        [sys.executable, "-c", LOCAL],
        env={**told, **paths()},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
