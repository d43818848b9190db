"""A table of LanceDB as a collection.

scan      every vector is read, exact            ivf_rq    one bit a number first, the best of these scored again
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from lancedb.index import BTree, IvfRq

from tfa.errors import BadSpec
from tfa.search.engines.ascii_text import ascii_text
from tfa.search.engines.lance_errors import in_our_words
from tfa.search.store import NOBODY, Collection, Entries, Where, coordinates_of
from tfa.search.ties import top_k

TYPES = {"float32": pa.float32(), "float16": pa.float16()}
INDEXES = ("scan", "ivf_rq")
ROWS_OF_A_PARTITION = 4096
LEAST_ROWS = 1024  # an index of fewer has nothing to learn from
PROBES, REFINED = 64, 10  # partitions looked into; times as many as are asked for scored again
SPARE = 16  # more than are asked for: ties are ours to sort
ROWS = ["id", "vector", "payload", "full"]


def schema_of(dimensions: int, dtype: str) -> pa.Schema:
    columns = {
        "id": pa.int64(),
        "vector": pa.list_(TYPES[dtype], dimensions),
        "payload": pa.string(),
        "session": pa.string(),
        "east": pa.float64(),
        "north": pa.float64(),
        "digest": pa.string(),
        "full": pa.large_binary(),
    }
    return pa.schema(list(columns.items()), metadata={"tfa": f"{dimensions} {dtype}"})


class LanceCollection(Collection):
    """Rows of a table; every answer is of its newest version."""

    def __init__(self, table: Any, name: str, place: str) -> None:
        self._table, self._schema, self.name, self.place = table, table.schema, name, place
        dimensions, self.dtype = table.schema.metadata[b"tfa"].decode().split()
        self.dimensions = int(dimensions)

    @in_our_words
    def write(self, entries: Entries) -> None:
        vectors = self.fitting(entries.vectors).astype(self.dtype)
        if not np.isfinite(vectors).all():
            raise BadSpec(f"vectors for {self.name!r} hold numbers that {self.dtype} cannot")
        last = {int(own): place for place, own in enumerate(entries.ids)}
        if not last:
            return
        payload = [dict(entries.payload[place]) for place in last.values()]
        places = [coordinates_of(one) or (None, None) for one in payload]
        columns = {
            "id": list(last),
            "vector": pa.FixedSizeListArray.from_arrays(
                pa.array(vectors[list(last.values())].ravel()), self.dimensions
            ),
            "payload": [json.dumps(one) for one in payload],
            "session": [ascii_text(one.get("session")) for one in payload],
            "east": [east for east, _ in places],
            "north": [north for _, north in places],
            "digest": [ascii_text(one.get("digest")) for one in payload],
            "full": [bytes(entries.full[place]) for place in last.values()],
        }
        merge = self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(pa.table(columns, schema=self._schema))

    @in_our_words
    def delete(self, ids: Sequence[int] | np.ndarray) -> None:
        if len(ids):
            self._table.delete(_among("id", [int(one) for one in ids]))

    @in_our_words
    def nearest(self, queries: np.ndarray, k: int, where: Where | None = None) -> tuple[np.ndarray, np.ndarray]:
        queries, count, condition = self.fitting(queries), self.count(), _condition(where)
        width = min(k, count)
        found, scores = np.full((len(queries), width), NOBODY), np.full((len(queries), width), -np.inf, np.float32)
        indexed = bool(width) and self._index() != "scan"
        for place, query in enumerate(queries if width else ()):
            ids, best = self._best(query, width, count, condition, indexed)
            found[place, : len(ids)], scores[place, : len(ids)] = ids, best
        return found, scores

    def _best(
        self, query: np.ndarray, k: int, count: int, condition: str | None, indexed: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """LanceDB sorts no ties. As long as the last that came may tie with the kth, more are asked for."""
        wanted = k + SPARE
        while True:
            search = (
                self._table.search(query.astype(self.dtype)).distance_type("dot").select(["id", "vector", "_distance"])
            )
            if condition is not None:
                search = search.where(condition, prefilter=True)
            search = search.nprobes(PROBES).refine_factor(REFINED) if indexed else search.bypass_vector_index()
            rows = search.limit(min(wanted, count)).to_arrow()
            ids = rows["id"].to_numpy()
            order = np.argsort(ids)
            exact = _vectors(rows["vector"], self.dimensions).astype(np.float64) @ query.astype(np.float64)
            exact = exact.astype(np.float32)
            columns, best = top_k(exact[order][None], k)
            if indexed or wanted >= count or len(ids) < wanted or exact.min() < best[0, -1]:
                return ids[order][columns[0]], best[0]
            wanted *= 4

    @in_our_words
    def fetch(self, ids: Sequence[int] | np.ndarray) -> Entries:
        wanted = [int(one) for one in ids]
        if not wanted:
            return self._entries(self._schema.empty_table())
        rows = self._rows(_among("id", wanted))
        places = {own: place for place, own in enumerate(rows["id"].to_pylist())}
        return self._entries(rows.take(pa.array([places[own] for own in wanted if own in places], pa.int64())))

    @in_our_words
    def find(self, digests: Sequence[str]) -> dict[str, int]:
        asked = {ascii_text(one): one for one in digests}
        found = dict[str, int]()
        if asked:
            rows = self._table.search().where(_among("digest", list(asked))).select(["id", "digest"]).to_arrow()
            for own, digest in sorted(zip(rows["id"].to_pylist(), rows["digest"].to_pylist(), strict=True)):
                found.setdefault(asked[digest], own)
        return found

    def pages(self, size: int = 1000) -> Iterator[Entries]:
        ids = self._ids()
        for start in range(0, len(ids), size):
            page = self.fetch(ids[start : start + size])
            if len(page):
                yield page

    @in_our_words
    def _ids(self) -> np.ndarray:
        return np.sort(self._table.search().select(["id"]).to_arrow()["id"].to_numpy())

    @in_our_words
    def count(self) -> int:
        return int(self._table.count_rows())

    @in_our_words
    def seal(self, index: str | None = None) -> None:
        """Also gathers the rows of many writes in few files, and sorts ids and digests for finding them."""
        index = index or "scan"
        if index not in INDEXES:
            raise BadSpec(f"LanceDB has no index {index!r} here; there are {', '.join(INDEXES)}")
        self._table.optimize()
        for own in self._table.list_indices():
            if own.columns == ["vector"]:
                self._table.drop_index(own.name)
        for column in ("id", "digest"):
            self._table.create_index(column, config=BTree(), replace=True)
        rows = self.count()
        if index == "ivf_rq" and rows >= LEAST_ROWS:
            parts = max(1, rows // ROWS_OF_A_PARTITION)
            self._table.create_index("vector", config=IvfRq(distance_type="dot", num_partitions=parts), replace=True)

    @in_our_words
    def _index(self) -> str:
        return "ivf_rq" if any(own.columns == ["vector"] for own in self._table.list_indices()) else "scan"

    def describe(self) -> dict[str, Any]:
        size = {"count": self.count(), "dimensions": self.dimensions, "dtype": self.dtype, "index": self._index()}
        return {"engine": "lance", "collection": self.name, **size}

    def _rows(self, condition: str) -> pa.Table:
        return self._table.search().where(condition).select(ROWS).to_arrow()

    def _entries(self, rows: pa.Table) -> Entries:
        payload = [json.loads(one) for one in rows["payload"].to_pylist()]
        ids, vectors = rows["id"].to_numpy(), _vectors(rows["vector"], self.dimensions)
        return Entries(ids, vectors, payload, rows["full"].to_pylist())


def _vectors(column: pa.ChunkedArray, dimensions: int) -> np.ndarray:
    flat = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return np.concatenate([np.empty(0, np.float32), *flat]).astype(np.float32).reshape(-1, dimensions)


def _among(column: str, values: Sequence[Any]) -> str:
    return f"{column} in ({', '.join(map(_literal, values))})"


def _literal(value: Any) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def _condition(where: Where | None) -> str | None:
    parts = []
    if where is not None and where.sessions:
        parts.append(_among("session", [ascii_text(one) for one in where.sessions]))
    if where is not None and where.region is not None:
        box = where.region
        parts.append(
            f"east >= {box.west!r} and east <= {box.east!r} and north >= {box.south!r} and north <= {box.north!r}"
        )
    return " and ".join(parts) or None
