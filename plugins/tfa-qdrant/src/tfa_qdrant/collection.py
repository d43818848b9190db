"""A collection in a Qdrant shard: exact scan, or 4-bit codes with exact rescoring of the best."""

from __future__ import annotations

import json
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfa.errors import BadSpec, StoreUnavailable
from tfa.search.near_ties import NEAR_TIE, SPARE, RankedIds, settle_ties
from tfa.search.store import NO_ID, Collection, Entries, Where, read_coordinates
from tfa.search.store_text import hash_text

DTYPES = ("float32", "float16")
INDEXES = (None, "turbo4")
OVERSAMPLING = 3.0  # candidates to rescore, in multiples of k
HALF_CLOSE = 1e-3  # scores this close may be swapped with float16, since Qdrant also rounds the query
WRITTEN = 1000  # points per update


def config_of(library: Any, dimensions: int, dtype: str, index: str | None) -> Any:
    """Return the settings of a shard without a graph (m = 0): a scan is exact, and fast with 4-bit codes."""
    kind = {"float32": library.VectorStorageDatatype.Float32, "float16": library.VectorStorageDatatype.Float16}[dtype]
    codes = library.TurboQuantQuantizationConfig(bits=library.TurboQuantBitSize.Bits4) if index == "turbo4" else None
    return library.EdgeConfig(
        vectors=library.EdgeVectorParams(size=dimensions, distance=library.Distance.Dot, datatype=kind),
        hnsw_config=library.HnswIndexConfig(m=0, ef_construct=100, full_scan_threshold=10),
        quantization_config=codes,
        optimizers=library.EdgeOptimizersConfig(indexing_threshold=1 if codes else 2**31),  # kB: all, or none
    )


