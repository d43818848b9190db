"""LanceDB as a store: tables in a folder (`lance:///FOLDER`) or in a bucket (`lance+s3://BUCKET/PREFIX`), no server.

Keys of a bucket come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION); another service than
Amazon's is named by `?endpoint=http://HOST:PORT`, or by AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from urllib.parse import parse_qs, unquote, urlsplit

from tfa.errors import BadSpec, EngineConflict, MissingExtra
from tfa.search.engines.lance_errors import FAILURES, in_our_words, is_absent
from tfa.search.store import Collection, Store

for own_log in ("LANCEDB_LOG", "LANCE_LOG", "RUST_LOG"):  # it logs a line a query otherwise
    os.environ.setdefault(own_log, "error")
try:
    import lancedb

    from tfa.search.engines.lance_collection import TYPES, LanceCollection, schema_of
    from tfa.search.engines.lance_documents import Documents, table_names
    from tfa.search.engines.lance_pieces import Pieces
except ImportError as missing:
    if (missing.name or "").startswith("tfa"):
        raise
    raise MissingExtra(
        f"a map in LanceDB needs {missing.name}, which is not installed; install with: pip install 'tfa-vpr[lance]'"
    ) from None


AT_ONCE = timedelta(0)  # how old an answer may be


class LanceStore(Store):
    """Collections are tables; documents are tables in the folder `documents` beside them, pieces in `pieces`."""

    scheme = "lance"

    def __init__(self, place: str, options: dict[str, str]) -> None:
        self.place = place
        self._connect(options)

    @in_our_words
    def _connect(self, options: dict[str, str]) -> None:
        self._tables = lancedb.connect(self.place, read_consistency_interval=AT_ONCE, storage_options=options)
        below = self.place.rstrip("/")
        self._documents = Documents(lancedb.connect(f"{below}/documents", storage_options=options))
        pieces = lancedb.connect(f"{below}/pieces", read_consistency_interval=AT_ONCE, storage_options=options)
        self._pieces = Pieces(pieces)

    @classmethod
    def connect(cls, url: str) -> LanceStore:
        parts = urlsplit(url)
        asked = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        unknown = sorted(set(asked) - {"endpoint", "region"})
        if unknown:
            raise BadSpec(f"a lance URL takes endpoint= and region=, not {unknown[0]}=")
        if parts.scheme == "lance+s3":
            if not parts.netloc:
                raise BadSpec(f"{url} names no bucket; give lance+s3://BUCKET/PREFIX/NAME")
            options = {f"aws_{key}": value for key, value in asked.items()}  # so spelt they come before the environment
            endpoint = asked.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL", "")
            if endpoint.startswith("http://"):
                options["allow_http"] = "true"
            return cls(f"s3://{parts.netloc}{parts.path}", options)
        if parts.netloc or not parts.path:
            raise BadSpec(f"{url} names no folder; three slashes begin a path: lance:///FOLDER/NAME")
        return cls(unquote(parts.path), {})

    @in_our_words
    def create(self, name: str, dimensions: int, dtype: str = "float32") -> Collection:
        if dtype not in TYPES:
            raise BadSpec(f"LanceDB stores vectors in {' or '.join(TYPES)} here, not {dtype!r}")
        try:
            self._tables.create_table(name, schema=schema_of(dimensions, dtype), mode="create")
        except FAILURES as error:
            if "exist" not in str(error) and "conflict" not in str(error):
                raise
            raise EngineConflict(
                f"there is a collection {name!r} in {self.place} already; choose another name, or drop it"
            ) from None
        return self.open(name)

    @in_our_words
    def open(self, name: str) -> Collection:
        try:
            table = self._tables.open_table(name)
        except FAILURES as error:
            if not is_absent(error):
                raise
            raise EngineConflict(f"there is no collection {name!r} in {self.place}; build the map again") from None
        if b"tfa" not in (table.schema.metadata or {}):
            raise EngineConflict(f"the table {name!r} in {self.place} is not of our making; choose another name")
        return LanceCollection(table, name, self.place)

    @in_our_words
    def drop(self, name: str) -> None:
        self._tables.drop_table(name, ignore_missing=True)  # type: ignore[call-arg]

    @in_our_words
    def names(self, prefix: str = "") -> list[str]:
        return sorted(name for name in table_names(self._tables) if name.startswith(prefix))

    @in_our_words
    def read(self, key: str) -> bytes | None:
        return self._documents.read(key)

    @in_our_words
    def put(self, key: str, data: bytes) -> None:
        self._documents.put(key, data)

    @in_our_words
    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        return self._documents.swap(key, old, new)

    @in_our_words
    def keys(self, prefix: str = "") -> list[str]:
        return sorted([*self._documents.keys(prefix), *self._pieces.folders(prefix)])

    @in_our_words
    def erase(self, key: str) -> None:
        if key.endswith("/"):
            self._pieces.erase(key)
        else:
            self._documents.erase(key)

    @in_our_words
    def put_pieces(self, folder: str, pieces: Mapping[int, bytes]) -> None:
        self._pieces.put(folder, pieces)

    @in_our_words
    def read_pieces(self, folder: str, numbers: Sequence[int]) -> dict[int, bytes]:
        return self._pieces.read(folder, numbers)

    @in_our_words
    def seal_pieces(self, folder: str) -> None:
        self._pieces.seal(folder)

    def close(self) -> None:
        """There is no connection."""
