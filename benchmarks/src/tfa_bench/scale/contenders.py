"""What is compared by `tfa bench scale engines`: our engines, stores by their adapters, and faiss."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tfa.errors import MissingExtra
from tfa.search.bounded import BoundedEngine
from tfa.search.exact import ExactEngine, WeightedGalleries
from tfa.search.gallery import Gallery
from tfa.search.quantised_rows import rounded
from tfa.search.reduced import ReducedEngine, fit_reduced
from tfa.search.store import Entries
from tfa.search.stores import parsed

REDUCED_DIMS = 512
WRITTEN = 1000  # images at a time, as a build writes them
FAISS_LINKS, FAISS_WIDTH, FAISS_EF = 32, 128, 128  # of faiss's graph: M, efConstruction, efSearch


class Contender(Protocol):
    """Vectors `m D` with the bias folded in, searched by inner products."""

    def nearest(self, query: np.ndarray, k: int) -> np.ndarray:
        """ids `k` of one query `1 D`."""
        ...


@dataclass(frozen=True)
class InProcess:
    """An engine of ours."""

    engine: ExactEngine

    def nearest(self, query: np.ndarray, k: int) -> np.ndarray:
        return self.engine.search(query, k).ids[0]


def _galleries(rows: Any, count: int) -> WeightedGalleries:
    return WeightedGalleries((1.0,), (Gallery.of(rows),), np.zeros(count, np.float32))


def exact(vectors: np.ndarray, _: str) -> Contender:
    engine = ExactEngine(_galleries(rounded(vectors), len(vectors)), np.arange(len(vectors)))
    for gallery in engine.rows.galleries:
        gallery.prepare()
    return InProcess(engine)


def bounded(vectors: np.ndarray, _: str) -> Contender:
    engine = BoundedEngine(_galleries(np.array(vectors), len(vectors)), np.arange(len(vectors)))
    engine.prepare()
    return InProcess(engine)


def reduced(vectors: np.ndarray, _: str) -> Contender:
    rows = _galleries(rounded(vectors), len(vectors))
    small = fit_reduced(rows, min(REDUCED_DIMS, vectors.shape[1] // 2))
    engine = ReducedEngine(rows, np.arange(len(vectors)), reduced=small)
    engine.prepare()
    return InProcess(engine)


@dataclass(frozen=True)
class InStore:
    """A collection of a store."""

    collection: Any

    def nearest(self, query: np.ndarray, k: int) -> np.ndarray:
        return self.collection.nearest(query, k)[0][0]


def in_store(dtype: str, index: str | None) -> Callable[[np.ndarray, str], Contender]:
    def build(vectors: np.ndarray, url: str) -> Contender:
        kind, base, name = parsed(f"{url}/bench_scale")
        store = kind.connect(base)
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
    """As long as that of a real photo."""
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
    index = faiss.IndexHNSWFlat(dims, FAISS_LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = FAISS_WIDTH, FAISS_EF
    return index


def _bytes(faiss: Any, dims: int) -> Any:
    return faiss.IndexScalarQuantizer(dims, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)


@dataclass(frozen=True)
class Candidate:
    """One row of the comparison."""

    what: str  # in words
    build: Callable[[np.ndarray, str], Contender]  # of vectors and, for a store, the server's URL
    exact: bool
    server: str | None = None  # the scheme of a store


CONTENDERS: Mapping[str, Candidate] = {
    "exact": Candidate("TFA `exact`, int8 rows", exact, True),
    "bounded": Candidate("TFA `bounded`, float32 rows", bounded, True),
    "reduced": Candidate(f"TFA `reduced`, {REDUCED_DIMS} of the numbers, best 100 again", reduced, False),
    "faiss-flat": Candidate("faiss flat, float32", in_faiss(lambda faiss, dims: faiss.IndexFlatIP(dims)), True),
    "faiss-sq8": Candidate("faiss flat, int8", in_faiss(_bytes), False),
    "faiss-hnsw": Candidate(f"faiss HNSW, M {FAISS_LINKS}, ef {FAISS_EF}", in_faiss(_graph), False),
    "postgres": Candidate("PostgreSQL, float16, exact", in_store("float16", None), True, "postgres"),
    "postgres-hnsw": Candidate("PostgreSQL, float16, HNSW", in_store("float16", "hnsw"), False, "postgres"),
    "milvus": Candidate("Milvus, float32, exact", in_store("float32", None), True, "milvus"),
    "milvus-hnsw": Candidate("Milvus, float32, HNSW", in_store("float32", "hnsw"), False, "milvus"),
    "lance": Candidate("LanceDB, float16, exact", in_store("float16", None), True, "lance"),
    "lance-ivf_rq": Candidate("LanceDB, float16, IVF_RQ", in_store("float16", "ivf_rq"), False, "lance"),
    "qdrant": Candidate("Qdrant edge, float16, exact", in_store("float16", None), True, "qdrant"),
    "qdrant-turbo4": Candidate("Qdrant edge, float16, 4 bits", in_store("float16", "turbo4"), False, "qdrant"),
}
