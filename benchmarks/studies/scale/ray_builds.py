"""The part `ray`: build a map with one process and with a Ray cluster of two nodes, also when a worker, a node or
the driver is killed.

Every build is `tfa build --out URL --set build.ray=…` in a separate process with separate caches: it reuses only what a
killed build has left.
"""

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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from studies.scale.local_servers import AnyServer, free_port, new_server
from studies.scale.rows import SavedRows, SmallTown
from studies.serve import ENCODER
from tfa.core.files import parse_json
from tfa.errors import StoreUnavailable, TfaError
from tfa.maps.store.header import read_store_header
from tfa.photos.images import find_images
from tfa.search.store import open_map_store

PATIENCE = 60.0  # seconds for a node to start
LOOPBACK = "127.0.0.1"
# Ray replaces loopback by the machine's address and then listens on all interfaces, so make it use ours. Also
# disable the ray:// server, whose port would be the same for every cluster.
_SCRIPT = (
    "from ray._private import services; from ray.scripts import scripts\n"
    "services.resolve_ip_for_localhost = str\n"
    "scripts.get_ray_client_dependency_error = lambda: 'disabled'\n"
    "scripts.main()"
)
# The same for a driver, with a switch of Ray; nodes must not have it, because it rejects clusters of several.
_ON_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


class Cluster:
    """Two nodes with two cores each by default."""

    def __init__(self, environment: Mapping[str, str] | None = None, cores: int = 2) -> None:
        """Start a cluster; `environment` is added to the environment of workers."""
        self.folder = Path(tempfile.mkdtemp(prefix="r"))  # Ray's socket paths below it must be short
        # Environment of a driver, with a token of its own, so that nobody else can use the cluster.
        self.keys = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), _ON_LOOPBACK: "0"}
        self._environment, self._cores = dict(environment or {}), cores
        self.address = f"{LOOPBACK}:{free_port()}"
        self.nodes: list[subprocess.Popen[bytes]] = []
        head = ("--head", f"--port={self.address.rpartition(':')[2]}", f"--temp-dir={self.folder}")
        self._start(*head, "--include-dashboard=false", "--no-monitor")
        self._wait(self._listens)  # the second node starts while the first is still starting
        self._start(f"--address={self.address}")
        self._wait(lambda: all(b"runtime started" in self._said(node).read_bytes() for node in range(2)))

    def _start(self, *options: str) -> None:
        ours = {"RAY_USAGE_STATS_ENABLED": "0", **self.keys, _ON_LOOPBACK: "1", "OMP_NUM_THREADS": "1"}
        ours |= self._environment
        cores, store = f"--num-cpus={self._cores}", "--object-store-memory=100000000"
        common = ("--block", f"--node-ip-address={LOOPBACK}", cores, store, "--disable-usage-stats")
        command = [sys.executable, "-c", _SCRIPT, "start", *common, *options]
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
                raise StoreUnavailable(f"a node of Ray did not start within {PATIENCE:.0f} s: {tail}")
            time.sleep(0.1)

    def raylet(self, node: int) -> int:
        """Return the main process of a node."""
        for own, name, parent in _processes():
            if name == "raylet" and parent == self.nodes[node].pid:
                return own
        raise StoreUnavailable("the node has no raylet")

    def busy_worker(self, node: int) -> int | None:
        """Return a process of the node that is computing; None if there is none."""
        raylet = self.raylet(node)
        for own, _, parent in _processes():
            if parent == raylet:
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{own}/cmdline").read_bytes().startswith(b"ray::_computed"):
                        return own
        return None

    def stop(self) -> None:
        for node in self.nodes:
            node.terminate()  # it ends the processes that it started
        for node in self.nodes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            node.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def paths() -> dict[str, str]:
    """Return the environment that lets another process import the same modules."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}


def _processes() -> list[tuple[int, str, int]]:
    """Return (process, name, parent) of all running processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            found.append((int(path.parent.name), name, int(rest.split()[1])))
    return found


