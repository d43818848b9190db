"""A PostgreSQL server as the store sees it: a few connections that threads share, and errors in our own words."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from tfa.errors import BadSpec, DiskFull, EngineConflict, EngineUnavailable, MissingExtra, TfaError

try:
    import psycopg
    from pgvector.psycopg import register_vector
    from psycopg import errors
except ImportError as missing:
    raise MissingExtra(
        f"a map in PostgreSQL needs {missing.name}, which is not installed; "
        "install with: pip install 'tfa-vpr[postgres]'"
    ) from None

Connection = psycopg.Connection[Any]
Answer = TypeVar("Answer")
CONNECTIONS = 8  # at most, of one process
CONNECT_SECONDS = 5
ATTEMPTS = 5  # of a write that another writer of the same ids disturbed
LOCK_OF_SETUP = 7_305_001  # any number that nobody else locks
DISTURBED = (errors.UniqueViolation, errors.DeadlockDetected, errors.SerializationFailure)
AWAY = ("08", "57P")  # connection lost, server shutting down or starting: the beginnings of these errors' codes

# A generic plan does not know how few rows are wanted; with all lists probed, ivfflat is exact and reads no TOAST.
SETTINGS = {
    "plan_cache_mode": "force_custom_plan",
    "enable_seqscan": "off",
    "ivfflat.probes": "32768",
    "hnsw.iterative_scan": "strict_order",
    "hnsw.ef_search": "400",
    "enable_partitionwise_aggregate": "on",
    "work_mem": "64MB",
}
OPTIONS = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())

SETUP = """
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
    """Where a server is and who asks."""

    host: str
    port: int
    user: str
    password: str | None
    database: str
    shards: tuple[str, ...] = ()  # HOST:PORT each
    replicas: tuple[str, ...] = ()  # one for each shard, in their order

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def of(cls, url: str) -> Address:
        """Of postgres://USER:PASSWORD@HOST:PORT/DATABASE?shards=…&replicas=…"""
        parts = urlsplit(url)
        asked = {key: tuple(values[-1].split(",")) for key, values in parse_qs(parts.query).items()}
        unknown = sorted(set(asked) - {"shards", "replicas"})
        if unknown:
            raise BadSpec(f"a postgres:// URL takes shards= and replicas=, not {unknown[0]}=")
        try:
            host, port = parts.hostname or "localhost", parts.port or 5432
            for one in (*asked.get("shards", ()), *asked.get("replicas", ())):
                host_and_port(one)
        except ValueError:
            raise BadSpec("the addresses in a postgres:// URL are HOST:PORT, several separated by commas") from None
        shards, replicas = asked.get("shards", ()), asked.get("replicas", ())
        if replicas and len(replicas) != len(shards):
            raise BadSpec(
                f"{len(shards)} shards and {len(replicas)} replicas: give one replica a shard, in their order"
            )
        if f"{host}:{port}" in shards:
            raise BadSpec(f"{host}:{port} cannot be its own shard; name other servers in shards=")
        user = unquote(parts.username or os.environ.get("PGUSER") or "postgres")
        secret = unquote(parts.password) if parts.password else os.environ.get("PGPASSWORD")
        return cls(host, port, user, secret, unquote(parts.path.strip("/")) or "postgres", shards, replicas)

    def at(self, shard: str) -> Address:
        """The same user and database on a shard."""
        host, port = host_and_port(shard)
        return replace(self, host=host, port=port, shards=(), replicas=())


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


