"""An engine over a collection of a store: what a store does not know, the bias, is folded into its vectors.

    image   R [vector, bias, 0 …]        query   R [vector, 1, 0 …]

R is the fixed rotation of `search.reduction`, for the same reason. Zeros fill up to a multiple of 64, as engines with
codes of bits and bytes want it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self
from uuid import uuid4

import numpy as np

from tfa.errors import BadSpec
from tfa.search.engine import Payload, QueryVectors, SearchResult, checked_k
from tfa.search.exact import check_counts
from tfa.search.memory_store import MemoryStore
from tfa.search.reduction import fixed_rotation
from tfa.search.store import Collection, Entries, Store

MULTIPLE = 64


class StoreEngine:
    """Searches a collection that holds folded vectors of so many `dimensions` before folding."""

    name = "store"

    def __init__(self, collection: Collection, dimensions: int) -> None:
        if collection.dimensions != folded_dimensions(dimensions):
            raise BadSpec(
                f"vectors of {dimensions} dimensions fold into {folded_dimensions(dimensions)}, the collection "
                f"{collection.name!r} has {collection.dimensions}"
            )
        self.collection, self.dimensions = collection, dimensions

    @classmethod
    def create(
        cls,
        vectors: np.ndarray,
        bias: np.ndarray,
        ids: np.ndarray,
        payload: Sequence[Payload] | None = None,
        store: Store | None = None,
        name: str = "",
        dtype: str = "float32",
    ) -> Self:
        """In a new collection of that name in the store; without one, in memory."""
        check_counts(len(vectors), ids, bias)
        width = np.asarray(vectors).shape[1]
        held = store or MemoryStore()
        engine = cls(held.create(name or f"engine_{uuid4().hex}", folded_dimensions(width), dtype), width)
        engine.upsert(vectors, bias, ids, payload)
        return engine

    def upsert(
        self, vectors: np.ndarray, bias: np.ndarray, ids: np.ndarray, payload: Sequence[Payload] | None = None
    ) -> None:
        check_counts(len(vectors), ids, bias)
        folded = self._folded(vectors, np.asarray(bias, np.float64))
        given = payload if payload is not None else [{}] * len(ids)
        self.collection.write(Entries(np.asarray(ids, np.int64), folded, given, [b""] * len(ids)))

    def delete(self, ids: Sequence[int] | np.ndarray) -> None:
        self.collection.delete(ids)

    def search(self, vectors: np.ndarray | QueryVectors, k: int) -> SearchResult:
        queries = np.asarray(vectors)
        found, scores = self.collection.nearest(self._folded(queries, np.ones(len(queries))), checked_k(k))
        return SearchResult(found, scores)

    def payload(self, ids: Sequence[int] | np.ndarray) -> list[Payload]:
        there = self.collection.fetch(ids)
        known = dict(zip(there.ids.tolist(), there.payload, strict=True))
        return [known.get(int(one), {}) for one in ids]

    def count(self) -> int:
        return self.collection.count()

    def describe(self) -> dict[str, Any]:
        held = self.collection.describe()
        return {"engine": self.name, "count": held["count"], "dimensions": self.dimensions, "collection": held}

    def _folded(self, vectors: np.ndarray, last: np.ndarray) -> np.ndarray:
        """In float64 until the end: equal vectors stay equal in whatever batch they come."""
        given = np.asarray(vectors, np.float64)
        if given.ndim != 2 or given.shape[1] != self.dimensions:
            raise BadSpec(f"vectors have shape {given.shape}, must be (any number, {self.dimensions})")
        rotation = fixed_rotation(self.collection.dimensions)[:, : self.dimensions + 1]
        return (np.column_stack([given, last]) @ rotation.T).astype(np.float32)


def folded_dimensions(dimensions: int) -> int:
    """With the bias, up to the next multiple."""
    return -(-(dimensions + 1) // MULTIPLE) * MULTIPLE