_PART = "ray"
QUICK = "quick"  # an encoder of one block with random weights
CLOSE = 1e-5
CASES = ("one process", "two nodes", "worker killed", "node killed", "driver killed")


@dataclass(frozen=True)
class RaySettings:
    """Settings of the builds."""

    photos: Path | None = None  # None: a town is drawn
    images: int = 600  # images of the town
    encoder: str = QUICK
    shard_size: int = 25
    store: str = "postgres"
    limit: float = 900.0  # seconds per build


@dataclass(frozen=True)
class Built:
    """Content of a build's store, by id."""

    ids: np.ndarray
    digests: list[str]
    vectors: np.ndarray
    seconds: float
    shards: int
    before: int  # shards of photos done by an earlier run

    def same_as(self, other: Built) -> bool:
        """True if it has the same images, once each, and vectors that differ only by rounding."""
        once = self.ids.tolist() == other.ids.tolist() == list(range(len(self.ids))) and self.digests == other.digests
        return once and bool(np.abs(self.vectors - other.vectors).max() <= CLOSE)


def run_ray(settings: RaySettings, saved: SavedRows) -> Iterator[dict[str, Any]]:
    """Run all cases; they are compared with the first two, so one missing row reruns all."""
    if all(saved.has(_PART, _named(case, settings)) for case in CASES):
        return
    server = new_server(settings.store)
    with tempfile.TemporaryDirectory(prefix="tfa-ray-") as name, contextlib.ExitStack() as stack:
        stack.callback(server.remove)
        folder = Path(name)
        photos = settings.photos or drawn_town(folder, settings.images)
        builds = _Builds(settings, photos, folder, server.start())
        alone = builds.run("one_process")
        clean = None
        for case in CASES:
            built, facts = (alone, {}) if case == CASES[0] else builds.on_cluster(case)
            clean = built if case == CASES[1] else clean
            rate = len(built.ids) / built.seconds
            row = {
                "case": case,
                "encoder": settings.encoder,
                "images": len(built.ids),
                "photos": len(find_images(photos)),
                "seconds": built.seconds,
                "images_per_second": rate,
                "more_ms_an_image": 1000 * (built.seconds - alone.seconds) / len(built.ids),
                "to_clean": None if clean is None else built.seconds / clean.seconds,
                "same_map": built.same_as(alone),
                **facts,
            }
            yield saved.keep(_PART, _named(case, settings), row)


def _named(case: str, settings: RaySettings) -> str:
    return f"{case}, {settings.encoder}"


def drawn_town(folder: Path, images: int) -> Path:
    """Draw photos of the demo's town."""
    from town.traverses import render_town

    render_town(folder / "town", references=images, queries=1, size=(320, 240))
    photos = folder / "photos"
    photos.mkdir()
    for file in sorted((folder / "town").rglob("ref_*.jpg")):
        file.rename(photos / file.name)
    return photos


