"""The part `engines`: made-up vectors in every engine. Seconds to build, bytes, time of a query, what is found.

Each row is measured in a process of its own, one query at a time, between products by numpy of the same vectors
in float32: those are its floor, and what their best are is the truth. Memory is what the process holds after the
queries beyond what it held before the build, pages of files among it, but for the file of the vectors themselves.
"""

from __future__ import annotations

import importlib
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from tfa.bench.scale.contenders import CONTENDERS
from tfa.bench.scale.kept_rows import KeptRows
from tfa.bench.scale.local_servers import AnyServer, new_server
from tfa.bench.scale.made_up_places import MadeUpPlaces, exact_answers
from tfa.bench.scale.mappings import resident_beside, spilled_bytes
from tfa.core.progress import Progress
from tfa.errors import TfaError

PART = "engines"
K = 10
FLOORS = 20  # products by numpy of a row
QUERIES = {20_000: 200, 100_000: 200}
MANY = 50  # queries of other sizes
PROBED = 600  # vectors of a build that is not measured
MEMORY = "2GB"  # of a server that asks how much it may take


@dataclass(frozen=True)
class EngineSettings:
    """Which rows, where vectors are made up, and when a row is given up."""

    folder: Path
    sizes: Sequence[int] = (20_000, 100_000, 1_000_000)
    engines: Sequence[str] = tuple(CONTENDERS)
    limit: float = 900.0  # seconds of a row
    dims: int = 1024
    block: int = 10_000
    milvus: str | None = None  # a server that runs already
    postgres: str | None = None

    @property
    def places(self) -> MadeUpPlaces:
        return MadeUpPlaces(self.folder, self.dims, self.block)

    def running(self, scheme: str) -> str | None:
        return {"milvus": self.milvus, "postgres": self.postgres}.get(scheme)


def run_engines(settings: EngineSettings, kept: KeptRows, progress: Progress | bool | None) -> Iterator[dict[str, Any]]:
    """Rows that are not there yet, as they are done."""
    for images in settings.sizes:
        missing = [name for name in settings.engines if not kept.has(PART, _named(name, images))]
        if not missing:
            continue
        vectors = settings.places.vectors(images, progress)
        queries = settings.places.queries(images, QUERIES.get(images, MANY))
        truth = exact_answers(vectors, queries, K)
        for name in missing:
            facts = _in_its_own_process(name, images, queries, truth, settings)
            yield kept.keep(PART, _named(name, images), {"engine": name, "images": images, **facts})


def _named(name: str, images: int) -> str:
    return f"{name} {images}"


def _in_its_own_process(
    name: str, images: int, queries: np.ndarray, truth: np.ndarray, settings: EngineSettings
) -> dict[str, Any]:
    scheme = CONTENDERS[name].server
    server = None if scheme is None else new_server(scheme, MEMORY, settings.running(scheme))
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    try:
        url = "" if server is None else server.start().url
        child = context.Process(
            target=_measure_into, args=(theirs, name, images, queries, truth, settings, url), daemon=True
        )
        child.start()
        theirs.close()
        try:
            return _answer(ours, child, settings.limit, server)
        finally:
            child.kill()
            child.join()
    except TfaError as error:
        return {"given_up": str(error)}
    finally:
        ours.close()
        if server is not None:
            server.remove()


def _answer(pipe: Connection, child: Any, limit: float, server: AnyServer | None) -> dict[str, Any]:
    if not pipe.poll(limit):
        return {"given_up": f"not done within {limit:.0f} s"}
    try:
        facts: dict[str, Any] = pipe.recv()
    except EOFError:
        child.join()
        return {"given_up": f"the process ended with status {child.exitcode}"}
    if server is not None and "given_up" not in facts:
        facts["disk_bytes"] = server.bytes_on_disk()
        facts["memory_bytes"] = server.bytes_in_memory() or facts["memory_bytes"]
    pipe.send("done")  # until then it keeps its connection open, and the server its memory
    return facts


def _measure_into(pipe: Connection, name: str, images: int, *given: Any) -> None:
    try:
        pipe.send(measured(name, images, *given))
        pipe.recv()
    except (TfaError, MemoryError) as error:
        pipe.send({"given_up": str(error) or type(error).__name__})


def measured(
    name: str, images: int, queries: np.ndarray, truth: np.ndarray, settings: EngineSettings, url: str
) -> dict[str, Any]:
    """One row: built, then asked."""
    vectors = settings.places.vectors(images)
    for start in range(0, images, settings.block):  # from the disk into memory, before the clock starts
        vectors[start : start + settings.block].sum()
    if CONTENDERS[name].server is None:  # libraries are loaded, which is no part of the row
        importlib.import_module("torch")  # whose kernel our engines take for many rows, and not for so few
        CONTENDERS[name].build(vectors[:PROBED], url)
    before, started = resident_beside(settings.places.file), time.perf_counter()
    contender = CONTENDERS[name].build(vectors, url)
    built = time.perf_counter() - started
    for query in queries[:3]:  # warm: what is packed or loaded at the first query
        contender.nearest(query[None], K)
    seconds, floors, right, first = [], [], 0, 0
    every = max(len(queries) // FLOORS, 1)
    for number, query in enumerate(queries):
        started = time.perf_counter()
        found = contender.nearest(query[None], K)
        seconds.append(time.perf_counter() - started)
        right += len(set(found.tolist()) & set(truth[number].tolist()))
        first += int(found[0] == truth[number, 0])
        if number % every == 0:
            started = time.perf_counter()
            vectors @ query
            floors.append(time.perf_counter() - started)
    held, spilled = resident_beside(settings.places.file) - before, spilled_bytes()
    p50, p99 = (1000 * float(np.percentile(seconds, share)) for share in (50, 99))
    floor = 1000 * float(np.median(floors))
    return {
        "what": CONTENDERS[name].what,
        "exact": CONTENDERS[name].exact,
        "dims": settings.dims,
        "build_seconds": built,
        "memory_bytes": max(held, 0),
        **({"disk_bytes": spilled} if spilled else {}),
        "queries": len(queries),
        "p50_ms": p50,
        "p99_ms": p99,
        "numpy_ms": floor,
        "ratio": p50 / floor,
        "recall_at_10": right / truth.size,
        "top_1": first / len(queries),
    }
