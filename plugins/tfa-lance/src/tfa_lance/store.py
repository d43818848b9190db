"""LanceDB as a store: tables in a folder (`lance:///FOLDER`) or in a bucket (`lance+s3://BUCKET/PREFIX`), no server.

Bucket keys are read from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION). For services other
than Amazon's, set `?endpoint=http://HOST:PORT` or AWS_ENDPOINT_URL.

Indexes of a collection:

scan      reads every vector; exact
ivf_rq    one bit per dimension, then rescores the best
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pyarrow as pa

from tfa.errors import BadSpec, StoreConflict
from tfa.search.gallery import top_k
from tfa.search.store import NO_ID, Collection, Entries, Store, Where, read_coordinates
from tfa.search.store_text import ascii_text
from tfa_lance.tables import FAILURES, DocumentTables, PieceTables, is_absent, table_names, translate_errors

for variable in ("LANCEDB_LOG", "LANCE_LOG", "RUST_LOG"):  # before LanceDB is imported, or it logs a line per query
    os.environ.setdefault(variable, "error")

_READ_STALENESS = timedelta(0)  # maximum age of cached table versions


@translate_errors
class LanceStore(Store):
    """LanceDB store. Collections are tables; documents and pieces are tables in subfolders of these names."""

    scheme = "lance"

    def __init__(self, place: str, options: dict[str, str]) -> None:
        import lancedb

        self.place = place
        self._tables = lancedb.connect(self.place, read_consistency_interval=_READ_STALENESS, storage_options=options)
        below = self.place.rstrip("/")
        self._documents = DocumentTables(lancedb.connect(f"{below}/documents", storage_options=options))
        pieces = lancedb.connect(f"{below}/pieces", read_consistency_interval=_READ_STALENESS, storage_options=options)
        self._pieces = PieceTables(pieces)

    @classmethod
    def connect(cls, url: str) -> LanceStore:
        parts = urlsplit(url)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        unknown = sorted(set(query) - {"endpoint", "region"})
        if unknown:
            raise BadSpec(f"unknown option {unknown[0]}= in a lance URL; use endpoint= or region=")
        if parts.scheme == "lance+s3":
            if not parts.netloc:
                raise BadSpec(f"{url} has no bucket; use lance+s3://BUCKET/PREFIX/NAME")
            options = {f"aws_{key}": value for key, value in query.items()}  # this spelling overrides the environment
            endpoint = query.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL", "")
            if endpoint.startswith("http://"):
                options["allow_http"] = "true"
            return cls(f"s3://{parts.netloc}{parts.path}", options)
        if parts.netloc or not parts.path:
            raise BadSpec(f"{url} has no folder; use three slashes: lance:///FOLDER/NAME")
        return cls(unquote(parts.path), {})

    def create(self, name: str, dimensions: int, dtype: str = "float32") -> Collection:
        if dtype not in _TYPES:
            raise BadSpec(f"LanceDB cannot store {dtype!r} vectors; use {' or '.join(_TYPES)}")
        try:
            self._tables.create_table(name, schema=_make_schema(dimensions, dtype), mode="create")
        except FAILURES as error:
            if "exist" not in str(error) and "conflict" not in str(error):
                raise
            raise StoreConflict(
                f"collection {name!r} already exists in {self.place}; choose another name, or drop it"
            ) from None
        return self.open(name)

    def open(self, name: str) -> Collection:
        try:
            table = self._tables.open_table(name)
        except FAILURES as error:
            if not is_absent(error):
                raise
            raise StoreConflict(f"collection {name!r} not found in {self.place}; rebuild the map") from None
        if b"tfa" not in (table.schema.metadata or {}):
            raise StoreConflict(f"the table {name!r} in {self.place} was not created by tfa; choose another name")
        return LanceCollection(table, name, self.place)

    def drop(self, name: str) -> None:
        self._tables.drop_table(name, ignore_missing=True)  # type: ignore[call-arg]

    def names(self, prefix: str = "") -> list[str]:
        return sorted(name for name in table_names(self._tables) if name.startswith(prefix))

    def read(self, key: str) -> bytes | None:
        return self._documents.read(key)

    def put(self, key: str, data: bytes) -> None:
        self._documents.put(key, data)

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        return self._documents.swap(key, old, new)

    def keys(self, prefix: str = "") -> list[str]:
        return sorted([*self._documents.keys(prefix), *self._pieces.folders(prefix)])

    def erase(self, key: str) -> None:
        if key.endswith("/"):
            self._pieces.erase(key)
        else:
            self._documents.erase(key)

    def put_pieces(self, folder: str, pieces: Mapping[int, bytes]) -> None:
        self._pieces.put(folder, pieces)

    def read_pieces(self, folder: str, numbers: Sequence[int]) -> dict[int, bytes]:
        return self._pieces.read(folder, numbers)

    def seal_pieces(self, folder: str) -> None:
        self._pieces.seal(folder)

    def close(self) -> None:
        """No-op: there is no connection."""


# --- collections ---------------------------------------------------------------------------------------------------


_TYPES = {"float32": pa.float32(), "float16": pa.float16()}
_INDEXES = ("scan", "ivf_rq")
_ROWS_OF_A_PARTITION = 4096
_LEAST_ROWS = 1024  # minimum number of rows to train an index
_PROBES, _REFINED = 64, 10  # partitions searched; rescored candidates as a multiple of k
_SPARE = 16  # extra results beyond k, to sort ties
_ROWS = ["id", "vector", "payload", "full"]


def _make_schema(dimensions: int, dtype: str) -> pa.Schema:
    columns = {
        "id": pa.int64(),
        "vector": pa.list_(_TYPES[dtype], dimensions),
        "payload": pa.string(),
        "session": pa.string(),
        "east": pa.float64(),
        "north": pa.float64(),
        "digest": pa.string(),
        "full": pa.large_binary(),
    }
    return pa.schema(list(columns.items()), metadata={"tfa": f"{dimensions} {dtype}"})


@translate_errors
class LanceCollection(Collection):
    """Rows of a table, always read from its newest version."""

    def __init__(self, table: Any, name: str, place: str) -> None:
        self.name, self.place = name, place
        self._table, self._schema = table, table.schema
        dimensions, self.dtype = table.schema.metadata[b"tfa"].decode().split()
        self.dimensions = int(dimensions)

    def write(self, entries: Entries) -> None:
        vectors = self.fit(entries.vectors).astype(self.dtype)
        if not np.isfinite(vectors).all():
            raise BadSpec(f"vectors for {self.name!r} contain values outside the range of {self.dtype}")
        last = {int(own): place for place, own in enumerate(entries.ids)}
        if not last:
            return
        stored = pa.array(vectors[list(last.values())].ravel())
        payload = [dict(entries.payload[place]) for place in last.values()]
        places = [read_coordinates(one) or (None, None) for one in payload]
        columns = {
            "id": list(last),
            "vector": pa.FixedSizeListArray.from_arrays(stored, self.dimensions),
            "payload": [json.dumps(one) for one in payload],
            "session": [ascii_text(one.get("session")) for one in payload],
            "east": [east for east, _ in places],
            "north": [north for _, north in places],
            "digest": [ascii_text(one.get("digest")) for one in payload],
            "full": [bytes(entries.full[place]) for place in last.values()],
        }
        merge = self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(pa.table(columns, schema=self._schema))

    def delete(self, ids: Sequence[int] | np.ndarray) -> None:
        if len(ids):
            self._table.delete(_among("id", [int(one) for one in ids]))

    def nearest(self, queries: np.ndarray, k: int, where: Where | None = None) -> tuple[np.ndarray, np.ndarray]:
        queries, count, condition = self.fit(queries), self.count(), _condition(where)
        width = min(k, count)
        found, scores = np.full((len(queries), width), NO_ID), np.full((len(queries), width), -np.inf, np.float32)
        indexed = bool(width) and self._index() != "scan"
        for place, query in enumerate(queries if width else ()):
            ids, best = self._best(query, width, count, condition, indexed)
            found[place, : len(ids)], scores[place, : len(ids)] = ids, best
        return found, scores

    def _best(
        self, query: np.ndarray, k: int, count: int, condition: str | None, indexed: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best. LanceDB does not sort ties: request more while the last result may tie with the k-th."""
        wanted = k + _SPARE
        while True:
            search = (
                self._table.search(query.astype(self.dtype)).distance_type("dot").select(["id", "vector", "_distance"])
            )
            if condition is not None:
                search = search.where(condition, prefilter=True)
            search = search.nprobes(_PROBES).refine_factor(_REFINED) if indexed else search.bypass_vector_index()
            rows = search.limit(min(wanted, count)).to_arrow()
            ids = rows["id"].to_numpy()
            order = np.argsort(ids)
            exact = _vectors(rows["vector"], self.dimensions).astype(np.float64) @ query.astype(np.float64)
            exact = exact.astype(np.float32)
            columns, best = top_k(exact[order][None], k)
            if indexed or wanted >= count or len(ids) < wanted or exact.min() < best[0, -1]:
                return ids[order][columns[0]], best[0]
            wanted *= 4

    def fetch(self, ids: Sequence[int] | np.ndarray) -> Entries:
        wanted = [int(one) for one in ids]
        if not wanted:
            return self._entries(self._schema.empty_table())
        rows = self._table.search().where(_among("id", wanted)).select(_ROWS).to_arrow()
        places = {own: place for place, own in enumerate(rows["id"].to_pylist())}
        return self._entries(rows.take(pa.array([places[own] for own in wanted if own in places], pa.int64())))

    def find(self, digests: Sequence[str]) -> dict[str, int]:
        texts = {ascii_text(one): one for one in digests}
        found = dict[str, int]()
        if texts:
            rows = self._table.search().where(_among("digest", list(texts))).select(["id", "digest"]).to_arrow()
            for own, digest in sorted(zip(rows["id"].to_pylist(), rows["digest"].to_pylist(), strict=True)):
                found.setdefault(texts[digest], own)
        return found

    def pages(self, size: int = 1000) -> Iterator[Entries]:
        ids = self._ids()
        pages = (self.fetch(ids[start : start + size]) for start in range(0, len(ids), size))
        return (page for page in pages if len(page))

    def _ids(self) -> np.ndarray:
        return np.sort(self._table.search().select(["id"]).to_arrow()["id"].to_numpy())

    def count(self) -> int:
        return int(self._table.count_rows())

    def seal(self, index: str | None = None) -> None:
        """Compact the table, index ids and digests, and build the named index."""
        from lancedb.index import BTree, IvfRq

        index = index or "scan"
        if index not in _INDEXES:
            raise BadSpec(f"unknown index {index!r} for LanceDB; use {', '.join(_INDEXES)}")
        self._table.optimize()
        for own in self._table.list_indices():
            if own.columns == ["vector"]:
                self._table.drop_index(own.name)
        for column in ("id", "digest"):
            self._table.create_index(column, config=BTree(), replace=True)
        rows = self.count()
        if index == "ivf_rq" and rows >= _LEAST_ROWS:
            parts = max(1, rows // _ROWS_OF_A_PARTITION)
            self._table.create_index("vector", config=IvfRq(distance_type="dot", num_partitions=parts), replace=True)

    def _index(self) -> str:
        return "ivf_rq" if any(own.columns == ["vector"] for own in self._table.list_indices()) else "scan"

    def describe(self) -> dict[str, Any]:
        size = {"count": self.count(), "dimensions": self.dimensions, "dtype": self.dtype, "index": self._index()}
        return {"store": "lance", "collection": self.name, **size}

    def _entries(self, rows: pa.Table) -> Entries:
        payload = [json.loads(one) for one in rows["payload"].to_pylist()]
        ids, vectors = rows["id"].to_numpy(), _vectors(rows["vector"], self.dimensions)
        return Entries(ids, vectors, payload, rows["full"].to_pylist())


def _vectors(column: pa.ChunkedArray, dimensions: int) -> np.ndarray:
    flat = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return np.concatenate([np.empty(0, np.float32), *flat]).astype(np.float32).reshape(-1, dimensions)


def _among(column: str, values: Sequence[Any]) -> str:
    literals = [str(one) if isinstance(one, int) else "'" + one.replace("'", "''") + "'" for one in values]
    return f"{column} in ({', '.join(literals)})"


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
