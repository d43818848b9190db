"""Documents in Milvus: text rows in one collection, and a head row per document that names its parts.

Milvus has no transactions, no compare-and-swap and no unique keys except for `upsert`. So the parts of a document are
written under a new version, and then the head row, which is replaced atomically, names that version. A swap first
claims the key:

    insert a claim, read all claims of the key with `Strong` consistency; proceed if it is the only one, else wait or
    withdraw

Claims are acknowledged before they are read, so of two claims the later one sees the earlier, and only one proceeds.
"""

from __future__ import annotations

import random
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

from tfa.errors import StoreConflict, StoreUnavailable
from tfa_milvus.connection import BUILD_SECONDS, SMALLEST_FIRST, WRITE_SECONDS, Connection, pymilvus

DOCUMENTS = "tfa_documents"
PART_BYTES = 48_000  # bytes of a part; 64,000 as text
PARTS = 200  # parts per request
ABANDONED_SECONDS = 30  # age after which a claim is considered abandoned
HOLDING_SECONDS = 10  # time after which the owner no longer trusts its claim
HEAD_SECONDS = 15  # time limit for writing the head row; with HOLDING_SECONDS less than ABANDONED_SECONDS
LEFT_SECONDS = 3600  # age after which parts of an unfinished write are deleted
READINGS = 100  # tries to read a document that is being replaced
Head = dict[str, Any]  # version, parts, data
_HEAD, _CLAIM = -1, -2  # part numbers of head rows and claims


