"""A real service under mixed load, killed without warning, and checked for lost edits.

Queries are compared with the same query without a service: in this process, on the same map. Every acknowledged edit
must exist after the kill and a restart.
"""

from __future__ import annotations

import contextlib
import io
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
from threadpoolctl import threadpool_limits

from studies.options import at_least, make_parser, open_progress, run_script
from tfa.cli.console import delivered, print_text
from tfa.client import Client
from tfa.core.progress import Progress, as_progress
from tfa.errors import TfaError
from tfa.maps import PlaceMap
from tfa.types import EncoderOptions, HeadSpec

START_SECONDS = 120.0
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # read at process start
Command = Callable[[Path], Sequence[str]]


def serve_command(place_map: Path) -> list[str]:
    return [sys.executable, "-m", "tfa", "serve", str(place_map), "--port", "0", "--quiet"]


class NotServing(TfaError):
    """The service did not start."""


class Child:
    """A service in a child process, which prints its address when it listens; its log goes to a file."""

    def __init__(self, place_map: Path, command: Command, log: Path, threads: int = 1) -> None:
        self._command, self._log = list(command(place_map)), log
        self._environment = {**os.environ, **dict.fromkeys(THREADS, str(threads))}
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Child:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and wait until it is ready."""
        with open(self._log, "a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment
            )
        clock = threading.Timer(START_SECONDS, self._process.kill)
        clock.daemon = True
        clock.start()
        try:
            self.url = self._address()
            while not self._ready():
                if self._process.poll() is not None:
                    raise NotServing("the service ended before it was ready:", more=self._log_tail().splitlines())
                time.sleep(0.05)
        except BaseException:
            self.kill()
            raise
        finally:
            clock.cancel()

    def _address(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            match = re.search(r"https?://\S+", line)
            if match:
                return match[0]
        raise NotServing("the service did not start:", more=self._log_tail().splitlines())

    def _ready(self) -> bool:
        with contextlib.suppress(URLError, OSError), urlopen(f"{self.url}/readyz", timeout=10) as answer:
            return bool(answer.status == 200)
        return False

    def _log_tail(self) -> str:
        return self._log.read_text("utf-8", "replace")[-2000:]

    def kill(self) -> None:
        """Kill it with SIGKILL, as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None


_FIRST_NEW = 1_000_000  # first seed of added photos


def synthetic_photo(seed: int, light: float = 1.0, size: tuple[int, int] = (320, 240)) -> bytes:
    """Return a JPEG of colored blocks: the seed chooses the blocks, `light` their brightness."""
    from PIL import Image

    blocks = np.random.default_rng(seed).integers(0, 256, (6, 8, 3)) * light
    picture = Image.fromarray(blocks.astype(np.uint8)).resize(size, Image.Resampling.NEAREST)
    written = io.BytesIO()
    picture.save(written, "JPEG", quality=90)
    return written.getvalue()


@dataclass
class Edits:
    """Acknowledged edits. A request without an answer may or may not have taken effect."""

    added: set[int] = field(default_factory=set)
    removed: set[int] = field(default_factory=set)
    removal_requested: set[int] = field(default_factory=set)


