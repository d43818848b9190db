"""PostgreSQL servers: a pool of connections, translated errors, and shards.

Shards are other servers that store a part of each collection, read through postgres_fdw. Every shard has a plain table
with the collection's name; the main server has a partitioned table of that name over them, by a hash of the id. Shards
rank their own rows; if one does not respond, the search fails.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import psycopg
from pgvector.psycopg import register_vector
from psycopg import errors, sql
from psycopg.pq import PipelineStatus, TransactionStatus

from tfa.errors import BadSpec, DiskFull, StoreConflict, StoreUnavailable, TfaError

PostgresConnection = psycopg.Connection[Any]
_Answer = TypeVar("_Answer")
_CONNECTIONS = 8  # maximum connections per process
_CONNECT_SECONDS = 5
# A host that is gone is noticed after 25 s. By default a query would wait for it for hours.
_KEEPALIVES = dict[str, Any](keepalives_idle=10, keepalives_interval=5, keepalives_count=3, tcp_user_timeout=25_000)
_PAUSE = 0.05  # maximum seconds before a conflicting transaction is retried
_LOCK_OF_SETUP = 7_305_001  # arbitrary number of the setup lock
_LOCK_OF_WRITES = 1  # hash seed of write locks; document locks use 0
_LOCKED_IDS, _LOCKS = 1000, 64  # consecutive ids per lock, and locks per collection
_DISTURBED = (errors.DeadlockDetected, errors.SerializationFailure)  # one of the transactions always succeeds
_AWAY = ("08", "57P")  # error code prefixes: connection lost, server shutting down or starting

# A generic plan ignores the limit; with all lists probed, ivfflat is exact and reads no TOAST.
_SETTINGS = {
    "plan_cache_mode": "force_custom_plan",
    "enable_seqscan": "off",
    "ivfflat.probes": "32768",
    "hnsw.iterative_scan": "strict_order",
    "hnsw.ef_search": "400",
    "enable_partitionwise_aggregate": "on",
    "work_mem": "64MB",
}
_OPTIONS = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())

_SETUP = """
create schema if not exists tfa;
create table if not exists tfa.collections (
    name text collate "C" primary key, dimensions int not null, dtype text not null,
    index text not null default 'scan', shards text[] not null default '{}');
create table if not exists tfa.documents (
    key text collate "C", part int, data bytea not null, primary key (key, part));
alter table tfa.documents alter column data set storage external;
create table if not exists tfa.pieces (
    folder text collate "C", number bigint, data bytea not null, primary key (folder, number));
alter table tfa.pieces alter column data set storage external;
"""


@dataclass(frozen=True)
class Address:
    """Address and login of a server."""

    host: str
    port: int
    user: str
    password: str | None
    database: str
    shards: tuple[str, ...] = ()  # HOST:PORT each
    replicas: tuple[str, ...] = ()  # one per shard, in the same order

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def of(cls, url: str) -> Address:
        """Parse postgres://USER:PASSWORD@HOST:PORT/DATABASE?shards=…&replicas=…"""
        parts = urlsplit(url)
        query = {key: tuple(values[-1].split(",")) for key, values in parse_qs(parts.query).items()}
        unknown = sorted(set(query) - {"shards", "replicas"})
        if unknown:
            raise BadSpec(f"unknown option {unknown[0]}= in a postgres:// URL; use shards= or replicas=")
        try:
            host, port = parts.hostname or "localhost", parts.port or 5432
            for one in (*query.get("shards", ()), *query.get("replicas", ())):
                _split_address(one)
        except ValueError:
            raise BadSpec("addresses in a postgres:// URL must be HOST:PORT, separated by commas") from None
        shards, replicas = query.get("shards", ()), query.get("replicas", ())
        if replicas and len(replicas) != len(shards):
            raise BadSpec(
                f"{len(shards)} shards and {len(replicas)} replicas; name one replica per shard, in the same order"
            )
        if f"{host}:{port}" in shards:
            raise BadSpec(f"{host}:{port} cannot be its own shard; name other servers in shards=")
        user = unquote(parts.username or os.environ.get("PGUSER") or "postgres")
        secret = unquote(parts.password) if parts.password else os.environ.get("PGPASSWORD")
        return cls(host, port, user, secret, unquote(parts.path.strip("/")) or "postgres", shards, replicas)

    def at(self, shard: str) -> Address:
        """Return the address of a shard, with the same user and database."""
        host, port = _split_address(shard)
        return replace(self, host=host, port=port, shards=(), replicas=())


def _split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