class Documents:
    """Documents by key, on one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ready = False
        self._lock = threading.Lock()

    def read(self, key: str, strongly: bool = False) -> bytes | None:
        return self._read(key, strongly)[1]

    def _read(self, key: str, strongly: bool = False) -> tuple[Head | None, bytes | None]:
        """Return the head row and the content."""
        for _ in range(READINGS):
            head = self._head(key, strongly)
            if head is None:
                return None, None
            if not head["parts"]:
                return head, b64decode(head["data"])
            parts = list(self._parts(head["version"], head["parts"]))
            if len(parts) == head["parts"]:
                return head, b"".join(map(b64decode, parts))
            time.sleep(0.05)  # replaced during the read; the new head row names existing parts
        raise StoreConflict(
            f"document {key!r} in Milvus at {self._connection.address} is incomplete after {READINGS} tries; build the "
            "map again"
        )

    def put(self, key: str, data: bytes) -> None:
        self._replace(key, data, self._head(key, strongly=True))

    def _replace(self, key: str, data: bytes, before: Head | None, until: float | None = None) -> None:
        """Write the parts, then the head row unless `until` has passed, then delete the old parts."""
        version = f"{time.time_ns():020d}-{uuid4().hex}"
        pieces = _cut(data) if len(data) > PART_BYTES else []
        for start in range(0, len(pieces), PARTS):
            numbered = enumerate(pieces[start : start + PARTS], start)
            self._write([self._row(f"{version}/{part}", key, part, version, 0, piece) for part, piece in numbered])
        if pieces:
            self._settle()  # parts must be visible before the head row
        if until is not None and time.monotonic() > until:
            raise StoreUnavailable(
                f"Milvus at {self._connection.address} took more than {HOLDING_SECONDS} s to write document {key!r}, "
                "which is unchanged; try again"
            )
        head = self._row(_name(key), key, _HEAD, version, len(pieces), b"" if pieces else data)
        self._write([head], seconds=HEAD_SECONDS)
        self._settle()
        swept = f"{time.time_ns() - LEFT_SECONDS * 10**9:020d}"
        self._delete(f'document == "{_name(key)}" and part >= 0 and version < "{swept}" and version != "{version}"')
        if before is not None and before["parts"]:
            self._delete(f'version == "{before["version"]}" and part >= 0')

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        watched: dict[str, float] = {}  # other claims, with the time they were first seen
        while True:
            if self.read(key) != old and self._read(key, strongly=True)[1] != old:
                return False
            token, since = f"claim-{uuid4().hex}", time.monotonic()
            self._write([self._row(token, key, _CLAIM, f"{time.time_ns():020d}", 0, b"")])
            try:
                if self._alone(key, token, since, watched):
                    head, now = self._read(key, strongly=True)
                    if now == old:
                        self._replace(key, new, head, until=since + HOLDING_SECONDS)
                    return now == old
            finally:
                self._delete(f'name in ["{token}"]')
            time.sleep(random.uniform(0.02, 0.2))

    def _alone(self, key: str, token: str, since: float, watched: dict[str, float]) -> bool:
        """Return True when this is the only claim; wait for younger claims, return False if there is an older one.

        All claimants use the same order, so that one remains. A claim that stays too long is abandoned.
        """
        while time.monotonic() - since < HOLDING_SECONDS / 2:
            rows = self._request(f'document == "{_name(key)}" and part == {_CLAIM}', ["name", "version"], strongly=True)
            claims = {row["name"]: (row["version"], row["name"]) for row in rows}
            if token not in claims:
                return False  # another claimant considered this claim abandoned
            now = time.monotonic()
            others = [other for other in claims if other != token]
            for other in others:
                if now - watched.setdefault(other, now) > ABANDONED_SECONDS:
                    self._delete(f'name in ["{other}"]')
            if not others:
                return True
            if any(claims[other] < claims[token] for other in others):
                return False
            time.sleep(0.02)
        return False

    def keys(self, prefix: str = "") -> list[str]:
        found, last = list[str](), ""
        like = f' and name like "{_name(prefix)}%"' if prefix else ""
        while True:
            among = f'part == {_HEAD} and name > "{last}"{like}'
            rows = self._request(among, ["name"], limit=1000, **SMALLEST_FIRST)
            if not rows:
                return sorted(found)
            found += [bytes.fromhex(row["name"]).decode("utf-8", "surrogatepass") for row in rows]
            last = max(row["name"] for row in rows)

    def put_pieces(self, folder: str, pieces: Mapping[int, bytes]) -> None:
        """Write numbered rows of a folder, replacing earlier ones, and a head row for the folder."""
        self._write([self._row(_name(folder), folder, _HEAD, "", 0, b"")])
        rows = [
            self._row(f"{_name(folder)}/{number}/{part}", folder, part, str(number), -(-len(data) // PART_BYTES), cut)
            for number, data in pieces.items()
            for part, cut in enumerate(_cut(data))
        ]
        for start in range(0, len(rows), PARTS):
            self._write(rows[start : start + PARTS])
        self._settle()

    def read_pieces(self, folder: str, numbers: Sequence[int]) -> dict[int, bytes]:
        """Read the first part of each, which has the number of parts, then the other parts."""
        rows = {row["name"]: row for row in self._named(f"{_name(folder)}/{number}/0" for number in numbers)}
        others = [
            f"{_name(folder)}/{row['version']}/{part}" for row in rows.values() for part in range(1, row["parts"])
        ]
        rows |= {row["name"]: row for row in self._named(others)}
        found = dict[int, bytes]()
        for number in map(int, numbers):
            first = rows.get(f"{_name(folder)}/{number}/0")
            names = [f"{_name(folder)}/{number}/{part}" for part in range(max(first["parts"], 1))] if first else []
            if names and all(name in rows for name in names):
                found[number] = b"".join(b64decode(rows[name]["data"]) for name in names)
        return found

    def _named(self, names: Iterable[str]) -> Iterator[dict[str, Any]]:
        every = [f'"{name}"' for name in names]
        for start in range(0, len(every), PARTS):
            among = ", ".join(every[start : start + PARTS])
            yield from self._request(f"name in [{among}]", ["name", "version", "parts", "data"])

    def erase(self, key: str) -> None:
        self._delete(f'name in ["{_name(key)}"]')
        self._settle()
        self._delete(f'document == "{_name(key)}" and part >= 0')

    def _head(self, key: str, strongly: bool) -> Head | None:
        rows = self._request(f'name in ["{_name(key)}"]', ["version", "parts", "data"], strongly)
        return rows[0] if rows else None

    def _parts(self, version: str, number: int) -> Iterator[str]:
        for start in range(0, number, PARTS):
            condition = f'version == "{version}" and part >= {start} and part < {start + PARTS}'
            rows = self._request(condition, ["part", "data"])
            yield from (row["data"] for row in sorted(rows, key=lambda row: int(row["part"])))

    @staticmethod
    def _row(name: str, key: str, part: int, version: str, parts: int, data: bytes) -> dict[str, Any]:
        own = {"name": name, "document": _name(key), "part": part, "version": version, "parts": parts}
        return {**own, "data": b64encode(data).decode(), "vector": [0.0, 0.0]}

    def _write(self, rows: list[dict[str, Any]], seconds: float = WRITE_SECONDS) -> None:
        self._make_ready()
        self._connection.call("upsert", DOCUMENTS, rows, timeout=seconds)

    def _delete(self, condition: str) -> None:
        self._make_ready()
        self._connection.call("delete", DOCUMENTS, filter=condition, timeout=WRITE_SECONDS)

    def _settle(self) -> None:
        """Make all earlier writes visible to every connection."""
        self._request('name in ["0"]', ["name"], strongly=True)

    def _request(
        self, condition: str, fields: list[str], strongly: bool = False, **options: Any
    ) -> list[dict[str, Any]]:
        self._make_ready()
        level = "Strong" if strongly else "Bounded"
        found: list[dict[str, Any]] = self._connection.request(
            DOCUMENTS, "query", filter=condition, output_fields=fields, consistency_level=level, **options
        )
        return found

    def _make_ready(self) -> None:
        """Create the collection of documents if needed, and load it."""
        if self._ready:
            return
        with self._lock:
            if not self._connection.call("has_collection", DOCUMENTS):
                try:
                    self._connection.call("create_collection", DOCUMENTS, schema=_schema(), consistency_level="Bounded")
                except StoreUnavailable as error:
                    if "exist" not in str(error):  # created concurrently
                        raise
            if not self._connection.call("list_indexes", DOCUMENTS):
                params = pymilvus().MilvusClient.prepare_index_params()
                params.add_index("vector", index_name="vector", index_type="FLAT", metric_type="IP")
                self._connection.call("create_index", DOCUMENTS, params, timeout=BUILD_SECONDS)
            self._connection.call("load_collection", DOCUMENTS, timeout=BUILD_SECONDS)
            self._ready = True


def _cut(data: bytes) -> list[bytes]:
    return [data[at : at + PART_BYTES] for at in range(0, max(len(data), 1), PART_BYTES)]


def _name(key: str) -> str:
    """Encode a key without characters that need quoting; prefixes are preserved."""
    return key.encode("utf-8", "surrogatepass").hex()


def _schema() -> Any:
    library = pymilvus()
    kind = library.DataType
    schema = library.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("name", kind.VARCHAR, is_primary=True, max_length=4096)
    schema.add_field("document", kind.VARCHAR, max_length=4096)
    schema.add_field("part", kind.INT64)
    schema.add_field("version", kind.VARCHAR, max_length=64)
    schema.add_field("parts", kind.INT64)
    schema.add_field("data", kind.VARCHAR, max_length=65_535)
    schema.add_field("vector", kind.FLOAT_VECTOR, dim=2)  # every Milvus collection needs a vector
    return schema