class _Builds:
    """Builds of the same photos under different names."""

    def __init__(self, settings: RaySettings, photos: Path, folder: Path, server: AnyServer) -> None:
        self.settings, self.photos, self.folder, self.server = settings, photos, folder, server

    def run(self, name: str, cluster: Cluster | None = None, *, killed: Callable[[int], bool] | None = None) -> Built:
        """Build a map; `killed` gets the driver's process and returns whether it killed it; then there is no result."""
        work, url = self.work(name), f"{self.server.url}/{name}"
        command = [sys.executable, "-m", "tfa", "build", str(self.photos), "--out", url, "--json"]
        chosen = {"work": work, "shard_size": self.settings.shard_size}
        chosen |= {"workers": 1} if cluster is None else {"ray": cluster.address}
        command += [part for key, value in chosen.items() for part in ("--set", f"build.{key}={value}")]
        if self.settings.encoder == QUICK:
            command += ["--encoder", ENCODER, "--weights", str(SmallTown(self.folder / "weights").weights)]
        else:
            command += ["--encoder", self.settings.encoder]
        keys = {} if cluster is None else cluster.keys
        own = {"TFA_CACHE": str(self.folder / "caches" / name), "OMP_NUM_THREADS": "1"}
        started = time.monotonic()
        driver = subprocess.Popen(
            command, env={**os.environ, **paths(), **keys, **own}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            if killed is not None and killed(driver.pid):
                driver.communicate()
                return Built(np.empty(0, int), [], np.empty((0, 0)), time.monotonic() - started, 0, 0)
            output, errors = driver.communicate(timeout=self.settings.limit)
        except subprocess.TimeoutExpired:
            driver.kill()
            raise StoreUnavailable(f"the build {name} did not finish within {self.settings.limit:.0f} s") from None
        seconds = time.monotonic() - started
        if driver.returncode != 0:
            raise TfaError(f"the build {name} failed: {errors.decode()[-500:]}")
        report = parse_json(output[output.index(b"{\n") :])  # Ray may print a line before it
        passes = [one for one in report["passes"] if one["name"] in ("sample", "descriptors")]
        shards, before = (sum(one[key] for one in passes) for key in ("shards", "before"))
        return self._published(url, seconds, shards, before)

    def _published(self, url: str, seconds: float, shards: int, before: int) -> Built:
        store, name = open_map_store(url)
        header, _ = read_store_header(store, name, url)
        pages = list(store.open(header.collection).pages(1000))
        ids = np.concatenate([page.ids for page in pages])
        digests = [one["digest"] for page in pages for one in page.payload]
        return Built(ids, digests, np.concatenate([page.vectors for page in pages]), seconds, shards, before)

    def work(self, name: str) -> Path:
        return self.folder / "work" / name

    def done(self, name: str) -> int:
        """Return the number of finished shards."""
        return sum(1 for kind in ("sample", "descriptors") for _ in self.work(name).glob(f"*/{kind}-*"))

    def on_cluster(self, case: str) -> tuple[Built, dict[str, Any]]:
        """Run a case on a new cluster, started before the clock."""
        name = case.replace(" ", "_")
        cluster = Cluster()
        try:
            if case == "driver killed":
                return self._driver_killed(name, cluster)
            if case == "two nodes":
                return self.run(name, cluster), {}
            victim = cluster.busy_worker if case == "worker killed" else cluster.raylet
            ended: list[int] = []
            watcher = threading.Thread(target=self._kill_midway, args=(name, victim, ended))
            watcher.start()
            built = self.run(name, cluster)
            watcher.join()
            return built, {"killed": len(ended)}
        finally:
            cluster.stop()

    def _kill_midway(self, name: str, victim: Callable[[int], int | None], ended: list[int]) -> None:
        """Kill a process of the second node once a quarter of the shards is done."""
        wanted = max(len(find_images(self.photos)) // self.settings.shard_size // 4, 1)
        deadline = time.monotonic() + self.settings.limit
        while time.monotonic() < deadline:
            process = victim(1) if self.done(name) >= wanted else None
            if process is not None:
                os.kill(process, signal.SIGKILL)
                ended.append(process)
                return
            time.sleep(0.02)

    def _driver_killed(self, name: str, cluster: Cluster) -> tuple[Built, dict[str, Any]]:
        half = len(find_images(self.photos)) // self.settings.shard_size // 2

        def kill(driver: int) -> bool:
            deadline = time.monotonic() + self.settings.limit
            while self.done(name) < half and time.monotonic() < deadline:
                time.sleep(0.02)
            os.kill(driver, signal.SIGKILL)
            return True

        first = self.run(name, cluster, killed=kill)
        known = self.done(name)
        shutil.rmtree(self.folder / "caches" / name, ignore_errors=True)  # only shards show what was done
        built = self.run(name, cluster)
        facts = {
            "first_seconds": first.seconds,
            "shards": built.shards,
            "done_before": built.before,
            "done_at_the_kill": known,
            "repeated": max(known - built.before, 0),
        }
        return built, facts
