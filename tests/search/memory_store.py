"""A store in the memory of this process: the contract of `search.store` by its definition, for tests and trials."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfa.errors import StoreConflict
from tfa.search.gallery import top_k
from tfa.search.store import NO_ID, Collection, Entries, Payload, Store, Where

_SERVERS: dict[str, MemoryStore] = {}
_LOCK = threading.Lock()


class MemoryCollection(Collection):
    """Rows in a dictionary."""

    dtype = "float32"

    def __init__(self, name: str, dimensions: int) -> None:
        self.name, self.dimensions = name, dimensions
        self._rows: dict[int, tuple[np.ndarray, Payload, bytes]] = {}

    def write(self, entries: Entries) -> None:
        fresh = {
            int(own): (np.array(vector, np.float32), dict(payload), bytes(full))
            for own, vector, payload, full in zip(
                entries.ids, self.fit(entries.vectors), entries.payload, entries.full, strict=True
            )
        }
        self._rows = {**self._rows, **fresh}

    def delete(self, ids: Sequence[int] | np.ndarray) -> None:
        gone = {int(one) for one in ids}
        self._rows = {own: row for own, row in self._rows.items() if own not in gone}

    def nearest(self, queries: np.ndarray, k: int, where: Where | None = None) -> tuple[np.ndarray, np.ndarray]:
        rows, queries = self._rows, self.fit(queries)
        width = min(k, len(rows))
        ids = np.array(sorted(own for own, row in rows.items() if where is None or where.admits(row[1])), np.int64)
        found, scores = np.full((len(queries), width), NO_ID), np.full((len(queries), width), -np.inf, np.float32)
        if len(ids):
            vectors = np.stack([rows[own][0] for own in ids.tolist()]).astype(np.float64)
            columns, best = top_k((queries.astype(np.float64) @ vectors.T).astype(np.float32), width)
            found[:, : columns.shape[1]], scores[:, : columns.shape[1]] = ids[columns], best
        return found, scores

    def fetch(self, ids: Sequence[int] | np.ndarray) -> Entries:
        return self._entries([int(one) for one in ids if int(one) in self._rows])

    def _entries(self, ids: Sequence[int]) -> Entries:
        rows = [self._rows[own] for own in ids]
        vectors = np.stack([row[0] for row in rows]) if rows else np.empty((0, self.dimensions), np.float32)
        return Entries(np.array(ids, np.int64), vectors, [row[1] for row in rows], [row[2] for row in rows])

    def find(self, digests: Sequence[str]) -> dict[str, int]:
        wanted, found = set(digests), dict[str, int]()
        for own in sorted(self._rows):
            digest = self._rows[own][1].get("digest")
            if digest in wanted:
                found.setdefault(digest, own)
        return found

    def pages(self, size: int = 1000) -> Iterator[Entries]:
        ids = sorted(self._rows)
        for start in range(0, len(ids), size):
            yield self._entries([own for own in ids[start : start + size] if own in self._rows])

    def count(self) -> int:
        return len(self._rows)

    def seal(self, index: str | None = None) -> None:
        """There is nothing to do."""

    def describe(self) -> dict[str, Any]:
        return {
            "store": "memory",
            "collection": self.name,
            "count": self.count(),
            "dimensions": self.dimensions,
            "dtype": self.dtype,
        }


class MemoryStore(Store):
    """`memory://NAME`: all that connect to one name in this process see the same."""

    scheme = "memory"
    one_process = True

    def __init__(self) -> None:
        self._collections: dict[str, MemoryCollection] = {}
        self._documents: dict[str, bytes] = {}

    @classmethod
    def connect(cls, url: str) -> MemoryStore:
        with _LOCK:
            return _SERVERS.setdefault(url, cls())

    def create(self, name: str, dimensions: int, dtype: str = "float32") -> Collection:
        with _LOCK:
            if name in self._collections:
                raise StoreConflict(f"there is a collection {name!r} already; choose another name, or drop it")
            self._collections[name] = MemoryCollection(name, dimensions)
            return self._collections[name]

    def open(self, name: str) -> Collection:
        try:
            return self._collections[name]
        except KeyError:
            raise StoreConflict(f"there is no collection {name!r}; rebuild the map") from None

    def drop(self, name: str) -> None:
        self._collections.pop(name, None)

    def names(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self._collections if name.startswith(prefix))

    def read(self, key: str) -> bytes | None:
        return self._documents.get(key)

    def put(self, key: str, data: bytes) -> None:
        self._documents[key] = bytes(data)

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        with _LOCK:
            if self._documents.get(key) != old:
                return False
            self._documents[key] = bytes(new)
            return True

    def keys(self, prefix: str = "") -> list[str]:
        return sorted(key for key in list(self._documents) if key.startswith(prefix))  # threads may write meanwhile

    def erase(self, key: str) -> None:
        self._documents.pop(key, None)

    def close(self) -> None:
        """Others may be connected: everything stays."""
