"""PostgreSQL with pgvector as a store: tables in the schema `tfa`, a table a collection, one for all documents and one
for all pieces.

With `?shards=HOST:PORT,…` new collections are partitioned tables over foreign tables (`postgres_shards`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from psycopg import errors, sql

from tfa.errors import BadSpec, EngineConflict
from tfa.search.engines.postgres_collection import TYPES, PostgresCollection
from tfa.search.engines.postgres_server import Address, Connection, Server
from tfa.search.engines.postgres_shards import Shards, holders
from tfa.search.store import Collection, Store

MOST_DIMENSIONS = 16_000  # pgvector's own limit
PART = 8_000_000  # bytes of a document in one row
FOLDERS = """(with recursive folders as (
    (select folder from tfa.pieces order by folder limit 1) union all
    select (select folder from tfa.pieces where folder > folders.folder order by folder limit 1)
    from folders where folders.folder is not null)
    select folder from folders where starts_with(folder, %s))"""  # from one to the next: pieces are many, folders few
COLUMNS = """(id bigint not null, vector {type}({dimensions}) not null, payload json not null, session text,
    east float8, north float8, digest text, "full" bytea not null)"""


class PostgresStore(Store):
    """`postgres://USER:PASSWORD@HOST:PORT/DATABASE`"""

    scheme = "postgres"

    def __init__(self, server: Server) -> None:
        self._server = server

    @classmethod
    def connect(cls, url: str) -> PostgresStore:
        return cls(Server(Address.of(url)))

    def create(self, name: str, dimensions: int, dtype: str = "float32") -> Collection:
        if dtype not in TYPES:
            raise BadSpec(f"PostgreSQL stores vectors in {' or '.join(TYPES)}, not {dtype!r}")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise BadSpec(f"pgvector stores 1 to {MOST_DIMENSIONS} dimensions, not {dimensions}; build with --dims")
        shards, columns = self._server.address.shards, COLUMNS.format(type=TYPES[dtype], dimensions=dimensions)
        taken = EngineConflict(
            f"there is a collection {name!r} at {self._server.address} already; choose another name, or drop it"
        )
        if self._listed(name):
            raise taken
        try:
            for server, table in holders(self._server, name, shards):
                server.run(lambda c, table=table: _make_table(c, table, columns))  # type: ignore[misc]
            if shards:
                self._server.run(lambda c: Shards(self._server.address).make_parent(c, name, columns))
            told = "insert into tfa.collections (name, dimensions, dtype, shards) values (%s, %s, %s, %s)"
            self._server.run(lambda c: c.execute(told, (name, dimensions, dtype, list(shards))))
        except EngineConflict as error:
            raise (
                taken if isinstance(error.__cause__, errors.DuplicateTable | errors.UniqueViolation) else error
            ) from None
        return self.open(name)

    def open(self, name: str) -> Collection:
        for own, dimensions, dtype, index, shards in self._listed(name):
            return PostgresCollection(self._server, own, dimensions, dtype, index, shards)
        raise EngineConflict(f"there is no collection {name!r} at {self._server.address}; build the map again")

    def _listed(self, name: str) -> list[tuple[str, int, str, str, list[str]]]:
        listed = "select name, dimensions, dtype, index, shards from tfa.collections where name = %s"
        return self._server.run(lambda c: c.execute(listed, (name,)).fetchall())

    def drop(self, name: str) -> None:
        for own, *_, shards in self._listed(name):
            if shards:  # before the tables it reads from
                self._server.run(_dropping(own))
            for server, table in holders(self._server, own, shards):
                server.run(_dropping(table))
            self._server.run(lambda c: c.execute("delete from tfa.collections where name = %s", (name,)))

    def names(self, prefix: str = "") -> list[str]:
        listed = "select name from tfa.collections where starts_with(name, %s) order by name"
        return [name for (name,) in self._server.run(lambda c: c.execute(listed, (prefix,)).fetchall())]

    def read(self, key: str) -> bytes | None:
        return self._server.run(lambda c: _document(c, key))

    def put(self, key: str, data: bytes) -> None:
        def replace(connection: Connection) -> None:
            _lock(connection, key)
            _write(connection, key, data)

        self._server.run(replace)

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        def compare_and_replace(connection: Connection) -> bool:
            _lock(connection, key)
            if _document(connection, key) != old:
                return False
            _write(connection, key, new)
            return True

        return self._server.run(compare_and_replace, once=True)

    def keys(self, prefix: str = "") -> list[str]:
        listed = f"select key from tfa.documents where part = 0 and starts_with(key, %s) union all {FOLDERS}"
        return sorted(key for (key,) in self._server.run(lambda c: c.execute(listed, (prefix, prefix)).fetchall()))

    def erase(self, key: str) -> None:
        of = "pieces where folder" if key.endswith("/") else "documents where key"
        self._server.run(lambda c: c.execute(f"delete from tfa.{of} = %s", (key,)))

    def put_pieces(self, folder: str, pieces: Mapping[int, bytes]) -> None:
        # In one order, so that two that write the same ones cannot block each other.
        rows = [(folder, number, pieces[number]) for number in sorted(pieces)]
        insert = "insert into tfa.pieces values (%s, %s, %b) on conflict (folder, number) do nothing"
        self._server.run(lambda c: c.cursor().executemany(insert, rows))

    def read_pieces(self, folder: str, numbers: Sequence[int]) -> dict[int, bytes]:
        asked = "select number, data from tfa.pieces where folder = %s and number = any(%s)"
        given = (folder, [int(one) for one in numbers])
        rows = self._server.run(lambda c: c.cursor(binary=True).execute(asked, given).fetchall())
        return {number: bytes(data) for number, data in rows}

    def close(self) -> None:
        self._server.close()


def _make_table(connection: Connection, table: str, columns: str) -> None:
    own = sql.Identifier("tfa", table)
    connection.execute(sql.SQL("create table {} ").format(own) + sql.SQL(columns))
    connection.execute(sql.SQL("alter table {} add primary key (id)").format(own))
    connection.execute(sql.SQL("create index on {} (digest)").format(own))


def _dropping(table: str) -> Callable[[Connection], Any]:
    command = sql.SQL("drop table if exists {}").format(sql.Identifier("tfa", table))
    return lambda connection: connection.execute(command)


def _lock(connection: Connection, key: str) -> None:
    """Until the transaction ends: who swaps or puts this document does so alone."""
    connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (key,))


def _document(connection: Connection, key: str) -> bytes | None:
    parts = "select data from tfa.documents where key = %s order by part"
    rows = connection.cursor(binary=True).execute(parts, (key,)).fetchall()
    return b"".join(bytes(row[0]) for row in rows) if rows else None


def _write(connection: Connection, key: str, data: bytes) -> None:
    connection.execute("delete from tfa.documents where key = %s", (key,))
    for part, start in enumerate(range(0, max(1, len(data)), PART)):
        values = (key, part, data[start : start + PART])
        connection.execute("insert into tfa.documents values (%s, %s, %b)", values)