class Server:
    """Runs work on a connection of its own, in one transaction; connects again by itself when a server is back."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[Connection] = []
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._free = threading.Semaphore(CONNECTIONS)
        weakref.finalize(self, _let_go, self._idle, self._owner)  # a map that nobody holds any more
        try:
            self.run(_set_up)
        except TfaError:
            self.close()
            raise

    def run(self, work: Callable[[Connection], Answer], once: bool = False) -> Answer:
        """The work's answer. It is begun a second time if the connection turned out to be lost, unless it may happen
        `once` only; and a few times if another writer disturbed it."""
        with self._free:
            for attempt in range(ATTEMPTS):
                connection = self._taken(checked=once)
                try:
                    with connection.transaction():
                        answer = work(connection)
                    self._give_back(connection)
                    return answer
                except psycopg.Error as error:
                    lost = connection.broken or connection.closed
                    if lost:
                        connection.close()
                        self.close()
                    else:
                        self._give_back(connection)
                    # A shard that went away in the middle is named, or its replica asked, at the second attempt.
                    away = lost or isinstance(error, errors.ConnectionFailure)
                    again = (away and not once and attempt == 0) or isinstance(error, DISTURBED)
                    if not again or attempt == ATTEMPTS - 1:
                        raise self.in_our_words(error, lost) from error
                except BaseException:
                    connection.close()
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _taken(self, checked: bool) -> Connection:
        with self._lock:
            if self._owner != os.getpid():  # a forked child must not speak through its parent's sockets
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

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            self._idle.append(connection)

    def _connected(self) -> Connection:
        where = self.address
        try:
            connection = psycopg.connect(
                host=where.host,
                port=where.port,
                user=where.user,
                password=where.password,
                dbname=where.database,
                connect_timeout=CONNECT_SECONDS,
                autocommit=True,
                options=OPTIONS,
                application_name="tfa",
            )
        except psycopg.Error as error:
            raise self.in_our_words(error, lost=True) from error
        try:
            add_extension(connection, "vector", where)
            register_vector(connection)
        except psycopg.Error as error:
            connection.close()
            raise self.in_our_words(error, lost=True) from error
        except TfaError:
            connection.close()
            raise
        return connection

    def in_our_words(self, error: psycopg.Error, lost: bool = False) -> TfaError:
        """What a user can do about it. No message holds the password."""
        where, said = self.address, (str(error).strip().splitlines() or ["no reason given"])[0]
        code = error.sqlstate or ""
        if "password" in said and ("authentication failed" in said or "no password supplied" in said):
            return BadSpec(
                f"PostgreSQL at {where} does not accept the user {where.user!r} with this password; give them in "
                "the URL, postgres://USER:PASSWORD@HOST:PORT/DATABASE/NAME, or in PGUSER and PGPASSWORD"
            )
        if ("does not exist" in said and "FATAL:" in said) or "pg_hba.conf" in said:
            return BadSpec(f"PostgreSQL at {where} refuses the connection: {said.rpartition('FATAL:')[2].strip()}")
        shard = _shard_named_in(str(error))
        if shard:
            return EngineUnavailable(
                f"shard {shard} of the PostgreSQL at {where} does not answer; nothing is answered without it. "
                "Start it, or give every shard a replica with replicas="
            )
        if lost or code.startswith(AWAY):
            return EngineUnavailable(
                f"PostgreSQL at {where} does not answer ({said}); start it, or check host and port in the URL"
            )
        if isinstance(error, errors.DiskFull):
            return DiskFull(f"the disk of the PostgreSQL at {where} is full; what was saved before is as it was")
        if isinstance(error, errors.InsufficientPrivilege):
            return BadSpec(
                f"the user {where.user!r} may not do this at {where} ({said}); "
                f"as an owner of the database: grant create on database {where.database} to {where.user}"
            )
        if isinstance(error, errors.UndefinedTable):
            return EngineConflict(f"PostgreSQL at {where}: {said}; the collection was dropped, or is not of our making")
        return EngineConflict(f"PostgreSQL at {where} refuses: {said}")

    def close(self) -> None:
        with self._lock:
            idle = self._idle[:]
            self._idle.clear()
        for connection in idle:
            connection.close()


def _let_go(idle: list[Connection], owner: int) -> None:
    """Close what a server kept, in the process that opened it."""
    while idle and owner == os.getpid():
        idle.pop().close()


def _set_up(connection: Connection) -> None:
    if connection.execute("select to_regclass('tfa.documents')").fetchone() == (None,):
        connection.execute("select pg_advisory_xact_lock(%s)", (LOCK_OF_SETUP,))  # several may begin at once
        connection.execute(SETUP)


def add_extension(connection: Connection, name: str, where: Address) -> None:
    if connection.execute("select 1 from pg_extension where extname = %s", (name,)).fetchone():
        return
    try:
        with connection.transaction():
            connection.execute("select pg_advisory_xact_lock(%s)", (LOCK_OF_SETUP,))
            connection.execute(
                psycopg.sql.SQL("create extension if not exists {}").format(psycopg.sql.Identifier(name))
            )
    except (errors.FeatureNotSupported, errors.UndefinedFile, errors.InsufficientPrivilege) as error:
        raise BadSpec(
            f"the database {where.database!r} at {where} lacks the extension {name!r} ({str(error).splitlines()[0]}); "
            f"install it there (vector is pgvector, 0.8 or newer), and as a superuser: create extension {name}"
        ) from None


def _shard_named_in(message: str) -> str | None:
    """HOST:PORT of the foreign server that an error of postgres_fdw names."""
    _, found, rest = message.partition('server "tfa ')
    return rest.partition('"')[0] if found else None