class QdrantEdgeCollection(Collection):
    """Points of one shard. Requests run one at a time, since the core has threads of its own."""

    def __init__(
        self, library: Any, home: Path, about: dict[str, Any], keep: Callable[[dict[str, Any]], object]
    ) -> None:
        self._library, self._path, self._about, self._keep = library, str(home / "shard"), about, keep
        self.name, self.dimensions, self.dtype = home.name, int(about["dimensions"]), str(about["dtype"])
        self._lock = threading.RLock()
        self._shard: Any = library.EdgeShard.load(self._path)

    def close(self) -> None:
        with self._lock:
            shard, self._shard = self._shard, None
            if shard is not None:
                shard.close()

    def _request(self, method: str, *arguments: Any) -> Any:
        with self._lock:
            if self._shard is None:
                raise StoreUnavailable(f"collection {self.name!r} was closed or dropped; open it again")
            try:
                return getattr(self._shard, method)(*arguments)
            except Exception as error:  # the library raises no specific type
                raise StoreUnavailable(f"request to Qdrant at {self._path} failed: {error}", self._path) from error

    def write(self, entries: Entries) -> None:
        vectors = self.fit(entries.vectors)
        given = zip(entries.ids.tolist(), vectors, entries.payload, entries.full, strict=True)
        points = {}
        for own, vector, payload, full in given:  # an id given twice: the last one counts
            kept: dict[str, Any] = {"payload": json.dumps(dict(payload)), "full": b64encode(full).decode()}
            kept |= {name: hash_text(payload.get(name)) for name in ("digest", "session")}
            if (place := read_coordinates(payload)) is not None:
                kept |= {"east": float(place[0]), "north": float(place[1])}
            points[own] = self._library.Point(own, vector, kept)
        every = list(points.values())
        for start in range(0, len(every), WRITTEN):
            self._request("update", self._library.UpdateOperation.upsert_points(every[start : start + WRITTEN]))
        self._request("flush")

    def delete(self, ids: Sequence[int] | np.ndarray) -> None:
        self._request("update", self._library.UpdateOperation.delete_points([int(one) for one in ids]))
        self._request("flush")

    def nearest(self, queries: np.ndarray, k: int, where: Where | None = None) -> tuple[np.ndarray, np.ndarray]:
        queries = self.fit(queries)
        width = min(k, self.count())
        ids = np.full((len(queries), width), NO_ID)
        scores = np.full(ids.shape, -np.inf, np.float32)
        for row, answer in enumerate(self._ranked(queries, width, where) if width else ()):
            best = len(answer.ids[:width])
            ids[row, :best], scores[row, :best] = answer.ids[:best], answer.scores[:best]
        return ids, scores

    def _ranked(self, queries: np.ndarray, k: int, where: Where | None) -> list[RankedIds]:
        """Return the best k of each query and spare ones, ordered by (score, id); more if the k-th is tied."""
        answers: dict[int, RankedIds] = {}
        pending, limit = list(range(len(queries))), k + SPARE
        exact, half = self._about["index"] is None, self.dtype == "float16"
        close = HALF_CLOSE if half else NEAR_TIE
        while pending:
            answers.update(zip(pending, self._search(queries[pending], limit, where), strict=True))
            pending = [row for row in pending if exact and answers[row].ends_in_a_tie(k, limit, close)]
            limit *= 4
        ordered = [answers[row] for row in range(len(queries))]
        return settle_ties(queries, ordered, self._vectors_of, every=half) if exact else ordered

    def _search(self, queries: np.ndarray, limit: int, where: Where | None) -> list[RankedIds]:
        library = self._library
        if self._about["index"] is None:
            codes = library.QuantizationSearchParams(ignore=True)
            params = library.SearchParams(exact=True, quantization=codes)
        else:
            codes = library.QuantizationSearchParams(rescore=True, oversampling=OVERSAMPLING)
            params = library.SearchParams(quantization=codes)
        condition = self._filter(where)
        requests = [
            library.QueryRequest(
                limit=limit, query=library.Query.Nearest(query.tolist()), filter=condition, params=params
            )
            for query in queries
        ]
        found = self._request("query_batch", library.QueryBatchRequest(requests))
        return [RankedIds.of([one.id for one in row], [one.score for one in row]) for row in found]

    def _filter(self, where: Where | None) -> Any:
        library, terms = self._library, []
        if where is not None and where.sessions:
            sessions = library.MatchAny([hash_text(one) for one in where.sessions])
            terms.append(library.FieldCondition("session", match=sessions))
        if where is not None and where.region is not None:
            box = where.region
            for name, low, high in (("east", box.west, box.east), ("north", box.south, box.north)):
                within = library.RangeFloat(gte=float(low), lte=float(high))
                terms.append(library.FieldCondition(name, range=within))
        return library.Filter(must=terms) if terms else None

    def _vectors_of(self, ids: Sequence[int]) -> dict[int, np.ndarray]:
        return {one.id: np.asarray(one.vector, np.float32) for one in self._request("retrieve", list(ids), False, True)}

    def fetch(self, ids: Sequence[int] | np.ndarray) -> Entries:
        wanted = [int(one) for one in ids]
        known = {one.id: one for one in self._request("retrieve", sorted(set(wanted)), True, True)}
        return self._entries([known[own] for own in wanted if own in known])

    def _entries(self, records: Sequence[Any]) -> Entries:
        vectors = [np.asarray(one.vector, np.float32) for one in records]
        return Entries(
            np.array([one.id for one in records], np.int64),
            np.stack(vectors) if records else np.empty((0, self.dimensions), np.float32),
            [json.loads(one.payload["payload"]) for one in records],
            [b64decode(one.payload["full"]) for one in records],
        )

    def find(self, digests: Sequence[str]) -> dict[str, int]:
        library, known = self._library, {hash_text(one): one for one in digests}
        among = library.Filter(must=[library.FieldCondition("digest", match=library.MatchAny(sorted(known)))])
        found: dict[str, int] = {}
        for record in self._scrolled(WRITTEN, among, ["digest"], vectors=False) if known else ():
            for one in record:  # in order of id
                found.setdefault(known[one.payload["digest"]], one.id)
        return found

    def pages(self, size: int = 1000) -> Iterator[Entries]:
        for records in self._scrolled(size, None, ["payload", "full"], vectors=True):
            yield self._entries(records)

    def _scrolled(self, size: int, among: Any, fields: list[str], vectors: bool) -> Iterator[list[Any]]:
        start: Any = None
        while True:
            request = self._library.ScrollRequest(start, size, among, fields, vectors)
            records, start = self._request("scroll", request)
            if records:
                yield records
            if start is None:
                return

    def count(self) -> int:
        return int(self._request("count", self._library.CountRequest(exact=True)))

    def seal(self, index: str | None = None) -> None:
        if index not in INDEXES:
            raise BadSpec(f"index {index!r} not found. Available: {', '.join(filter(None, INDEXES))}, None")
        with self._lock:
            self._request("flush")
            if index is not None and self._about["index"] != index:
                self.close()
                config = config_of(self._library, self.dimensions, self.dtype, index)
                self._shard = self._library.EdgeShard.load(self._path, config)
            if index is not None:
                self._request("optimize")
            self._about = {**self._about, "index": index}
            self._keep(self._about)

    def describe(self) -> dict[str, Any]:
        return {
            "store": "qdrant-edge",
            "collection": self.name,
            "count": self.count(),
            "dimensions": self.dimensions,
            "dtype": self.dtype,
            "index": self._about["index"] or "exact",
        }