class PostgresServer:
    """Connection pool that runs functions in transactions and reconnects automatically."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[PostgresConnection] = []
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._free = threading.Semaphore(_CONNECTIONS)
        weakref.finalize(self, _let_go, self._idle, self._owner)  # closes connections with the last reference
        try:
            self.run(_set_up)
        except TfaError:
            self.close()
            raise

    def run(self, work: Callable[[PostgresConnection], _Answer], once: bool = False) -> _Answer:
        """Run `work` in a transaction and return its result. Retry once after a lost connection, unless `once`, and as
        long as other transactions conflict.
        """
        lost_before = False
        with self._free:
            while True:
                connection = self._taken(checked=once)
                try:
                    with connection.transaction():
                        answer = work(connection)
                    self._give_back(connection)
                    return answer
                except psycopg.Error as error:
                    lost = not self._give_back(connection)
                    if lost:
                        self.close()
                    # The second attempt names a lost shard in the error, or uses its replica.
                    away = lost or isinstance(error, errors.ConnectionFailure)
                    disturbed = isinstance(error, _DISTURBED)
                    if not disturbed and (not away or once or lost_before):
                        raise self.in_our_words(error, lost) from error
                    lost_before = lost_before or away
                    if disturbed:
                        time.sleep(random.uniform(0, _PAUSE))
                except BaseException:
                    connection.close()
                    raise

    def _taken(self, checked: bool) -> PostgresConnection:
        with self._lock:
            if self._owner != os.getpid():  # a forked child must not use its parent's sockets
                self._idle, self._owner = [], os.getpid()
                weakref.finalize(self, _let_go, self._idle, self._owner)
            connection = self._idle.pop() if self._idle else None
        if connection is not None and checked:
            try:
                connection.execute("select 1")
            except psycopg.Error:
                connection.close()
                self.close()
                connection = None
        return connection or self._connected()

    def _give_back(self, connection: PostgresConnection) -> bool:
        """Keep a connection for the next query if it is idle, or else close it. Return True if it is kept."""
        state = connection.info  # a connection lost inside a pipeline seems open, but its transaction never ends
        idle = state.transaction_status == TransactionStatus.IDLE and state.pipeline_status == PipelineStatus.OFF
        if idle:
            with self._lock:
                self._idle.append(connection)
        else:
            connection.close()
        return idle

    def _connected(self) -> PostgresConnection:
        where = self.address
        try:
            connection = psycopg.connect(
                host=where.host,
                port=where.port,
                user=where.user,
                password=where.password,
                dbname=where.database,
                connect_timeout=_CONNECT_SECONDS,
                autocommit=True,
                options=_OPTIONS,
                application_name="tfa",
                **_KEEPALIVES,
            )
            try:
                _add_extension(connection, "vector", where)
                register_vector(connection)
            except BaseException:
                connection.close()
                raise
        except psycopg.Error as error:
            raise self.in_our_words(error, lost=True) from error
        return connection

    def in_our_words(self, error: psycopg.Error, lost: bool = False) -> TfaError:
        """Translate an error to one with advice for users. No message contains the password."""
        where, said = self.address, (str(error).strip().splitlines() or ["no reason given"])[0]
        code = error.sqlstate or ""
        if "password" in said and ("authentication failed" in said or "no password supplied" in said):
            return BadSpec(
                f"PostgreSQL at {where} rejects user {where.user!r} with this password; set them in the URL, "
                "postgres://USER:PASSWORD@HOST:PORT/DATABASE/NAME, or in PGUSER and PGPASSWORD"
            )
        if ("does not exist" in said and "FATAL:" in said) or "pg_hba.conf" in said:
            return BadSpec(f"PostgreSQL at {where} rejects the connection: {said.rpartition('FATAL:')[2].strip()}")
        shard = str(error).partition('server "tfa ')[2].partition('"')[0]  # in errors of postgres_fdw
        if shard:
            return StoreUnavailable(
                f"shard {shard} of PostgreSQL at {where} does not respond, and queries need all shards. Start it, or "
                "add a replica for every shard with replicas="
            )
        if lost or code.startswith(_AWAY):
            return StoreUnavailable(
                f"PostgreSQL at {where} does not respond ({said}); start it, or check host and port in the URL"
            )
        if isinstance(error, errors.DiskFull):
            return DiskFull(f"the disk of PostgreSQL at {where} is full; existing data is unchanged. Free disk space")
        if isinstance(error, errors.InsufficientPrivilege):
            return BadSpec(
                f"user {where.user!r} lacks permission at {where} ({said}); "
                f"run as the database owner: grant create on database {where.database} to {where.user}"
            )
        if isinstance(error, errors.UndefinedTable):
            return StoreConflict(f"PostgreSQL at {where}: {said}; the collection was dropped or not created by tfa")
        return StoreConflict(f"PostgreSQL at {where} reports: {said}")

    def close(self) -> None:
        with self._lock:
            idle = self._idle[:]
            self._idle.clear()
        for connection in idle:
            connection.close()


def _let_go(idle: list[PostgresConnection], owner: int) -> None:
    """Close idle connections in the process that opened them."""
    while idle and owner == os.getpid():
        idle.pop().close()


def _set_up(connection: PostgresConnection) -> None:
    if connection.execute("select to_regclass('tfa.documents')").fetchone() == (None,):
        # Several processes may start together.
        connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK_OF_SETUP,))
        connection.execute(_SETUP)


def _add_extension(connection: PostgresConnection, name: str, where: Address) -> None:
    if connection.execute("select 1 from pg_extension where extname = %s", (name,)).fetchone():
        return
    try:
        with connection.transaction():
            connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK_OF_SETUP,))
            connection.execute(sql.SQL("create extension if not exists {}").format(sql.Identifier(name)))
    except (errors.FeatureNotSupported, errors.UndefinedFile, errors.InsufficientPrivilege) as error:
        raise BadSpec(
            f"database {where.database!r} at {where} lacks the extension {name!r} ({str(error).splitlines()[0]}); "
            f"install it (vector is pgvector, 0.8 or newer), and run as a superuser: create extension {name}"
        ) from None


_SHARD_CONNECT_SECONDS = 3  # timeout before the replica is tried


def holders(server: PostgresServer, shards: Sequence[str]) -> Iterator[PostgresServer]:
    """Yield the servers that store a collection's rows."""
    if not shards:
        yield server
    for shard in shards:
        with closing(PostgresServer(server.address.at(shard))) as other:
            yield other


