"""Shards of a PostgreSQL store: other servers that hold a part of each collection, read through postgres_fdw.

Every shard has a plain table of the collection's name; the server that is asked has a partitioned table of that name
over them, by a hash of the id. The shards compute the order of a search; one that does not answer fails the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

from psycopg import errors, sql

from tfa.errors import EngineConflict, EngineUnavailable
from tfa.search.engines.postgres_server import OPTIONS, Address, Connection, Server, add_extension, host_and_port

CONNECT_SECONDS = 3  # until the replica is tried


def holders(server: Server, name: str, shards: Sequence[str]) -> Iterator[tuple[Server, str]]:
    """The servers that hold a collection's rows, and their table's name there."""
    if not shards:
        yield server, name
    for shard in shards:
        with closing(Server(server.address.at(shard))) as other:
            yield other, name


def written(server: Server, work: Callable[[Connection], Any]) -> None:
    """Do a write. Who reads from a replica because its shard was away tries the shard again first."""
    try:
        server.run(work)
    except EngineConflict as error:
        if not isinstance(error.__cause__, errors.ReadOnlySqlTransaction):
            raise
        server.close()
        try:
            server.run(work)
        except EngineConflict as second:
            if not isinstance(second.__cause__, errors.ReadOnlySqlTransaction):
                raise
            raise EngineUnavailable(
                f"a shard of the PostgreSQL at {server.address} does not answer and its replica cannot be written to; "
                "start the shard, or promote the replica and name it in shards="
            ) from None


class Shards:
    """How one server sees its shards."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def make_parent(self, connection: Connection, name: str, columns: str) -> None:
        """The partitioned table and its foreign parts."""
        where = self._address
        add_extension(connection, "postgres_fdw", where)
        for place, shard in enumerate(where.shards):
            hosts = [shard, *where.replicas[place : place + 1]]  # tried in this order
            self._connect(connection, shard, [host_and_port(one) for one in hosts])
        own = sql.Identifier("tfa", name)
        connection.execute(
            sql.SQL("create table {} ").format(own) + sql.SQL(columns) + sql.SQL(" partition by hash (id)")
        )
        part = sql.SQL(
            "create foreign table {} partition of {} for values with (modulus {}, remainder {}) server {} "
            "options (schema_name 'tfa', table_name {})"
        )
        for place, shard in enumerate(where.shards):
            piece = sql.Identifier("tfa", f"{name}__shard{place}")
            numbers = sql.Literal(len(where.shards)), sql.Literal(place)
            connection.execute(part.format(piece, own, *numbers, _server_of(shard), sql.Literal(name)))

    def _connect(self, connection: Connection, shard: str, hosts: Sequence[tuple[str, int]]) -> None:
        where, server = self._address, _server_of(shard)
        options = {
            "host": ",".join(host for host, _ in hosts),
            "port": ",".join(str(port) for _, port in hosts),
            "dbname": where.database,
            "connect_timeout": str(CONNECT_SECONDS),
            "options": OPTIONS,
            "extensions": "vector",  # so that the shard itself orders by the inner product
            "fetch_size": "200",
            "batch_size": "500",
        }
        login = {"user": where.user, **({"password": where.password} if where.password else {})}
        known = connection.execute("select 1 from pg_foreign_server where srvname = %s", (f"tfa {shard}",)).fetchone()
        if known is None:
            connection.execute(
                sql.SQL("create server {} foreign data wrapper postgres_fdw options ({})").format(
                    server, _given(options)
                )
            )
        else:
            connection.execute(sql.SQL("alter server {} options ({})").format(server, _given(options, "set ")))
        connection.execute(sql.SQL("drop user mapping if exists for current_user server {}").format(server))
        connection.execute(
            sql.SQL("create user mapping for current_user server {} options ({})").format(server, _given(login))
        )


def _server_of(shard: str) -> sql.Identifier:
    return sql.Identifier(f"tfa {shard}")  # an error of postgres_fdw names it


def _given(options: dict[str, str], verb: str = "") -> sql.Composed:
    pairs = [sql.SQL(verb + "{} {}").format(sql.Identifier(key), sql.Literal(text)) for key, text in options.items()]
    return sql.SQL(", ").join(pairs)