class Load:
    """Clients that query or edit, one thread each."""

    def __init__(self, url: str, photos: Sequence[bytes], clients: int, editors: int) -> None:
        self._url, self._photos = url, photos
        self.edits = Edits()
        self.errors: list[str] = []
        self.query_seconds: list[float] = []
        self.edit_seconds: list[float] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        works: list[Callable[[int], None]] = [*[self._query] * clients, *[self._edit] * editors]
        self._threads = [
            threading.Thread(target=work, args=(number,), name=f"load-{number}", daemon=True)
            for number, work in enumerate(works)
        ]

    def run(self, seconds: float, advance: Callable[[], None], last: Callable[[], None]) -> float:
        """Let all of them work, then call `last` meanwhile (the kill); return the duration."""
        started = time.monotonic()
        for thread in self._threads:
            thread.start()
        while time.monotonic() - started < seconds:
            time.sleep(min(1.0, max(seconds - (time.monotonic() - started), 0.0)))
            advance()
        spent = time.monotonic() - started
        self._over.set()  # later errors are caused by the kill
        last()
        for thread in self._threads:
            thread.join()
        return spent

    def _timed(self, call: Callable[[], object], into: list[float]) -> bool:
        """Return True on success. Failures after the kill are not counted."""
        started = time.perf_counter()
        try:
            call()
        except TfaError as error:
            if not self._over.is_set():
                with self._lock:
                    self.errors.append(str(error))
            return False
        if not self._over.is_set():
            with self._lock:
                into.append(time.perf_counter() - started)
        return True

    def _query(self, number: int) -> None:
        client, choose = Client(self._url), random.Random(number)
        while not self._over.is_set():
            photo = choose.choice(self._photos)
            self._timed(lambda: client.query(photo), self.query_seconds)  # noqa: B023

    def _edit(self, number: int) -> None:
        """Add a photo, or remove one of those it added, at random."""
        client, choose, seed = Client(self._url), random.Random(number), _FIRST_NEW * (number + 1)
        mine: list[int] = []
        while not self._over.is_set():
            if mine and choose.random() < 0.4:
                image_id = mine.pop(choose.randrange(len(mine)))
                with self._lock:
                    self.edits.removal_requested.add(image_id)
                if self._timed(lambda: client.remove([image_id]), self.edit_seconds):  # noqa: B023
                    with self._lock:
                        self.edits.removed.add(image_id)
                continue
            seed += 1
            photo, added = synthetic_photo(seed), list[int]()
            if self._timed(lambda: added.extend(client.add([photo]).added), self.edit_seconds):  # noqa: B023
                mine += added
                with self._lock:
                    self.edits.added.update(added)


ENCODER = "dinov2-s14@56/l0"  # one block with random weights at 56 pixels: fast, so that the service dominates
QUIET = 100  # queries sent one after the other, alternating between the service and this process
_FETCHED_PHOTOS = 20  # photos of surviving additions that are fetched after the restart


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
    """Measurements of the clients, and edits that survived."""

    images: int
    encoder: str
    clients: int
    editors: int
    threads: int  # threads of matrix products, in the service and in this process
    seconds: float
    bare: Latency  # a query in this process, without a service
    alone: Latency  # a query to an idle service
    queries: Latency  # under load
    edits: Latency  # under load
    errors: list[str]
    added: int  # accepted before the kill
    removed: int
    lost: list[str]  # acknowledged edits missing after the restart, one sentence each
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
        lines += ["", f"{rate:.1f} queries per second under load, {len(self.errors)} errors"]
        lines += [f"  {error}" for error in self.errors[:5]]
        kept = "none lost" if not self.lost else f"{len(self.lost)} are lost"
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
    """Build a map of synthetic photos, serve it under load, kill it, and compare.

    `build` makes the map in a folder, `command` serves it [default: `tfa serve`].
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
    """Save a map of synthetic photos under a real encoder with random weights, which are stored next to it."""
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
    """Write weights of the fast encoder into a folder."""
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
    """Return seconds of queries without and with the service, alternating, so that a busy machine slows both."""

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
    """Return acknowledged edits that the map lost."""
    present = {record.id for record in client.images()}
    lost = [f"image {i} was added and is gone" for i in sorted(edits.added - edits.removal_requested - present)]
    lost += [f"image {i} was removed and is back" for i in sorted(edits.removed & present)]
    for image_id in sorted(edits.added & present)[:_FETCHED_PHOTOS]:
        if not client.image(image_id).startswith(b"\xff\xd8"):
            lost.append(f"the photo of image {image_id} is gone")
    return lost


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a synthetic map on this machine under queries and edits, kill it, restart it, and count lost edits.

    The exit code is 1 if a request failed or an acknowledged edit is lost.
    """
    parser = make_parser(main.__doc__ or "")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long clients query and edit")
    parser.add_argument("--clients", type=at_least(1), default=8, help="clients that query at once")
    parser.add_argument("--editors", type=at_least(0), default=2, help="clients that add and remove images at once")
    parser.add_argument("--threads", type=at_least(1), default=1, help="threads of matrix products")
    parser.add_argument("--images", type=at_least(2), default=200, help="images of the synthetic map")
    return run_script(parser, _study, argv)


def _study(arguments: Namespace) -> int:
    result = run_serving_benchmark(
        seconds=arguments.seconds,
        clients=arguments.clients,
        editors=arguments.editors,
        images=arguments.images,
        threads=arguments.threads,
        progress=open_progress(arguments),
    )
    if not delivered(result.to_dict(), out=arguments.out, json=arguments.json):
        print_text(f"{result}\n")
    return 0 if result.passed else 1


if __name__ == "__main__":
    sys.exit(main())
