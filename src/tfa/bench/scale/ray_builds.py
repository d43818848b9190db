"""The part `ray`: photos built into a map by one process and by a Ray cluster of two nodes, also when a worker, a node
or the driver is killed.

Every build is `tfa build --engine … --ray …` in a process of its own, with caches of its own: nothing is taken over
but what a build that was killed has left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfa.bench.load_test.run import ENCODER
from tfa.bench.scale.kept_rows import KeptRows
from tfa.bench.scale.local_servers import AnyServer, new_server
from tfa.bench.scale.ray_cluster import Cluster, paths
from tfa.bench.scale.small_town import SmallTown
from tfa.core.reading import parse_json
from tfa.errors import StoreUnavailable, TfaError
from tfa.maps.store.header import read_store_header
from tfa.photos.images import find_images
from tfa.search.store import open_map_store

PART = "ray"
QUICK = "quick"  # an encoder of one block of random weights
CLOSE = 1e-5
CASES = ("one process", "two nodes", "worker killed", "node killed", "driver killed")


@dataclass(frozen=True)
class RaySettings:
    """What is built."""

    photos: Path | None = None  # None: a town is drawn
    images: int = 600  # of the town
    encoder: str = QUICK
    shard_size: int = 25
    store: str = "postgres"
    limit: float = 900.0  # seconds of a build


@dataclass(frozen=True)
class Built:
    """What a build has put into its store, by id."""

    ids: np.ndarray
    digests: list[str]
    vectors: np.ndarray
    seconds: float
    shards: int
    before: int  # shards of photos that an earlier run had done

    def same_as(self, other: Built) -> bool:
        """The very images, once each, and vectors that differ by rounding at most."""
        once = self.ids.tolist() == other.ids.tolist() == list(range(len(self.ids))) and self.digests == other.digests
        return once and bool(np.abs(self.vectors - other.vectors).max() <= CLOSE)


def run_ray(settings: RaySettings, kept: KeptRows) -> Iterator[dict[str, Any]]:
    """All cases; a case is compared with the first two, so that all are run if one is missing."""
    if all(kept.has(PART, _named(case, settings)) for case in CASES):
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
            yield kept.keep(PART, _named(case, settings), row)


def _named(case: str, settings: RaySettings) -> str:
    return f"{case}, {settings.encoder}"


def drawn_town(folder: Path, images: int) -> Path:
    """Photos of the demo's town."""
    from tfa.demo.town import render_town

    render_town(folder / "town", references=images, queries=1, size=(320, 240))
    photos = folder / "photos"
    photos.mkdir()
    for file in sorted((folder / "town").rglob("ref_*.jpg")):
        file.rename(photos / file.name)
    return photos


class _Builds:
    """Builds of the same photos, each under a name of its own."""

    def __init__(self, settings: RaySettings, photos: Path, folder: Path, server: AnyServer) -> None:
        self.settings, self.photos, self.folder, self.server = settings, photos, folder, server

    def run(self, name: str, cluster: Cluster | None = None, *, killed: Callable[[int], bool] | None = None) -> Built:
        """`killed` is told of the driver's process and says whether it has killed it; then there is no result."""
        work, url = self.work(name), f"{self.server.url}/{name}"
        command = [sys.executable, "-m", "tfa", "build", str(self.photos), "--engine", url, "--work", str(work),
                   "--shard-size", str(self.settings.shard_size), "--json"]  # fmt: skip
        command += ["--workers", "1"] if cluster is None else ["--ray", cluster.address]
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
            raise StoreUnavailable(f"the build {name} was not done within {self.settings.limit:.0f} s") from None
        seconds = time.monotonic() - started
        if driver.returncode != 0:
            raise TfaError(f"the build {name} failed: {errors.decode()[-500:]}")
        report = parse_json(output[output.index(b"{\n") :])  # Ray may print a line of its own before
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
        """Shards of photos that are done."""
        return sum(1 for kind in ("sample", "descriptors") for _ in self.work(name).glob(f"*/{kind}-*"))

    def on_cluster(self, case: str) -> tuple[Built, dict[str, Any]]:
        """A case on a cluster of its own, which is up before the clock starts."""
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
        """End a process of the second node once a fourth of the shards is done."""
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
        shutil.rmtree(self.folder / "caches" / name, ignore_errors=True)  # shards alone tell what was done
        built = self.run(name, cluster)
        facts = {
            "first_seconds": first.seconds,
            "shards": built.shards,
            "done_before": built.before,
            "done_at_the_kill": known,
            "repeated": max(known - built.before, 0),
        }
        return built, facts
