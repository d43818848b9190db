"""PostgreSQL with pgvector as a store: in the schema `tfa`, one table per collection, one for all documents and one for
all pieces. With `?shards=HOST:PORT,…` new collections are partitioned tables over foreign tables.

Indexes of a collection:

scan       reads every vector; exact
ivfflat    probes all lists; exact, and several times faster
hnsw       graph; approximate
bit        signs and lengths, then rescores the best with their vectors
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from pgvector import HalfVector, Vector
from psycopg import errors, sql

from tfa.errors import BadSpec, StoreConflict
from tfa.search.postgres_server import Address, PostgresConnection, PostgresServer, copy_rows, holders, make_parent
from tfa.search.store import NO_ID, Collection, Entries, Store, Where, read_coordinates
from tfa.search.store_text import ascii_text

_MOST_DIMENSIONS = 16_000  # limit of pgvector
_PART = 8_000_000  # bytes of a document per row
_FOLDERS = """(with recursive folders as (
    (select folder from tfa.pieces order by folder limit 1) union all
    select (select folder from tfa.pieces where folder > folders.folder order by folder limit 1)
    from folders where folders.folder is not null)
    select folder from folders where starts_with(folder, %s))"""  # skips from folder to folder: there are few
_COLUMNS = """(id bigint not null, vector {type}({dimensions}) not null, payload json not null, session text,
    east float8, north float8, digest text, "full" bytea not null)"""


class PostgresStore(Store):
    """`postgres://USER:PASSWORD@HOST:PORT/DATABASE`"""

    scheme = "postgres"

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    @classmethod
    def connect(cls, url: str) -> PostgresStore:
        return cls(PostgresServer(Address.of(url)))

    def create(self, name: str, dimensions: int, dtype: str = "float32") -> Collection:
        if dtype not in _TYPES:
            raise BadSpec(f"PostgreSQL cannot store {dtype!r} vectors; use {' or '.join(_TYPES)}")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise BadSpec(
                f"{dimensions} dimensions are out of range: pgvector stores 1 to {_MOST_DIMENSIONS}; build with --dims"
            )
        shards, columns = self._server.address.shards, _COLUMNS.format(type=_TYPES[dtype], dimensions=dimensions)
        taken = StoreConflict(
            f"collection {name!r} already exists at {self._server.address}; choose another name, or drop it"
        )
        if self._listed(name):
            raise taken
        try:
            for server in holders(self._server, shards):
                server.run(lambda c: _make_table(c, name, columns))
            if shards:
                self._server.run(lambda c: make_parent(c, self._server.address, name, columns))
            insert = "insert into tfa.collections (name, dimensions, dtype, shards) values (%s, %s, %s, %s)"
            self._server.run(lambda c: c.execute(insert, (name, dimensions, dtype, list(shards))))
        except StoreConflict as error:
            is_taken = isinstance(error.__cause__, errors.DuplicateTable | errors.UniqueViolation)
            raise (taken if is_taken else error) from None
        return self.open(name)

    def open(self, name: str) -> Collection:
        for row in self._listed(name):
            return PostgresCollection(self._server, *row)
        raise StoreConflict(f"collection {name!r} not found at {self._server.address}; rebuild the map")

    def _listed(self, name: str) -> list[tuple[str, int, str, str, list[str]]]:
        listed = "select name, dimensions, dtype, index, shards from tfa.collections where name = %s"
        return self._server.run(lambda c: c.execute(listed, (name,)).fetchall())

    def drop(self, name: str) -> None:
        command = sql.SQL("drop table if exists {}").format(sql.Identifier("tfa", name))
        for *_, shards in self._listed(name):
            if shards:  # before the tables it reads from
                self._server.run(lambda c: c.execute(command))
            for server in holders(self._server, shards):
                server.run(lambda c: c.execute(command))
            self._server.run(lambda c: c.execute("delete from tfa.collections where name = %s", (name,)))

    def names(self, prefix: str = "") -> list[str]:
        listed = "select name from tfa.collections where starts_with(name, %s) order by name"
        return [name for (name,) in self._server.run(lambda c: c.execute(listed, (prefix,)).fetchall())]

    def read(self, key: str) -> bytes | None:
        return self._server.run(lambda c: _document(c, key))

    def put(self, key: str, data: bytes) -> None:
        self._server.run(lambda c: _write(c, key, data))

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        def compare_and_replace(connection: PostgresConnection) -> bool:
            _lock(connection, key)
            equal = _document(connection, key) == old
            if equal:
                _write(connection, key, new)
            return equal

        return self._server.run(compare_and_replace, once=True)

    def keys(self, prefix: str = "") -> list[str]:
        listed = f"select key from tfa.documents where part = 0 and starts_with(key, %s) union all {_FOLDERS}"
        return sorted(key for (key,) in self._server.run(lambda c: c.execute(listed, (prefix, prefix)).fetchall()))

    def erase(self, key: str) -> None:
        of = "pieces where folder" if key.endswith("/") else "documents where key"
        self._server.run(lambda c: c.execute(f"delete from tfa.{of} = %s", (key,)))

    def put_pieces(self, folder: str, pieces: Mapping[int, bytes]) -> None:
        # Sorted, so that two writers of the same pieces cannot deadlock.
        rows = [(folder, number, pieces[number]) for number in sorted(pieces)]
        insert = "insert into tfa.pieces values (%s, %s, %b) on conflict (folder, number) do nothing"
        self._server.run(lambda c: c.cursor().executemany(insert, rows))

    def read_pieces(self, folder: str, numbers: Sequence[int]) -> dict[int, bytes]:
        select = "select number, data from tfa.pieces where folder = %s and number = any(%s)"
        values = (folder, [int(one) for one in numbers])
        rows = self._server.run(lambda c: c.cursor(binary=True).execute(select, values).fetchall())
        return {number: bytes(data) for number, data in rows}

    def close(self) -> None:
        self._server.close()


def _make_table(connection: PostgresConnection, table: str, columns: str) -> None:
    own = sql.Identifier("tfa", table)
    connection.execute(sql.SQL("create table {} ").format(own) + sql.SQL(columns))
    connection.execute(sql.SQL("alter table {} add primary key (id)").format(own))
    connection.execute(sql.SQL("create index on {} (digest)").format(own))


def _lock(connection: PostgresConnection, key: str) -> None:
    """Lock a document for writing until the transaction ends, which may lock it again."""
    connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (key,))


def _document(connection: PostgresConnection, key: str) -> bytes | None:
    parts = "select data from tfa.documents where key = %s order by part"
    rows = connection.cursor(binary=True).execute(parts, (key,)).fetchall()
    return b"".join(bytes(row[0]) for row in rows) if rows else None


def _write(connection: PostgresConnection, key: str, data: bytes) -> None:
    _lock(connection, key)
    connection.execute("delete from tfa.documents where key = %s", (key,))
    for part, start in enumerate(range(0, max(1, len(data)), _PART)):
        values = (key, part, data[start : start + _PART])
        connection.execute("insert into tfa.documents values (%s, %s, %b)", values)


_TYPES = {"float32": "vector", "float16": "halfvec"}
_INDEXED_DIMENSIONS = {"vector": 2000, "halfvec": 4000}  # limits of pgvector
_INDEXES = ("scan", "ivfflat", "hnsw", "bit")
_EXACT = ("scan", "ivfflat")
_ROWS_OF_A_LIST = 1000
_SPARE = 16  # extra candidates rescored with the exact query, because halfvec also rounds the query
_LEAST_OF_BITS = 200  # minimum number of candidates by signs; at least twice k


class PostgresCollection(Collection):
    def __init__(
        self, server: PostgresServer, name: str, dimensions: int, dtype: str, index: str, shards: Sequence[str]
    ) -> None:
        self.name, self.dimensions, self.dtype = name, dimensions, dtype
        self.index, self.shards = index, tuple(shards)
        self._server, self._type, self._table = server, _TYPES[dtype], sql.Identifier("tfa", name)

    def write(self, entries: Entries) -> None:
        vectors = self.fit(entries.vectors)
        rows = dict(zip(map(int, entries.ids), zip(vectors, entries.payload, entries.full, strict=True), strict=True))
        stored = vectors.astype(self.dtype)
        if not np.isfinite(stored).all():
            raise BadSpec(f"vectors for {self.name!r} contain values outside the range of {self.dtype}")

        def replace(connection: PostgresConnection) -> None:
            connection.execute(self._sql("delete from {table} where id = any(%s)"), (sorted(rows),))
            with connection.cursor().copy(self._sql("copy {table} from stdin (format binary)")) as copy:
                copy.set_types(["int8", self._type, "json", "text", "float8", "float8", "text", "bytea"])
                for own in sorted(rows):
                    vector, payload, full = rows[own]
                    east, north = read_coordinates(payload) or (None, None)
                    session, digest = ascii_text(payload.get("session")), ascii_text(payload.get("digest"))
                    row = (own, self._vector(vector), dict(payload), session, east, north, digest, bytes(full))
                    copy.write_row(row)

        if rows:
            copy_rows(self._server, self.name, list(rows), replace)

    def delete(self, ids: Sequence[int] | np.ndarray) -> None:
        gone, command = [int(one) for one in ids], self._sql("delete from {table} where id = any(%s)")
        copy_rows(self._server, self.name, gone, lambda c: c.execute(command, (gone,)))

    def nearest(self, queries: np.ndarray, k: int, where: Where | None = None) -> tuple[np.ndarray, np.ndarray]:
        queries = self.fit(queries)
        condition, values = _condition(where)
        values |= {"k": k, "spare": k + _SPARE, "bits": max(2 * k, _LEAST_OF_BITS)}
        command = self._search().format(table=self._table, condition=condition)

        def search(connection: PostgresConnection) -> tuple[list[list[tuple[int, float]]], int]:
            with connection.pipeline():
                vectors = [{"query": Vector(query), "rough": self._vector(query)} for query in queries]
                cursors = [connection.execute(command, values | one) for one in vectors]
                few = self._sql("select count(*) from (select 1 from {table} limit %s) as few")
                there = connection.execute(few, (k,))
            return [cursor.fetchall() for cursor in cursors], there.fetchone()[0]  # type: ignore[index]

        rows, count = self._server.run(search)
        width = max([count, *map(len, rows)])  # images may be deleted between the searches and the count
        found, scores = np.full((len(queries), width), NO_ID), np.full((len(queries), width), -np.inf, np.float32)
        for place, row in enumerate(rows):
            if row:
                found[place, : len(row)], scores[place, : len(row)] = zip(*row, strict=True)
        return found, scores

    def _search(self) -> sql.SQL:
        """Return the query: candidates in index order, then the k best by scores of the stored vectors."""
        if self.index == "bit":
            angle = f"pi() * (code <~> binary_quantize(%(rough)s::{self._type})::bit({self.dimensions}))"
            order, limit = f"length * cos({angle} / {self.dimensions}) desc", "%(bits)s"
        else:
            order, limit = f"vector <#> %(rough)s::{self._type}", "%(spare)s"
        score, rest = "vector::vector <#> %(query)s::vector as score", f"order by {order}, id limit {limit}"
        if self.shards:  # transferring a score is much faster than a vector
            candidates = f"select id, {score} from {{table}} where {{condition}} {rest}"
        else:  # reads out-of-line vectors only for these few
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
        texts = {ascii_text(one): one for one in digests}
        command = self._sql("select digest, min(id) from {table} where digest = any(%s) group by digest")
        found = self._server.run(lambda c: c.execute(command, (list(texts),)).fetchall())
        return {texts[digest]: own for digest, own in found}

    def pages(self, size: int = 1000) -> Iterator[Entries]:
        last = -(2**63)
        while rows := self._rows(sql.SQL("id > %s order by id limit %s"), (last, size)):
            yield self._entries(rows)
            last = rows[-1][0]

    def count(self) -> int:
        row = self._server.run(lambda c: c.execute(self._sql("select count(*) from {table}")).fetchone())
        return int(row[0])  # type: ignore[index]

    def seal(self, index: str | None = None) -> None:
        """Build an index. `None` is ivfflat if pgvector can index the dimensions, which is exact here."""
        fits = self.dimensions <= _INDEXED_DIMENSIONS[self._type]
        index = index or ("ivfflat" if fits else "scan")
        if index not in _INDEXES:
            raise BadSpec(f"unknown index {index!r} for PostgreSQL; use {', '.join(_INDEXES)}")
        if not fits and index in ("ivfflat", "hnsw"):
            raise BadSpec(
                f"pgvector indexes at most {_INDEXED_DIMENSIONS[self._type]} dimensions of {self.dtype}, {self.name!r} "
                f"has {self.dimensions}; build with fewer --dims, or use the index bit"
            )
        if index not in _EXACT and self.shards:  # shards do not know the limit and would search everything
            raise BadSpec(f"index {index} does not support shards; use {' or '.join(_EXACT)}")
        for server in holders(self._server, self.shards):
            server.run(lambda c: self._reindex(c, index))
        update = "update tfa.collections set index = %s where name = %s"
        self._server.run(lambda c: c.execute(update, (index, self.name)))
        self.index = index

    def _reindex(self, connection: PostgresConnection, index: str) -> None:
        own = self._table
        old = "select indexrelid::regclass::text from pg_index join pg_class c on c.oid = indexrelid join pg_am a on "
        old += "a.oid = c.relam where indrelid = %s::regclass and amname in ('ivfflat', 'hnsw')"
        for (name,) in connection.execute(old, (f'tfa."{self.name}"',)).fetchall():
            connection.execute(sql.SQL("drop index ") + sql.SQL(name))
        connection.execute(self._sql("alter table {table} drop column if exists code, drop column if exists length"))
        kind = sql.SQL(f"{self._type}_ip_ops")
        if index == "ivfflat":
            rows = connection.execute(self._sql("select count(*) from {table}")).fetchone()
            lists = sql.Literal(max(1, rows[0] // _ROWS_OF_A_LIST))  # type: ignore[index]
            connection.execute("set local client_min_messages = error")  # hides the notice about few rows
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
        about = {"store": "postgres", "server": str(self._server.address), "collection": self.name}
        size = {"count": self.count(), "dimensions": self.dimensions, "dtype": self.dtype}
        return {**about, **size, "index": self.index, "shards": list(self.shards)}

    def _sql(self, command: str) -> sql.Composed:
        return sql.SQL(command).format(table=self._table)

    def _vector(self, vector: np.ndarray) -> Any:
        return HalfVector(vector) if self._type == "halfvec" else Vector(vector)

    def _rows(self, condition: sql.SQL, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        command = self._sql('select id, vector, payload, "full" from {table} where ') + condition
        return self._server.run(lambda c: c.cursor(binary=True).execute(command, values).fetchall())

    def _entries(self, rows: Sequence[tuple[Any, ...]]) -> Entries:
        ids = np.array([row[0] for row in rows], np.int64)
        vectors = np.array([row[1].to_numpy() for row in rows], np.float32).reshape(-1, self.dimensions)
        return Entries(ids, vectors, [row[2] for row in rows], [bytes(row[3]) for row in rows])


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
