"""`tfa bench serve`: a real service under mixed load, killed without warning, and checked for what it remembers.

Queries are timed beside the same query without a service: in this process, on the same map. Every edit that was
answered with success must be there after the kill and a restart.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from tfa.bench.load_test.child import Child, Command, serve_command
from tfa.bench.load_test.clients import Edits, Load, synthetic_photo
from tfa.client.client import Client
from tfa.core.progress import Progress, as_progress
from tfa.maps import PlaceMap
from tfa.types import EncoderOptions, HeadSpec

ENCODER = "dinov2-s14@56/l0"  # one block of random weights at 56 pixels: quick, so that the service itself is seen
QUIET = 100  # queries sent one after the other, to the service and in this process in turn
KEPT_PHOTOS = 20  # photos of surviving additions that are fetched after the restart


@dataclass(frozen=True)
class Latency:
    """Milliseconds of requests of one kind."""

    count: int
    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency:
        if not seconds:
            return cls(0, 0.0, 0.0)
        return cls(len(seconds), *(1000 * float(np.percentile(seconds, share)) for share in (50, 99)))


@dataclass(frozen=True)
class ServingBenchmark:
    """What the clients saw, and what the map remembers."""

    images: int
    encoder: str
    clients: int
    editors: int
    threads: int  # of matrix products, in the service and in this process
    seconds: float
    bare: Latency  # a query in this process, without a service
    alone: Latency  # a query of an idle service
    queries: Latency  # under load
    edits: Latency  # under load
    errors: list[str]
    added: int  # accepted before the kill
    removed: int
    lost: list[str]  # accepted edits that are not there after the restart, a sentence each
    machine: str

    @property
    def passed(self) -> bool:
        return not self.errors and not self.lost

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "queries_per_second": self.queries.count / self.seconds, "passed": self.passed}

    def __str__(self) -> str:
        mixed = f"{self.clients} clients querying and {self.editors} editing for {self.seconds:.0f} s"
        lines = [f"{self.images} images, {self.encoder}, {self.machine}, {self.threads} threads; load: {mixed}", ""]
        lines.append(f"{'milliseconds':<40}{'requests':>10}{'p50':>9}{'p99':>9}")
        rows = (
            ("query in this process, no service", self.bare),
            ("query of the idle service, one client", self.alone),
            ("query under load", self.queries),
            ("edit under load", self.edits),
        )
        for name, latency in rows:
            lines.append(f"{name:<40}{latency.count:10,}{latency.p50:9.1f}{latency.p99:9.1f}")
        rate = self.queries.count / self.seconds
        lines += ["", f"{rate:.1f} queries a second under load, {len(self.errors)} errors"]
        lines += [f"  {error}" for error in self.errors[:5]]
        kept = "every one is there" if not self.lost else f"{len(self.lost)} are lost"
        lines.append(f"after kill -9 and restart: {self.added} additions, {self.removed} removals accepted, {kept}")
        lines += [f"  {sentence}" for sentence in self.lost[:5]]
        return "\n".join(lines)


def run_serving_benchmark(
    *,
    seconds: float = 60.0,
    clients: int = 8,
    editors: int = 2,
    images: int = 200,
    threads: int = 1,
    build: Callable[[Path, int], PlaceMap] | None = None,
    command: Command | None = None,
    progress: bool | Progress | None = None,
) -> ServingBenchmark:
    """Build a map of made-up photos, serve it, load it, kill it, and compare.

    `build` makes the map in a folder, `command` is what serves it; by default `tfa serve` itself.
    """
    with tempfile.TemporaryDirectory(prefix="tfa-bench-serve-") as name:
        folder = Path(name)
        place_map = (build or synthetic_map)(folder, images)
        assert place_map.path is not None
        with Child(place_map.path, command or serve_command, folder / "log.txt", threads) as child:
            client = Client(child.url)
            photos = [synthetic_photo(seed, light=0.8) for seed in range(min(images, 32))]
            with threadpool_limits(threads):
                bare, alone = _in_turn(place_map, client, photos, QUIET)
            load = Load(child.url, photos, clients, editors)
            with as_progress(progress).task("serving under load", max(int(seconds), 1), "s") as task:
                spent = load.run(seconds, task.advance, last=child.kill)
            child.start()
            lost = _lost(Client(child.url), load.edits)
    return ServingBenchmark(
        images=images,
        encoder=place_map.state.encoder["id"],
        clients=clients,
        editors=editors,
        threads=threads,
        seconds=spent,
        bare=Latency.of(bare),
        alone=Latency.of(alone),
        queries=Latency.of(load.query_seconds),
        edits=Latency.of(load.edit_seconds),
        errors=load.errors,
        added=len(load.edits.added),
        removed=len(load.edits.removed),
        lost=lost,
        machine=f"{os.cpu_count()} cores, {platform.machine()}",
    )


def synthetic_map(folder: Path, images: int) -> PlaceMap:
    """A saved map of made-up photos under a real encoder of random weights, which are written beside it."""
    from tfa.photos.token_cache import TokenCache

    (folder / "photos").mkdir()
    for seed in range(images):
        (folder / "photos" / f"{seed:05d}.jpg").write_bytes(synthetic_photo(seed))
    place_map = PlaceMap.build(
        folder / "photos",
        encoder=ENCODER,
        options=EncoderOptions(weights=random_weights_file(folder), cache=TokenCache(folder / "cache")),
        spec=HeadSpec(words=16),
    )
    place_map.save(folder / "town.tfa")
    return place_map


def random_weights_file(folder: Path) -> Path:
    """Weights of the quick encoder, written into a folder."""
    from tfa.core.files import write_tensors
    from tfa.encoders import parse_encoder
    from tfa.encoders.packaged_weights import expected_shapes

    generator, shapes = np.random.default_rng(0), expected_shapes(parse_encoder(ENCODER).card)
    weights = {name: 0.3 * generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    file = folder / "random.safetensors"
    write_tensors(file, {name: array.astype(np.float16) for name, array in weights.items()})
    return file


def _in_turn(
    place_map: PlaceMap, client: Client, photos: Sequence[bytes], count: int
) -> tuple[list[float], list[float]]:
    """Seconds of queries without and with the service, in turn, so that a busy machine slows them alike."""

    def bare(photo: bytes) -> None:
        place_map.query(photo)

    calls: tuple[Callable[[bytes], Any], ...] = (bare, client.query)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(-2, count):  # the first two warm up
        for call, seconds in zip(calls, times, strict=True):
            started = time.perf_counter()
            call(photos[number % len(photos)])
            if number >= 0:
                seconds.append(time.perf_counter() - started)
    return times


def _lost(client: Client, edits: Edits) -> list[str]:
    """Accepted edits that the map does not know any more."""
    present = {record.id for record in client.images()}
    lost = [f"image {i} was added and is gone" for i in sorted(edits.added - edits.removal_requested - present)]
    lost += [f"image {i} was removed and is back" for i in sorted(edits.removed & present)]
    for image_id in sorted(edits.added & present)[:KEPT_PHOTOS]:
        if not client.image(image_id).startswith(b"\xff\xd8"):
            lost.append(f"the photo of image {image_id} is gone")
    return lost
