"""Documents and pieces as LanceDB tables, and translation of LanceDB errors.

Each version of a document is a small numbered table that is written once. Replacing version n creates table n + 1. Of
concurrent writers, Lance grants one the first commit of the table, in folders and buckets alike; that one wins, others
fail or commit second. The highest number is the current document. An erased document is a version without data, so
that numbers are never reused. Old versions are deleted, possibly before their writer checked whether it won; so each
version lists the writers of earlier versions.

Pieces are rows of one table per folder and are read with one request.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import isfunction
from typing import Any, TypeVar
from uuid import uuid4

import pyarrow as pa

from tfa.errors import DiskFull, StoreConflict, StoreUnavailable, TfaError

# --- errors --------------------------------------------------------------------------------------------------------


FAILURES = (ValueError, OSError, RuntimeError)  # exceptions of LanceDB
_ABSENT = ("not found", "no such", "does not exist")
_Class = TypeVar("_Class", bound=type)


def is_absent(error: Exception) -> bool:
    """Return True if the error means that a table or a version is missing."""
    return any(word in str(error).lower() for word in _ABSENT)


def translate_errors(cls: _Class) -> _Class:
    """Decorate a class whose objects have a `place`, so that errors of its methods name it."""

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def wrapper(self: Any, *arguments: Any, **options: Any) -> Any:
            try:
                return method(self, *arguments, **options)
            except FAILURES as error:
                raise _translate(error, self.place) from error

        return wrapper

    for name, method in vars(cls).copy().items():
        if isfunction(method):
            setattr(cls, name, decorate(method))
    return cls


def _translate(error: Exception, place: str) -> TfaError:
    said = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    if "No space left" in said or "os error 28" in said:
        return DiskFull(f"the disk of {place} is full; existing data is unchanged. Free disk space and try again")
    if "NoSuchBucket" in str(error):
        return StoreUnavailable(f"the bucket of {place} does not exist; check its name and endpoint=, or create it")
    if "credentials" in str(error).lower():
        return StoreUnavailable(
            f"no credentials for {place}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
        )
    if is_absent(error):
        return StoreConflict(f"LanceDB in {place}: a table no longer exists ({said}); rebuild the map")
    return StoreUnavailable(
        f"LanceDB failed in {place} ({said}); check the folder or bucket name and write permission, and for a bucket "
        "endpoint= and the credentials in the environment"
    )


# --- documents -----------------------------------------------------------------------------------------------------


_OLD_VERSIONS = 8  # older versions kept for concurrent readers
_NAMED_WRITERS = 256  # writers of older versions listed in a version
_DOCUMENT_SCHEMA = pa.schema(
    [
        pa.field("data", pa.large_binary()),  # null: erased
        pa.field("writer", pa.string()),
        pa.field("before", pa.list_(pa.string())),
    ]
)
_PAUSE = 0.05  # maximum seconds between retries
_GIVE_UP_SECONDS = 60.0  # time without a change after which unreadable versions are an error


@dataclass(frozen=True)
class _Version:
    number: int
    data: bytes | None
    writers: tuple[str, ...] = ()  # of all versions, oldest first


_NONE = _Version(0, None)


class DocumentTables:
    def __init__(self, database: Any) -> None:
        self._database = database
        self._erased: dict[str, bool] = {}  # by version; versions never change

    def read(self, key: str) -> bytes | None:
        return self._latest(key).data

    def put(self, key: str, data: bytes | None) -> None:
        while not self._created(key, self._latest(key), data):  # one of the concurrent writers succeeds each time
            time.sleep(random.uniform(0, _PAUSE))

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        latest = self._latest(key)
        return latest.data == old and self._created(key, latest, new)

    def erase(self, key: str) -> None:
        if self._latest(key).data is not None:
            self.put(key, None)

    def keys(self, prefix: str) -> list[str]:
        there = {_decode_key(table): table for table in sorted(self._tables(_encode_key(prefix)))}  # newest versions
        for key, table in there.items():
            if table not in self._erased:
                self._erased[table] = self._latest(key).data is None
        return sorted(key for key, table in there.items() if not self._erased[table])

    def _tables(self, beginning: str) -> list[str]:
        return [name for name in table_names(self._database) if name.startswith(beginning)]

    def _latest(self, key: str) -> _Version:
        before, deadline = list[str](), 0.0
        while True:
            there = sorted(self._tables(_encode_key(key) + "."), reverse=True)
            for name in there:
                version = self._version(name)
                if version is not None:
                    return version
            if not there or there == self._tables(_encode_key(key) + "."):
                return _NONE
            if there != before:  # writers make progress
                before, deadline = there, time.monotonic() + _GIVE_UP_SECONDS
            elif time.monotonic() > deadline:
                raise RuntimeError(f"no version of the document {key!r} can be read")
            time.sleep(random.uniform(0, _PAUSE))

    def _version(self, name: str) -> _Version | None:
        """Read a version; None if it is incomplete or was deleted."""
        try:
            table = self._database.open_table(name)
            table.checkout(1)
            row = table.to_arrow().to_pylist()[0]
        except FAILURES as error:
            if is_absent(error):
                return None
            raise
        return _Version(int(name.rpartition(".")[2]), row["data"], (*row["before"], row["writer"]))

    def _created(self, key: str, latest: _Version, data: bytes | None) -> bool:
        """Create the version after `latest`; return True if this writer won."""
        number, writer = latest.number + 1, uuid4().hex
        name = f"{_encode_key(key)}.{number:012}"
        try:
            row = {"data": [data], "writer": [writer], "before": [latest.writers[-_NAMED_WRITERS:]]}
            self._database.create_table(name, pa.table(row, schema=_DOCUMENT_SCHEMA), mode="create")
        except FAILURES:
            if self._version(name) is None and self._latest(key).number <= number:
                raise
        newest = self._latest(key)
        if writer not in newest.writers:
            mine = self._version(name) if newest.number > number else None
            if mine is not None and mine.writers[-1] == writer:
                # The version with our number was deleted before we wrote ours.
                self._database.drop_table(name, ignore_missing=True)
            return False
        for old in sorted(self._tables(_encode_key(key) + "."))[: -_OLD_VERSIONS - 1]:
            self._database.drop_table(old, ignore_missing=True)
        return True


def table_names(database: Any) -> list[str]:
    """Return the names of all tables, read page by page."""
    page = database.list_tables()
    names = list[str](page.tables)
    while page.page_token:
        page = database.list_tables(page_token=page.page_token)
        names += page.tables
    return names


def _encode_key(key: str) -> str:
    """Encode a key as prefix of a table name: letters, digits and _ unchanged, other bytes in hexadecimal."""
    return "".join(
        chr(byte) if byte < 128 and (chr(byte).isalnum() or chr(byte) == "_") else f"-{byte:02x}"
        for byte in key.encode()
    )


def _decode_key(table: str) -> str:
    stem = table.rpartition(".")[0].encode()
    return re.sub(rb"-([0-9a-f]{2})", lambda match: bytes([int(match[1], 16)]), stem).decode()


_PIECE_SCHEMA = pa.schema([pa.field("number", pa.int64()), pa.field("data", pa.large_binary())])
_PIECES_AT_ONCE = 1000  # pieces per write, about 60 MB


class PieceTables:
    def __init__(self, database: Any) -> None:
        self._database, self._lock = database, threading.Lock()
        self._open: dict[str, Any] = {}  # tables by folder; a table is never recreated

    def put(self, folder: str, pieces: Mapping[int, bytes]) -> None:
        numbers = sorted(pieces)
        for start in range(0, len(numbers), _PIECES_AT_ONCE):
            part = numbers[start : start + _PIECES_AT_ONCE]
            rows = pa.table({"number": part, "data": [pieces[one] for one in part]}, schema=_PIECE_SCHEMA)
            merge = self._made(folder).merge_insert("number")
            merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def read(self, folder: str, numbers: Sequence[int]) -> dict[int, bytes]:
        table = self._there(folder) if numbers else None
        if table is None:
            return {}
        condition = f"number in ({', '.join(str(int(one)) for one in numbers)})"
        rows = table.search().where(condition).select(["number", "data"]).to_arrow()
        return dict(zip(rows["number"].to_pylist(), rows["data"].to_pylist(), strict=True))

    def seal(self, folder: str) -> None:
        """Compact the table of a folder and index piece numbers."""
        from lancedb.index import BTree

        table = self._there(folder)
        if table is not None:
            table.optimize()
            table.create_index("number", config=BTree(), replace=True)

    def folders(self, prefix: str) -> list[str]:
        folders = (_decode_key(f"{table}.") for table in table_names(self._database))
        return [folder for folder in folders if folder.startswith(prefix)]

    def erase(self, folder: str) -> None:
        self._database.drop_table(_encode_key(folder), ignore_missing=True)
        self._open.pop(folder, None)

    def _there(self, folder: str) -> Any:
        with self._lock:
            if folder not in self._open:
                try:
                    self._open[folder] = self._database.open_table(_encode_key(folder))
                except FAILURES as error:
                    if not is_absent(error):
                        raise
                    return None
            return self._open[folder]

    def _made(self, folder: str) -> Any:
        table = self._there(folder)
        if table is None:
            try:
                self._database.create_table(_encode_key(folder), schema=_PIECE_SCHEMA, mode="create")
            except FAILURES:
                if self._there(folder) is None:  # else another writer created it
                    raise
            table = self._there(folder)
        return table
