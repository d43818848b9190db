"""A table of PostgreSQL with pgvector as a collection. Its indexes:

scan       every vector is read, exact
ivfflat    all its lists are probed: exact, and several times faster
hnsw       a graph, approximate
bit        signs and lengths first, and of the best of these the vectors
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from pgvector import HalfVector, Vector
from psycopg import sql

from tfa.errors import BadSpec
from tfa.search.engines.ascii_text import ascii_text
from tfa.search.engines.postgres_server import Connection, Server
from tfa.search.engines.postgres_shards import holders, written
from tfa.search.store import NOBODY, Collection, Entries, Where, coordinates_of

TYPES = {"float32": "vector", "float16": "halfvec"}
INDEXED_DIMENSIONS = {"vector": 2000, "halfvec": 4000}  # pgvector's own limits
INDEXES = ("scan", "ivfflat", "hnsw", "bit")
EXACT = ("scan", "ivfflat")
ROWS_OF_A_LIST = 1000
SPARE = 16  # halfvec rounds the query too: so many more are scored again with the query as it is
LEAST_OF_BITS = 200  # candidates by their signs, or twice as many as are asked for


class PostgresCollection(Collection):
    """A table."""

    def __init__(
        self, server: Server, name: str, dimensions: int, dtype: str, index: str, shards: Sequence[str]
    ) -> None:
        self.name, self.dimensions, self.dtype = name, dimensions, dtype
        self.index, self.shards = index, tuple(shards)
        self._server, self._type, self._table = server, TYPES[dtype], sql.Identifier("tfa", name)

    def write(self, entries: Entries) -> None:
        vectors = self.fitting(entries.vectors)
        rows = dict(zip(map(int, entries.ids), zip(vectors, entries.payload, entries.full, strict=True), strict=True))
        stored = vectors.astype(self.dtype)
        if not np.isfinite(stored).all():
            raise BadSpec(f"vectors for {self.name!r} hold numbers that {self.dtype} cannot")

        def replace(connection: Connection) -> None:
            connection.execute(self._sql("delete from {table} where id = any(%s)"), (sorted(rows),))
            with connection.cursor().copy(self._sql("copy {table} from stdin (format binary)")) as copy:
                copy.set_types(["int8", self._type, "json", "text", "float8", "float8", "text", "bytea"])
                for own in sorted(rows):
                    vector, payload, full = rows[own]
                    east, north = coordinates_of(payload) or (None, None)
                    session, digest = ascii_text(payload.get("session")), ascii_text(payload.get("digest"))
                    copy.write_row(
                        (own, self._vector(vector), dict(payload), session, east, north, digest, bytes(full))
                    )

        if rows:
            written(self._server, replace)

    def delete(self, ids: Sequence[int] | np.ndarray) -> None:
        gone = [int(one) for one in ids]
        written(self._server, lambda c: c.execute(self._sql("delete from {table} where id = any(%s)"), (gone,)))

    def nearest(self, queries: np.ndarray, k: int, where: Where | None = None) -> tuple[np.ndarray, np.ndarray]:
        queries = self.fitting(queries)
        condition, values = _condition(where)
        command = self._search().format(table=self._table, condition=condition)

        def search(connection: Connection) -> tuple[list[list[tuple[int, float]]], int]:
            with connection.pipeline():
                cursors = [
                    connection.execute(
                        command, {"query": self._plain(q), "rough": self._vector(q), **values, **_counts(k)}
                    )
                    for q in queries
                ]
                few = self._sql("select count(*) from (select 1 from {table} limit %s) as few")
                there = connection.execute(few, (k,))
            return [cursor.fetchall() for cursor in cursors], there.fetchone()[0]  # type: ignore[index]

        rows, width = self._server.run(search)
        found, scores = np.full((len(queries), width), NOBODY), np.full((len(queries), width), -np.inf, np.float32)
        for place, row in enumerate(rows):
            if row:
                found[place, : len(row)], scores[place, : len(row)] = zip(*row, strict=True)
        return found, scores

    def _search(self) -> sql.SQL:
        """Candidates in the order of the index; of these the k best by the scores of the vectors as they are stored."""
        if self.index == "bit":
            angle = f"pi() * (code <~> binary_quantize(%(rough)s::{self._type})::bit({self.dimensions}))"
            order, limit = f"length * cos({angle} / {self.dimensions}) desc", "%(bits)s"
        else:
            order, limit = f"vector <#> %(rough)s::{self._type}", "%(spare)s"
        score, rest = "vector::vector <#> %(query)s::vector as score", f"order by {order}, id limit {limit}"
        if self.shards:  # a number comes from a shard much faster than a vector
            candidates = f"select id, {score} from {{table}} where {{condition}} {rest}"
        else:  # vectors that are stored out of line are read for these few alone
            few = f"select id, vector from {{table}} where {{condition}} {rest}"
            candidates = f"select id, {score} from ({few}) as few"
        best = f"select id, (score * -1)::float4 from ({candidates}) as candidates order by score, id limit %(k)s"
        return sql.SQL(best)  # <#> is minus the inner product

    def fetch(self, ids: Sequence[int] | np.ndarray) -> Entries:
        wanted = [int(one) for one in ids]
        rows = self._rows(sql.SQL("id = any(%s)"), (wanted,))
        known = {row[0]: row for row in rows}
        return self._entries([known[own] for own in wanted if own in known])

    def find(self, digests: Sequence[str]) -> dict[str, int]:
        asked = {ascii_text(one): one for one in digests}
        command = self._sql("select digest, min(id) from {table} where digest = any(%s) group by digest")
        found = self._server.run(lambda c: c.execute(command, (list(asked),)).fetchall())
        return {asked[digest]: own for digest, own in found}

    def pages(self, size: int = 1000) -> Iterator[Entries]:
        last = -(2**63)
        while rows := self._rows(sql.SQL("id > %s order by id limit %s"), (last, size)):
            yield self._entries(rows)
            last = rows[-1][0]

    def count(self) -> int:
        row = self._server.run(lambda c: c.execute(self._sql("select count(*) from {table}")).fetchone())
        return int(row[0])  # type: ignore[index]

    def seal(self, index: str | None = None) -> None:
        """`None` is ivfflat where pgvector can index that many dimensions: it misses nothing here."""
        fits = self.dimensions <= INDEXED_DIMENSIONS[self._type]
        index = index or ("ivfflat" if fits else "scan")
        if index not in INDEXES:
            raise BadSpec(f"PostgreSQL has no index {index!r}; there are {', '.join(INDEXES)}")
        if not fits and index in ("ivfflat", "hnsw"):
            raise BadSpec(
                f"pgvector indexes at most {INDEXED_DIMENSIONS[self._type]} dimensions of {self.dtype}, {self.name!r} "
                f"has {self.dimensions}; build with fewer --dims, or use the index bit"
            )
        if index not in EXACT and self.shards:  # a shard is not told how few are wanted, and would search on and on
            raise BadSpec(f"the index {index} is not for shards; use {' or '.join(EXACT)}")
        for server, table in holders(self._server, self.name, self.shards):
            server.run(lambda c, table=table: self._reindex(c, table, index))  # type: ignore[misc]
        told = "update tfa.collections set index = %s where name = %s"
        self._server.run(lambda c: c.execute(told, (index, self.name)))
        self.index = index

    def _reindex(self, connection: Connection, table: str, index: str) -> None:
        own = sql.Identifier("tfa", table)
        old = "select indexrelid::regclass::text from pg_index join pg_class c on c.oid = indexrelid join pg_am a on "
        old += "a.oid = c.relam where indrelid = %s::regclass and amname in ('ivfflat', 'hnsw')"
        for (name,) in connection.execute(old, (f'tfa."{table}"',)).fetchall():
            connection.execute(sql.SQL("drop index ") + sql.SQL(name))
        connection.execute(
            sql.SQL("alter table {} drop column if exists code, drop column if exists length").format(own)
        )
        kind = sql.SQL(f"{self._type}_ip_ops")
        if index == "ivfflat":
            rows = connection.execute(sql.SQL("select count(*) from {}").format(own)).fetchone()
            lists = sql.Literal(max(1, rows[0] // ROWS_OF_A_LIST))  # type: ignore[index]
            connection.execute("set local client_min_messages = error")  # that it is built of few rows
            command = "create index on {} using ivfflat (vector {}) with (lists = {})"
            connection.execute(sql.SQL(command).format(own, kind, lists))
        elif index == "hnsw":
            connection.execute(sql.SQL("create index on {} using hnsw (vector {})").format(own, kind))
        elif index == "bit":
            bits = f"binary_quantize(vector)::bit({self.dimensions})"
            length = "vector_norm(vector)" if self._type == "vector" else "l2_norm(vector)"
            command = f"alter table {{}} add column code bit({self.dimensions}) generated always as ({bits}) stored, "
            command += f"add column length float4 generated always as ({length}) stored"
            connection.execute(sql.SQL(command).format(own))

    def describe(self) -> dict[str, Any]:
        about = {"engine": "postgres", "server": str(self._server.address), "collection": self.name}
        size = {"count": self.count(), "dimensions": self.dimensions, "dtype": self.dtype}
        return {**about, **size, "index": self.index, "shards": list(self.shards)}

    def _sql(self, command: str) -> sql.Composed:
        return sql.SQL(command).format(table=self._table)

    def _vector(self, vector: np.ndarray) -> Any:
        return HalfVector(vector) if self._type == "halfvec" else self._plain(vector)

    @staticmethod
    def _plain(vector: np.ndarray) -> Any:
        return Vector(vector)

    def _rows(self, condition: sql.SQL, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        command = self._sql('select id, vector, payload, "full" from {table} where ') + condition
        return self._server.run(lambda c: c.cursor(binary=True).execute(command, values).fetchall())

    def _entries(self, rows: Sequence[tuple[Any, ...]]) -> Entries:
        vectors = np.empty((len(rows), self.dimensions), np.float32)
        for place, row in enumerate(rows):
            vectors[place] = row[1].to_numpy()
        ids = np.array([row[0] for row in rows], np.int64)
        return Entries(ids, vectors, [row[2] for row in rows], [bytes(row[3]) for row in rows])


def _counts(k: int) -> dict[str, int]:
    return {"k": k, "spare": k + SPARE, "bits": max(2 * k, LEAST_OF_BITS)}


def _condition(where: Where | None) -> tuple[sql.SQL, dict[str, Any]]:
    parts, values = ["true"], dict[str, Any]()
    if where is not None and where.sessions:
        parts.append("session = any(%(sessions)s)")
        values["sessions"] = [ascii_text(one) for one in where.sessions]
    if where is not None and where.region is not None:
        box = where.region
        parts.append("east between %(west)s and %(east)s and north between %(south)s and %(north)s")
        values |= {"west": box.west, "east": box.east, "south": box.south, "north": box.north}
    return sql.SQL(" and ".join(parts)), values