def copy_rows(
    server: PostgresServer, collection: str, ids: Sequence[int], work: Callable[[PostgresConnection], Any]
) -> None:
    """Write rows of these ids; if connected to a read-only replica, reconnect and try the shard again.

    Concurrent writers lock their ranges of ids on the main server, in sorted order. Otherwise one could fail at a row
    that the other has just inserted, and on shards both could wait forever: a deadlock across servers is not detected.
    """
    ranges = sorted({int(one) // _LOCKED_IDS % _LOCKS for one in ids})
    lock = "select pg_advisory_xact_lock(hashtextextended(%s || ' ' || range, %s)) from unnest(%s::int[]) as range"

    def write_in_turn(connection: PostgresConnection) -> None:
        connection.execute(lock, (collection, _LOCK_OF_WRITES, ranges))
        work(connection)

    for _ in range(2):
        try:
            server.run(write_in_turn)
            return
        except StoreConflict as error:
            if not isinstance(error.__cause__, errors.ReadOnlySqlTransaction):
                raise
            server.close()
    raise StoreUnavailable(
        f"a shard of PostgreSQL at {server.address} does not respond and its replica is read-only; start the shard, or "
        "promote the replica and name it in shards="
    )


def make_parent(connection: PostgresConnection, where: Address, name: str, columns: str) -> None:
    """Create the partitioned table of a collection, with a foreign partition for each shard."""
    _add_extension(connection, "postgres_fdw", where)
    own = sql.Identifier("tfa", name)
    connection.execute(sql.SQL("create table {} ").format(own) + sql.SQL(f"{columns} partition by hash (id)"))
    part = sql.SQL(
        "create foreign table {} partition of {} for values with (modulus {}, remainder {}) server {} "
        "options (schema_name 'tfa', table_name {})"
    )
    for place, shard in enumerate(where.shards):
        hosts = [shard, *where.replicas[place : place + 1]]  # tried in this order
        server = _make_server(connection, where, shard, [_split_address(one) for one in hosts])
        piece = sql.Identifier("tfa", f"{name}__shard{place}")
        connection.execute(part.format(piece, own, len(where.shards), place, server, name))


def _make_server(
    connection: PostgresConnection, where: Address, shard: str, hosts: Sequence[tuple[str, int]]
) -> sql.Identifier:
    """Create or update the foreign server of a shard."""
    server = sql.Identifier(f"tfa {shard}")  # appears in errors of postgres_fdw
    options = {
        "host": ",".join(host for host, _ in hosts),
        "port": ",".join(str(port) for _, port in hosts),
        "dbname": where.database,
        "connect_timeout": str(_SHARD_CONNECT_SECONDS),
        "options": _OPTIONS,
        **{name: str(value) for name, value in _KEEPALIVES.items()},
        "extensions": "vector",  # lets shards sort by the inner product
        "fetch_size": "200",
        "batch_size": "500",
    }
    login = {"user": where.user, **({"password": where.password} if where.password else {})}
    known = connection.execute("select 1 from pg_foreign_server where srvname = %s", (f"tfa {shard}",)).fetchone()
    make = "create server {} foreign data wrapper postgres_fdw options ({})"
    command, verb = (make, "") if known is None else ("alter server {} options ({})", "set ")
    connection.execute(sql.SQL(command).format(server, _list_options(options, verb)))
    connection.execute(sql.SQL("drop user mapping if exists for current_user server {}").format(server))
    mapping = sql.SQL("create user mapping for current_user server {} options ({})")
    connection.execute(mapping.format(server, _list_options(login)))
    return server


def _list_options(options: dict[str, str], verb: str = "") -> sql.Composed:
    pairs = [sql.SQL(verb + "{} {}").format(sql.Identifier(key), sql.Literal(text)) for key, text in options.items()]
    return sql.SQL(", ").join(pairs)
