"""Documents in LanceDB: each version of one is a small table that is written once and has a number.

Who replaces version n creates table n + 1. Of several that do, Lance gives one the first commit of the table, in a
folder and in a bucket alike, and that one counts; others fail, or their commit comes second. The highest number is the
document. A document that was erased is a version without data, so that numbers never begin again. Old versions are
taken away, perhaps before their writer looked whether it had won; so each version names the writers of those before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa

from tfa.search.engines.lance_errors import FAILURES, is_absent

KEPT = 8  # older versions, for readers on their way to them
NAMED = 256  # writers of older versions that a version names
SCHEMA = pa.schema(
    [
        pa.field("data", pa.large_binary()),  # null: erased
        pa.field("writer", pa.string()),
        pa.field("before", pa.list_(pa.string())),
    ]
)
ATTEMPTS = 100  # of a put against others, and of a read that versions overtake


@dataclass(frozen=True)
class Version:
    number: int
    data: bytes | None
    writers: tuple[str, ...] = ()  # its own last, those of the versions before it first


NONE = Version(0, None)


class Documents:
    """Those of one LanceDB connection."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self._erased: dict[str, bool] = {}  # of versions; what is written once never changes

    def read(self, key: str) -> bytes | None:
        return self._latest(key).data

    def put(self, key: str, data: bytes | None) -> None:
        for _ in range(ATTEMPTS):
            if self._created(key, self._latest(key), data):
                return
        raise RuntimeError(f"too many others write the document {key!r}")

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        latest = self._latest(key)
        return latest.data == old and self._created(key, latest, new)

    def erase(self, key: str) -> None:
        if self._latest(key).data is not None:
            self.put(key, None)

    def keys(self, prefix: str) -> list[str]:
        there = {key_of(table): table for table in sorted(self._tables(stem(prefix)))}  # the newest of each
        return sorted(key for key, table in there.items() if not self._is_erased(key, table))

    def _is_erased(self, key: str, highest: str) -> bool:
        if highest not in self._erased:
            self._erased[highest] = self._latest(key).data is None
        return self._erased[highest]

    def _tables(self, beginning: str) -> list[str]:
        return [name for name in table_names(self._database) if name.startswith(beginning)]

    def _latest(self, key: str) -> Version:
        for _ in range(ATTEMPTS):
            there = sorted(self._tables(stem(key) + "."), reverse=True)
            for name in there:
                version = self._version(name)
                if version is not None:
                    return version
            if not there or there == self._tables(stem(key) + "."):
                return NONE
        raise RuntimeError(f"too many others write the document {key!r}")

    def _version(self, name: str) -> Version | None:
        """None if it is still being created, was never finished, or is old and was taken away."""
        try:
            table = self._database.open_table(name)
            table.checkout(1)
            row = table.to_arrow().to_pylist()[0]
        except FAILURES as error:
            if is_absent(error):
                return None
            raise
        return Version(int(name.rpartition(".")[2]), row["data"], (*row["before"], row["writer"]))

    def _created(self, key: str, latest: Version, data: bytes | None) -> bool:
        """Whether the version after `latest` is ours."""
        number, writer = latest.number + 1, uuid4().hex
        name = f"{stem(key)}.{number:012}"
        try:
            row = {"data": [data], "writer": [writer], "before": [latest.writers[-NAMED:]]}
            self._database.create_table(name, pa.table(row, schema=SCHEMA), mode="create")
        except FAILURES:
            if self._version(name) is None and self._latest(key).number <= number:
                raise
        newest = self._latest(key)
        if writer not in newest.writers:
            mine = self._version(name) if newest.number > number else None
            if mine is not None and mine.writers[-1] == writer:
                self._database.drop_table(name, ignore_missing=True)  # our number had been taken away before we came
            return False
        for old in sorted(self._tables(stem(key) + "."))[: -KEPT - 1]:
            self._database.drop_table(old, ignore_missing=True)
        return True


def table_names(database: Any) -> list[str]:
    """Of all tables, page by page."""
    names, page = list[str](), database.list_tables()
    names += page.tables
    while page.page_token:
        page = database.list_tables(page_token=page.page_token)
        names += page.tables
    return names


def stem(key: str) -> str:
    """A key as the beginning of a table's name: letters, digits and _ as they are, other bytes in hexadecimal."""
    return "".join(
        chr(byte) if byte < 128 and (chr(byte).isalnum() or chr(byte) == "_") else f"-{byte:02x}"
        for byte in key.encode()
    )


def key_of(table: str) -> str:
    stem = table.rpartition(".")[0].encode()
    return re.sub(rb"-([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), stem).decode()
