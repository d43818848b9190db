"""A Milvus collection: id, vector, filter fields, and payload and full row as text.

Sessions and digests are stored as hashes, which need no quoting in Milvus's filter language; the payload has the
originals.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfa.errors import BadSpec
from tfa.search.near_ties import SPARE, RankedIds, settle_ties
from tfa.search.store import NO_ID, Collection, Entries, Payload, Where, read_coordinates
from tfa.search.store_text import hash_text
from tfa_milvus.connection import BUILD_SECONDS, SMALLEST_FIRST, WRITE_SECONDS, Connection, pymilvus

TEXT_BYTES = 65_535  # largest varchar
BATCH_BYTES = 16_000_000  # bytes per write; Milvus accepts 64 MB
FETCHED, PLACES = 1000, 16_384  # rows fetched by id per request; maximum answers of a search
ANSWERS = 200_000  # answers of all queries of one search
NOWHERE, FARTHEST = 1e15, 9e14  # coordinate without a position, since Milvus cannot filter NaN; largest coordinate
INDEXES: dict[str | None, dict[str, Any]] = {
    None: {"index_type": "FLAT"},
    "ivf_sq8": {"index_type": "IVF_SQ8", "params": {"nlist": 128}},
    "hnsw": {"index_type": "HNSW", "params": {"M": 16, "efConstruction": 200}},
}
_SEARCHED = {"FLAT": {}, "IVF_SQ8": {"nprobe": 64}, "HNSW": {}}  # ef of HNSW depends on the limit
_EVERYTHING = ["id", "vector", "payload", "full"]


def schema_of(dimensions: int, description: str = "") -> Any:
    library = pymilvus()
    kind = library.DataType
    schema = library.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False, description=description)
    schema.add_field("id", kind.INT64, is_primary=True)
    schema.add_field("vector", kind.FLOAT_VECTOR, dim=dimensions)
    schema.add_field("digest", kind.VARCHAR, max_length=64)
    schema.add_field("session", kind.VARCHAR, max_length=64)
    schema.add_field("east", kind.DOUBLE)
    schema.add_field("north", kind.DOUBLE)
    schema.add_field("payload", kind.VARCHAR, max_length=TEXT_BYTES)
    schema.add_field("full", kind.VARCHAR, max_length=TEXT_BYTES)
    return schema


def _row(number: int, vector: np.ndarray, payload: Payload, full: bytes) -> dict[str, Any]:
    east, north = read_coordinates(payload) or (NOWHERE, NOWHERE)
    row: dict[str, Any] = {
        "id": number,
        "vector": vector,
        "digest": hash_text(payload.get("digest")),
        "session": hash_text(payload.get("session")),
        "east": float(east),
        "north": float(north),
        "payload": json.dumps(dict(payload)),
        "full": b64encode(full).decode(),
    }
    for field in ("payload", "full"):
        if len(row[field]) > TEXT_BYTES:
            raise BadSpec(
                f"the {field} of image {number} takes {len(row[field])} bytes as text; Milvus takes {TEXT_BYTES}"
            )
    return row


def _filter(where: Where | None) -> str:
    if where is None:
        return ""
    terms = []
    if where.sessions:
        terms.append("session in [" + ", ".join(f'"{hash_text(one)}"' for one in where.sessions) + "]")
    if where.region is not None:
        box = where.region
        for name, low, high in (("east", box.west, box.east), ("north", box.south, box.north)):
            low, high = (min(max(float(one), -FARTHEST), FARTHEST) for one in (low, high))
            terms.append(f"{name} >= {low!r} and {name} <= {high!r}")
    return " and ".join(terms)


class MilvusCollection(Collection):
    """Rows of one collection on the server."""

    dtype = "float32"

    def __init__(self, connection: Connection, name: str, dimensions: int, index: str = "FLAT") -> None:
        self._connection, self._index = connection, index
        self.name, self.dimensions = name, dimensions

    def write(self, entries: Entries) -> None:
        vectors = self.fit(entries.vectors)
        given = zip(entries.ids.tolist(), vectors, entries.payload, entries.full, strict=True)
        rows = {own: _row(own, *rest) for own, *rest in given}  # an id given twice: the last one counts
        batch, held = list[dict[str, Any]](), 0
        for row in rows.values():
            size = 4 * self.dimensions + len(row["payload"]) + len(row["full"]) + 200
            if batch and held + size > BATCH_BYTES:
                self._connection.call("upsert", self.name, batch, timeout=WRITE_SECONDS)
                batch, held = [], 0
            batch.append(row)
            held += size
        if batch:
            self._connection.call("upsert", self.name, batch, timeout=WRITE_SECONDS)
            self.count(strongly=True)

    def delete(self, ids: Sequence[int] | np.ndarray) -> None:
        every = [int(one) for one in ids]
        for start in range(0, len(every), PLACES):
            self._connection.call("delete", self.name, ids=every[start : start + PLACES], timeout=WRITE_SECONDS)
        if every:
            self.count(strongly=True)

    def nearest(self, queries: np.ndarray, k: int, where: Where | None = None) -> tuple[np.ndarray, np.ndarray]:
        queries = self.fit(queries)
        if k > PLACES and self.count() > PLACES:
            raise BadSpec(f"k={k} is out of range: Milvus returns at most {PLACES} hits")
        answers = self._ranked(queries, k, where)
        width = max((len(one.ids) for one in answers), default=0)
        if width < k:  # fewer rows match
            width = min(k, self.count())
        ids = np.full((len(queries), min(k, width)), NO_ID)
        scores = np.full(ids.shape, -np.inf, np.float32)
        for row, answer in enumerate(answers):
            best = len(answer.ids[: ids.shape[1]])
            ids[row, :best], scores[row, :best] = answer.ids[:best], answer.scores[:best]
        return ids, scores

    def _ranked(self, queries: np.ndarray, k: int, where: Where | None) -> list[RankedIds]:
        """Return the best k of each query and spare ones, ordered by (score, id); more if the k-th is tied."""
        answers: dict[int, RankedIds] = {}
        pending, limit = list(range(len(queries))), min(k + SPARE, PLACES)
        while pending:
            for start in range(0, len(pending), step := max(1, ANSWERS // limit)):
                part = pending[start : start + step]
                answers.update(zip(part, self._search(queries[part], limit, where), strict=True))
            if self._index != "FLAT" or limit == PLACES:
                break
            pending = [row for row in pending if answers[row].ends_in_a_tie(k, limit)]
            limit = min(4 * limit, PLACES)
        ordered = [answers[row] for row in range(len(queries))]
        return settle_ties(queries, ordered, self._vectors_of) if self._index == "FLAT" else ordered

    def _search(self, queries: np.ndarray, limit: int, where: Where | None) -> list[RankedIds]:
        params = dict(_SEARCHED.get(self._index, {}))
        if self._index == "HNSW":
            params["ef"] = max(512, 2 * limit)
        found = self._connection.request(
            self.name,
            "search",
            data=list(queries),
            limit=limit,
            filter=_filter(where),
            output_fields=["id"],
            search_params={"metric_type": "IP", "params": params},
            consistency_level="Bounded",
        )
        return [RankedIds.of([hit["id"] for hit in row], [hit["distance"] for hit in row]) for row in found]

    def _vectors_of(self, ids: Sequence[int]) -> dict[int, np.ndarray]:
        return {row["id"]: np.asarray(row["vector"], np.float32) for row in self._rows_of(ids, ["id", "vector"])}

    def _rows_of(self, ids: Sequence[int], fields: list[str]) -> Iterator[dict[str, Any]]:
        for start in range(0, len(ids), FETCHED):
            yield from self._query(f"id in {list(ids[start : start + FETCHED])}", fields)

    def _query(self, condition: str, fields: list[str], **options: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._connection.request(
            self.name, "query", filter=condition, output_fields=fields, consistency_level="Bounded", **options
        )
        return found

    def fetch(self, ids: Sequence[int] | np.ndarray) -> Entries:
        wanted = [int(one) for one in ids]
        rows = {row["id"]: row for row in self._rows_of(sorted(set(wanted)), _EVERYTHING)}
        return self._entries([rows[own] for own in wanted if own in rows])

    def _entries(self, rows: Sequence[dict[str, Any]]) -> Entries:
        vectors = [np.asarray(row["vector"], np.float32) for row in rows]
        return Entries(
            np.array([row["id"] for row in rows], np.int64),
            np.stack(vectors) if rows else np.empty((0, self.dimensions), np.float32),
            [json.loads(row["payload"]) for row in rows],
            [b64decode(row["full"]) for row in rows],
        )

    def find(self, digests: Sequence[str]) -> dict[str, int]:
        known, found = {hash_text(one): one for one in digests}, dict[str, int]()
        marks = sorted(known)
        for start in range(0, len(marks), FETCHED):
            listed = ", ".join(f'"{one}"' for one in marks[start : start + FETCHED])
            for row in self._query(f"digest in [{listed}]", ["id", "digest"]):
                digest = known[row["digest"]]
                found[digest] = min(row["id"], found.get(digest, row["id"]))
        return found

    def pages(self, size: int = 1000) -> Iterator[Entries]:
        last = -1
        while rows := self._query(f"id > {last}", _EVERYTHING, limit=size, **SMALLEST_FIRST):
            yield self._entries(sorted(rows, key=lambda row: int(row["id"])))
            last = max(int(row["id"]) for row in rows)

    def count(self, strongly: bool = False) -> int:
        level = "Strong" if strongly else "Bounded"
        request = {"filter": "", "output_fields": ["count(*)"], "consistency_level": level}
        return int(self._connection.request(self.name, "query", **request)[0]["count(*)"])

    def seal(self, index: str | None = None) -> None:
        if index not in INDEXES:
            raise BadSpec(f"index {index!r} not found. Available: {', '.join(filter(None, INDEXES))}, None")
        kind = str(INDEXES[index]["index_type"])
        self._connection.call("flush", self.name, timeout=BUILD_SECONDS)
        if kind != self._index:
            self._connection.call("release_collection", self.name, timeout=BUILD_SECONDS)
            self._connection.call("drop_index", self.name, "vector", timeout=BUILD_SECONDS)
            params = pymilvus().MilvusClient.prepare_index_params()
            params.add_index("vector", index_name="vector", metric_type="IP", **INDEXES[index])
            self._connection.call("create_index", self.name, params, timeout=BUILD_SECONDS)
            self._index = kind
        self._connection.call("load_collection", self.name, timeout=BUILD_SECONDS)
        self.count(strongly=True)

    def describe(self) -> dict[str, Any]:
        return {
            "store": "milvus",
            "collection": self.name,
            "count": self.count(),
            "dimensions": self.dimensions,
            "dtype": self.dtype,
            "index": self._index,
            "address": self._connection.address,
        }
