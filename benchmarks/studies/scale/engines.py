"""The part `engines`: synthetic vectors in every store. Build time, bytes, query time, recall.

Each row is measured in a separate process, one query at a time, between numpy products of the same vectors in float32:
these are its floor, and their best are the ground truth. Memory is the growth of the process from before the build to
after the queries, including mapped files except the file of vectors.
"""

from __future__ import annotations

import importlib
import math
import multiprocessing
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from studies.scale.local_servers import AnyServer, new_server
from studies.scale.rows import SavedRows
from tfa.core.arrays import SPILL_PREFIX
from tfa.core.files import make_folder
from tfa.core.progress import Progress, as_progress, track_progress
from tfa.errors import MissingExtra, TfaError
from tfa.search.gallery import ExactSearch, Gallery, WeightedGalleries, top_k
from tfa.search.quantized import round_rows
from tfa.search.reduced import ReducedSearch, fit_reduced, fixed_rotation
from tfa.search.store import Entries, open_map_store

PHOTOS = 4  # photos per place
DECAY = 0.8  # decay of the spectrum
SAME = 0.5  # fraction of the variance of z shared by a place
_BIAS = 0.1  # in standard deviations of scores
_QUERY_BLOCKS = 10  # blocks whose places are queried


@dataclass(frozen=True)
class MadeUpPlaces:
    """A file of synthetic vectors below `folder`, as long as the largest request."""

    folder: Path
    dims: int = 1024
    block: int = 10_000  # images generated per step

    @property
    def file(self) -> Path:
        return self.folder / f"places-{self.dims}-{self.block}.f32"

    def vectors(self, images: int, progress: Progress | bool | None = None) -> np.ndarray:
        """Return `(images, dims)`, float32, mapped from the file. Missing vectors are generated first."""
        make_folder(self.folder)
        whole = self.block * self.dims * 4
        self.file.touch()
        done, wanted = self.file.stat().st_size // whole, -(-images // self.block)
        with self.file.open("r+b") as file:
            file.truncate(max(done, 0) * whole)  # drop an unfinished block
            file.seek(0, 2)
            missing = range(done, wanted)
            for number in track_progress(missing, len(missing), "making vectors", as_progress(progress), "blocks"):
                file.write(self._images(number).tobytes())
        return np.memmap(self.file, np.float32, "r", shape=(images, self.dims))

    def queries(self, images: int, count: int) -> np.ndarray:
        """Return `(count, dims)`, float32: another photo of places among the first `images`."""
        blocks = -(-images // self.block)
        chosen = np.unique(np.linspace(0, blocks - 1, min(_QUERY_BLOCKS, blocks)).astype(int))
        asked = []
        for part, number in enumerate(chosen.tolist()):
            there = min(images - number * self.block, self.block) // PHOTOS
            own = count // len(chosen) + (part < count % len(chosen))
            places = np.linspace(0, max(there - 1, 0), own).astype(int)
            rng = np.random.default_rng([number, 2])
            asked.append(self._turned(self._features(self._places(number)[places], rng), np.ones(own)))
        return np.concatenate(asked)

    def _places(self, number: int) -> np.ndarray:
        rng = np.random.default_rng([number, 0])
        return rng.standard_normal((-(-self.block // PHOTOS), self.dims - 1), np.float32)

    def _images(self, number: int) -> np.ndarray:
        rng = np.random.default_rng([number, 1])
        places = np.repeat(self._places(number), PHOTOS, axis=0)[: self.block]
        return self._turned(
            self._features(places, rng), rng.standard_normal(self.block) * _BIAS * self._spread_of_scores()
        )

    def _amplitudes(self) -> np.ndarray:
        """λ^¼."""
        return np.arange(1, self.dims, dtype=np.float64) ** (-DECAY / 4)

    def _spread_of_scores(self) -> float:
        """Standard deviation of ⟨Ψ, Ψ'⟩ of two places."""
        share = self._amplitudes() ** 2
        return float(np.sqrt(((share / share.sum()) ** 2).sum()))

    def _features(self, places: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        own = rng.standard_normal(places.shape, np.float32)
        own *= math.sqrt(1 - SAME)
        own += math.sqrt(SAME) * places
        own *= self._amplitudes().astype(np.float32)
        own /= np.linalg.norm(own, axis=1, keepdims=True)
        return own

    def _turned(self, features: np.ndarray, last: np.ndarray) -> np.ndarray:
        rotation = fixed_rotation(self.dims).astype(np.float32)
        return np.column_stack([features, last.astype(np.float32)]) @ rotation.T


def exact_answers(vectors: np.ndarray, queries: np.ndarray, k: int, block: int = 50_000) -> np.ndarray:
    """Return the k best `(q, k)` by float32 products, ties to the smaller index."""
    ids, scores = np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
    for start in range(0, len(vectors), block):
        own = queries @ vectors[start : start + block].T
        best, values = top_k(own, min(k, own.shape[1]))
        ids, scores = np.concatenate([ids, best + start], axis=1), np.concatenate([scores, values], axis=1)
        order = np.lexsort((ids, -scores), axis=1)[:, :k]
        ids, scores = np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1)
    return ids


_SMAPS = Path("/proc/self/smaps")
_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)")
_FACT = re.compile(r"(Size|Rss): +(\d+) kB")


@dataclass(frozen=True)
class MemoryMapping:
    """A mapping of a process's memory; `file` is the mapped file, if any."""

    file: str
    size: int = 0  # bytes
    resident: int = 0

    @property
    def spilled(self) -> bool:
        """True if it is an array in one of our temporary files."""
        return Path(self.file).parent.name.startswith(SPILL_PREFIX)


def mappings(text: str | None = None) -> list[MemoryMapping]:
    """Return the mappings of this process; empty if the system does not report them."""
    if text is None:
        text = _SMAPS.read_text("utf-8", "replace") if _SMAPS.exists() else ""
    found: list[MemoryMapping] = []
    for line in text.splitlines():
        mapping, fact = _MAPPING.fullmatch(line), _FACT.match(line)
        if mapping is not None:
            found.append(MemoryMapping(mapping[1]))
        elif fact is not None and found:
            last, size = found[-1], 1024 * int(fact[2])
            found[-1] = MemoryMapping(last.file, *((size, last.resident) if fact[1] == "Size" else (last.size, size)))
    return found


def resident_beside(file: Path) -> int:
    """Return resident bytes of this process, including mapped files except one."""
    return sum(one.resident for one in mappings() if one.file != str(file.resolve()))


def spilled_bytes() -> int:
    """Return bytes of arrays that this process keeps in temporary files."""
    return sum(one.size for one in mappings() if one.spilled)


_REDUCED_DIMS = 512
WRITTEN = 1000  # images per write, as in a build
_FAISS_LINKS, _FAISS_WIDTH, _FAISS_EF = 32, 128, 128  # parameters of faiss's graph: M, efConstruction, efSearch


class Contender(Protocol):
    """Vectors `(m, D)` with the bias folded in, searched by inner products."""

    def nearest(self, query: np.ndarray, k: int) -> np.ndarray:
        """Return ids `(k,)` for one query `(1, D)`."""
        ...


@dataclass(frozen=True)
class InProcess:
    """TFA's search in memory."""

    searcher: ExactSearch

    def nearest(self, query: np.ndarray, k: int) -> np.ndarray:
        return self.searcher.search(query, k).ids[0]


def _galleries(rows: Any, count: int) -> WeightedGalleries:
    return WeightedGalleries((1.0,), (Gallery.of(rows),), np.zeros(count, np.float32))


def exact(vectors: np.ndarray, _: str) -> Contender:
    searcher = ExactSearch(_galleries(round_rows(vectors), len(vectors)), np.arange(len(vectors)))
    for gallery in searcher.rows.galleries:
        gallery.prepare()
    return InProcess(searcher)


def reduced(vectors: np.ndarray, _: str) -> Contender:
    rows = _galleries(round_rows(vectors), len(vectors))
    small = fit_reduced(rows, min(_REDUCED_DIMS, vectors.shape[1] // 2))
    searcher = ReducedSearch(rows, np.arange(len(vectors)), None, small)
    searcher.prepare()
    return InProcess(searcher)


@dataclass(frozen=True)
class InStore:
    """A collection of a store."""

    collection: Any

    def nearest(self, query: np.ndarray, k: int) -> np.ndarray:
        return self.collection.nearest(query, k)[0][0]


def in_store(dtype: str, index: str | None) -> Callable[[np.ndarray, str], Contender]:
    def build(vectors: np.ndarray, url: str) -> Contender:
        store, name = open_map_store(f"{url}/bench_scale")
        store.drop(name)
        collection = store.create(name, vectors.shape[1], dtype)
        for start in range(0, len(vectors), WRITTEN):
            block = np.array(vectors[start : start + WRITTEN])
            ids = np.arange(start, start + len(block))
            collection.write(Entries(ids, block, [payload(own) for own in ids.tolist()], [b""] * len(ids)))
        collection.seal(index)
        return InStore(collection)

    return build


def payload(number: int) -> dict[str, Any]:
    """Return a payload as large as that of a real photo."""
    return {"path": f"/photos/of/a/town/{number:08d}.jpg", "digest": f"{number:064x}", "session": "day",
            "position": None, "fitted": True}  # fmt: skip


@dataclass(frozen=True)
class InFaiss:
    index: Any

    def nearest(self, query: np.ndarray, k: int) -> np.ndarray:
        return self.index.search(query, k)[1][0]


def in_faiss(make: Callable[[Any, int], Any]) -> Callable[[np.ndarray, str], Contender]:
    def build(vectors: np.ndarray, _: str) -> Contender:
        try:
            faiss = importlib.import_module("faiss")
        except ImportError:
            raise MissingExtra("faiss is not installed; install with: pip install 'tfa-vpr[export]'") from None
        index = make(faiss, vectors.shape[1])
        if not index.is_trained:
            index.train(np.array(vectors[:20_000]))
        for start in range(0, len(vectors), 50_000):
            index.add(np.array(vectors[start : start + 50_000]))
        return InFaiss(index)

    return build


def _graph(faiss: Any, dims: int) -> Any:
    index = faiss.IndexHNSWFlat(dims, _FAISS_LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = _FAISS_WIDTH, _FAISS_EF
    return index


def _bytes(faiss: Any, dims: int) -> Any:
    return faiss.IndexScalarQuantizer(dims, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)


@dataclass(frozen=True)
class Candidate:
    """One row of the comparison."""

    what: str  # description
    build: Callable[[np.ndarray, str], Contender]  # from vectors and, for a store, the server's URL
    exact: bool
    server: str | None = None  # scheme of a store


CONTENDERS: Mapping[str, Candidate] = {
    "exact": Candidate("TFA `exact`, int8 rows", exact, True),
    "reduced": Candidate(f"TFA `reduced`, {_REDUCED_DIMS} dimensions, best 100 rescored", reduced, False),
    "faiss-flat": Candidate("faiss flat, float32", in_faiss(lambda faiss, dims: faiss.IndexFlatIP(dims)), True),
    "faiss-sq8": Candidate("faiss flat, int8", in_faiss(_bytes), False),
    "faiss-hnsw": Candidate(f"faiss HNSW, M {_FAISS_LINKS}, ef {_FAISS_EF}", in_faiss(_graph), False),
    "postgres": Candidate("PostgreSQL, float16, exact", in_store("float16", None), True, "postgres"),
    "postgres-hnsw": Candidate("PostgreSQL, float16, HNSW", in_store("float16", "hnsw"), False, "postgres"),
    "milvus": Candidate("Milvus, float32, exact", in_store("float32", None), True, "milvus"),
    "milvus-hnsw": Candidate("Milvus, float32, HNSW", in_store("float32", "hnsw"), False, "milvus"),
    "lance": Candidate("LanceDB, float16, exact", in_store("float16", None), True, "lance"),
    "lance-ivf_rq": Candidate("LanceDB, float16, IVF_RQ", in_store("float16", "ivf_rq"), False, "lance"),
    "qdrant": Candidate("Qdrant edge, float16, exact", in_store("float16", None), True, "qdrant"),
    "qdrant-turbo4": Candidate("Qdrant edge, float16, 4 bits", in_store("float16", "turbo4"), False, "qdrant"),
}


_PART = "engines"
K = 10
_FLOORS = 20  # numpy products per row
QUERIES = {20_000: 200, 100_000: 200}
MANY = 50  # queries at other sizes
PROBED = 600  # vectors of an unmeasured warm-up build
MEMORY = "2GB"  # memory of servers that need a limit


@dataclass(frozen=True)
class EngineSettings:
    """Rows to measure, folder of the vectors, and time limits."""

    folder: Path
    sizes: Sequence[int] = (20_000, 100_000, 1_000_000)
    engines: Sequence[str] = tuple(CONTENDERS)
    limit: float = 900.0  # seconds per row
    dims: int = 1024
    block: int = 10_000
    milvus: str | None = None  # a running server
    postgres: str | None = None

    @property
    def places(self) -> MadeUpPlaces:
        return MadeUpPlaces(self.folder, self.dims, self.block)

    def running(self, scheme: str) -> str | None:
        return {"milvus": self.milvus, "postgres": self.postgres}.get(scheme)


def run_engines(
    settings: EngineSettings, saved: SavedRows, progress: Progress | bool | None
) -> Iterator[dict[str, Any]]:
    """Yield missing rows as they are measured."""
    for images in settings.sizes:
        missing = [name for name in settings.engines if not saved.has(_PART, _named(name, images))]
        if not missing:
            continue
        vectors = settings.places.vectors(images, progress)
        queries = settings.places.queries(images, QUERIES.get(images, MANY))
        truth = exact_answers(vectors, queries, K)
        for name in missing:
            facts = _in_its_own_process(name, images, queries, truth, settings)
            yield saved.keep(_PART, _named(name, images), {"engine": name, "images": images, **facts})


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
        return {"given_up": f"not finished within {limit:.0f} s"}
    try:
        facts: dict[str, Any] = pipe.recv()
    except EOFError:
        child.join()
        return {"given_up": f"the process ended with status {child.exitcode}"}
    if server is not None and "given_up" not in facts:
        facts["disk_bytes"] = server.bytes_on_disk()
        facts["memory_bytes"] = server.bytes_in_memory() or facts["memory_bytes"]
    pipe.send("done")  # it keeps its connection open until then, and the server its memory
    return facts


def _measure_into(pipe: Connection, name: str, images: int, *settings: Any) -> None:
    try:
        pipe.send(measured(name, images, *settings))
        pipe.recv()
    except (TfaError, MemoryError) as error:
        pipe.send({"given_up": str(error) or type(error).__name__})


def measured(
    name: str, images: int, queries: np.ndarray, truth: np.ndarray, settings: EngineSettings, url: str
) -> dict[str, Any]:
    """Measure one row: build, then query."""
    vectors = settings.places.vectors(images)
    for start in range(0, images, settings.block):  # from disk into memory before the clock starts
        vectors[start : start + settings.block].sum()
    if CONTENDERS[name].server is None:  # load libraries outside the measured time
        importlib.import_module("torch")  # our search uses its kernel for many rows
        CONTENDERS[name].build(vectors[:PROBED], url)
    before, started = resident_beside(settings.places.file), time.perf_counter()
    contender = CONTENDERS[name].build(vectors, url)
    built = time.perf_counter() - started
    for query in queries[:3]:  # warm up: packing or loading at the first query
        contender.nearest(query[None], K)
    seconds, floors, right, first = [], [], 0, 0
    every = max(len(queries) // _FLOORS, 1)
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
