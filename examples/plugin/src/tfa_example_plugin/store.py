"""A store: a database that holds maps. This one uses dictionaries in this process; yours would connect to a server.

The interface is `tfa.search.store`, its test suite `tfa_bench.store_contract.StoreContract`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfa.errors import StoreConflict
from tfa.search.store import NO_ID, Collection, Entries, Payload, Store, Where

_STORES: dict[str, DictStore] = {}
_LOCK = threading.Lock()


class DictCollection(Collection):
    """Images by id."""

    dtype = "float32"

    def __init__(self, name: str, dimensions: int) -> None:
        self.name, self.dimensions = name, dimensions
        self._images: dict[int, tuple[np.ndarray, Payload, bytes]] = {}

    def write(self, entries: Entries) -> None:
        images = zip(self.fit(entries.vectors), entries.payload, entries.full, strict=True)
        self._images |= dict(zip(entries.ids.tolist(), images, strict=True))

    def delete(self, ids: Sequence[int] | np.ndarray) -> None:
        for one in ids:
            self._images.pop(int(one), None)

    def nearest(self, queries: np.ndarray, k: int, where: Where | None = None) -> tuple[np.ndarray, np.ndarray]:
        queries, width = self.fit(queries), min(k, self.count())
        ids, best = np.full((len(queries), width), NO_ID), np.full((len(queries), width), -np.inf, np.float32)
        able = sorted(one for one, image in self._images.items() if where is None or where.admits(image[1]))
        for row, query in enumerate(queries.astype(np.float64)):
            scores = np.array([self._images[one][0] @ query for one in able], np.float32)
            order = np.argsort(-scores, kind="stable")[:width]  # ties go to the smaller id
            ids[row, : len(order)], best[row, : len(order)] = np.array(able, np.int64)[order], scores[order]
        return ids, best

    def fetch(self, ids: Sequence[int] | np.ndarray) -> Entries:
        there = [int(one) for one in ids if int(one) in self._images]
        vectors = np.array([self._images[one][0] for one in there], np.float32).reshape(-1, self.dimensions)
        payload, full = ([self._images[one][part] for one in there] for part in (1, 2))
        return Entries(np.array(there, np.int64), vectors, payload, full)  # type: ignore[arg-type]

    def find(self, digests: Sequence[str]) -> dict[str, int]:
        ids = {self._images[one][1].get("digest"): one for one in sorted(self._images, reverse=True)}
        return {digest: ids[digest] for digest in digests if digest in ids}

    def pages(self, size: int = 1000) -> Iterator[Entries]:
        ids = sorted(self._images)
        for start in range(0, len(ids), size):
            yield self.fetch(ids[start : start + size])

    def count(self) -> int:
        return len(self._images)

    def seal(self, index: str | None = None) -> None:
        """No-op: there is no index."""

    def describe(self) -> dict[str, Any]:
        size = {"count": self.count(), "dimensions": self.dimensions, "dtype": self.dtype}
        return {"store": "example-dict", "collection": self.name, **size}


class DictStore(Store):
    """`example-dict://ANYTHING`: each URL is one shared store within this process."""

    scheme = "example-dict"
    one_process = True

    def __init__(self) -> None:
        self._collections: dict[str, DictCollection] = {}
        self._documents: dict[str, bytes] = {}

    def create(self, name: str, dimensions: int, dtype: str = "float32") -> Collection:
        if name in self._collections:
            raise StoreConflict(f"collection {name!r} already exists; choose another name, or drop it")
        self._collections[name] = DictCollection(name, dimensions)
        return self._collections[name]

    def open(self, name: str) -> Collection:
        if name not in self._collections:
            raise StoreConflict(f"collection {name!r} not found; build the map again")
        return self._collections[name]

    def drop(self, name: str) -> None:
        self._collections.pop(name, None)

    def names(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self._collections if name.startswith(prefix))

    def read(self, key: str) -> bytes | None:
        return self._documents.get(key)

    def put(self, key: str, data: bytes) -> None:
        self._documents[key] = data

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        with _LOCK:
            if self._documents.get(key) != old:
                return False
            self._documents[key] = new
            return True

    def keys(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self._documents if key.startswith(prefix))

    def erase(self, key: str) -> None:
        self._documents.pop(key, None)

    def close(self) -> None:
        """No-op: others may use the store."""


def open_store(url: str) -> DictStore:
    """Open the store of a URL. The entry point names this function."""
    with _LOCK:
        return _STORES.setdefault(url, DictStore())
