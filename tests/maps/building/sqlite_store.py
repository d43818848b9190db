"""A store in one SQLite file, which several processes can write."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from tests.search.memory_store import MemoryCollection
from tfa.errors import StoreConflict
from tfa.search.store import Collection, Entries, Store, Where

TABLES = """
create table if not exists collections (name text primary key, dims int);
create table if not exists entries (collection text, id int, vector blob, payload text, full blob,
                                    primary key (collection, id));
create table if not exists documents (key text primary key, data blob);
create table if not exists writes (collection text, id int);
"""


class SqliteCollection(Collection):
    dtype = "float32"

    def __init__(self, database: sqlite3.Connection, name: str, dimensions: int) -> None:
        self._database, self.name, self.dimensions = database, name, dimensions

    def write(self, entries: Entries) -> None:
        parts = zip(entries.ids.tolist(), entries.vectors, entries.payload, entries.full, strict=True)
        rows = [
            (self.name, own, np.asarray(vector, np.float32).tobytes(), json.dumps(payload), full)
            for own, vector, payload, full in parts
        ]
        with self._database:
            self._database.executemany("insert or replace into entries values (?, ?, ?, ?, ?)", rows)
            self._database.executemany("insert into writes values (?, ?)", [row[:2] for row in rows])

    def _all(self) -> MemoryCollection:
        kept = MemoryCollection(self.name, self.dimensions)
        question = "select id, vector, payload, full from entries where collection = ? order by id"
        rows = self._database.execute(question, (self.name,)).fetchall()
        if rows:
            vectors = np.stack([np.frombuffer(row[1], np.float32) for row in rows])
            ids = np.array([row[0] for row in rows])
            kept.write(Entries(ids, vectors, [json.loads(row[2]) for row in rows], [row[3] for row in rows]))
        return kept

    def delete(self, ids: Sequence[int] | np.ndarray) -> None:
        with self._database:
            rows = [(self.name, int(own)) for own in ids]
            self._database.executemany("delete from entries where collection = ? and id = ?", rows)

    def nearest(self, queries: np.ndarray, k: int, where: Where | None = None) -> tuple[np.ndarray, np.ndarray]:
        return self._all().nearest(queries, k, where)

    def fetch(self, ids: Sequence[int] | np.ndarray) -> Entries:
        return self._all().fetch(ids)

    def find(self, digests: Sequence[str]) -> dict[str, int]:
        return self._all().find(digests)

    def pages(self, size: int = 1000) -> Iterator[Entries]:
        return self._all().pages(size)

    def count(self) -> int:
        return self._all().count()

    def seal(self, index: str | None = None) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {**self._all().describe(), "store": "sqlite"}


class SqliteStore(Store):
    scheme = "sqlite"

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, timeout=60, check_same_thread=False)
        self._database.executescript(TABLES)

    @classmethod
    def connect(cls, url: str) -> SqliteStore:
        return cls(urlsplit(url).path)

    def create(self, name: str, dimensions: int, dtype: str = "float32") -> Collection:
        try:
            with self._database:
                self._database.execute("insert into collections values (?, ?)", (name, dimensions))
        except sqlite3.IntegrityError:
            raise StoreConflict(f"there is a collection {name}") from None
        return SqliteCollection(self._database, name, dimensions)

    def open(self, name: str) -> Collection:
        row = self._database.execute("select dims from collections where name = ?", (name,)).fetchone()
        if row is None:
            raise StoreConflict(f"there is no collection {name}")
        return SqliteCollection(self._database, name, row[0])

    def drop(self, name: str) -> None:
        with self._database:
            self._database.execute("delete from collections where name = ?", (name,))
            self._database.execute("delete from entries where collection = ?", (name,))

    def names(self, prefix: str = "") -> list[str]:
        rows = self._database.execute("select name from collections order by name")
        return [row[0] for row in rows if row[0].startswith(prefix)]

    def read(self, key: str) -> bytes | None:
        row = self._database.execute("select data from documents where key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def put(self, key: str, data: bytes) -> None:
        with self._database:
            self._database.execute("insert or replace into documents values (?, ?)", (key, data))

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        with self._database:
            if old is None:
                done = self._database.execute("insert or ignore into documents values (?, ?)", (key, new))
            else:
                done = self._database.execute(
                    "update documents set data = ? where key = ? and data = ?", (new, key, old)
                )
            return done.rowcount == 1

    def keys(self, prefix: str = "") -> list[str]:
        rows = self._database.execute("select key from documents order by key")
        return [row[0] for row in rows if row[0].startswith(prefix)]

    def erase(self, key: str) -> None:
        with self._database:
            self._database.execute("delete from documents where key = ?", (key,))

    def close(self) -> None:
        self._database.close()
