"""A store in Milvus: collections of float32 vectors on a server or cluster, exact with the FLAT index.

Searches use consistency `Bounded`, which does not wait. Every write ends with a `Strong` request, after which
`Bounded` requests of any connection see it. Aliases are not used, since a proxy may keep using an old one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from tfa.errors import BadSpec, StoreConflict, StoreUnavailable
from tfa.search.store import Store
from tfa_milvus.collection import INDEXES, MilvusCollection, schema_of
from tfa_milvus.connection import BUILD_SECONDS, Connection, pymilvus
from tfa_milvus.documents import DOCUMENTS, Documents

LARGEST = 32_768  # maximum dimensions in Milvus


class MilvusStore(Store):
    """A store at `milvus://HOST:PORT[/DATABASE]`."""

    scheme = "milvus"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._documents = Documents(connection)

    @classmethod
    def connect(cls, url: str) -> MilvusStore:
        connection = Connection(url)
        connection.call("list_collections")
        return cls(connection)

    def create(self, name: str, dimensions: int, dtype: str = "float32") -> MilvusCollection:
        if dtype != "float32":
            raise BadSpec(f"dtype {dtype} is not supported by Milvus; use float32, the default")
        if not 2 <= dimensions <= LARGEST:
            raise BadSpec(f"{dimensions} dimensions are out of range for Milvus: 2 to {LARGEST}; reduce with --dims")
        # Concurrent creates of equal schemas both succeed in Milvus, so each schema has a unique description.
        schema = schema_of(dimensions, description=f"tfa {uuid4().hex}")
        try:
            if not self._connection.call("has_collection", name):
                self._connection.call("create_collection", name, schema=schema, consistency_level="Bounded")
                self._make_ready(name)
                return MilvusCollection(self._connection, name, dimensions)
        except StoreUnavailable as error:
            if "exist" not in str(error) and "duplicate" not in str(error):
                raise
        raise StoreConflict(
            f"collection {name!r} already exists in Milvus at {self._connection.address}; choose another name or drop "
            "it"
        )

    def _make_ready(self, name: str) -> None:
        """Index and load a collection; also completes one whose creator was killed."""
        if not self._connection.call("list_indexes", name):
            params = pymilvus().MilvusClient.prepare_index_params()
            params.add_index("vector", index_name="vector", metric_type="IP", **INDEXES[None])
            self._connection.call("create_index", name, params, timeout=BUILD_SECONDS)
        self._connection.call("load_collection", name, timeout=BUILD_SECONDS)

    def open(self, name: str) -> MilvusCollection:
        if not self._connection.call("has_collection", name):
            raise StoreConflict(
                f"collection {name!r} not found in Milvus at {self._connection.address}; rebuild the map"
            )
        about = self._connection.call("describe_collection", name)
        dimensions = _dimensions_of(about)
        if dimensions is None:
            raise self._foreign(name, "its fields are different")
        self._make_ready(name)
        index = self._connection.call("describe_index", name, "vector") or {}
        if index.get("metric_type") != "IP":
            raise self._foreign(name, f"its metric is {index.get('metric_type')}, not IP")
        return MilvusCollection(self._connection, name, dimensions, str(index.get("index_type")))

    def _foreign(self, name: str, why: str) -> StoreConflict:
        return StoreConflict(
            f"collection {name!r} in Milvus at {self._connection.address} was not created by tfa: {why}; choose "
            "another name"
        )

    def drop(self, name: str) -> None:
        self._connection.call("drop_collection", name)

    def names(self, prefix: str = "") -> list[str]:
        every = self._connection.call("list_collections")
        return sorted(name for name in every if name.startswith(prefix) and name != DOCUMENTS)

    def read(self, key: str) -> bytes | None:
        return self._documents.read(key)

    def read_latest(self, key: str) -> bytes | None:
        return self._documents.read(key, strongly=True)

    def put(self, key: str, data: bytes) -> None:
        self._documents.put(key, data)

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        return self._documents.swap(key, old, new)

    def keys(self, prefix: str = "") -> list[str]:
        return self._documents.keys(prefix)

    def erase(self, key: str) -> None:
        self._documents.erase(key)

    def put_pieces(self, folder: str, pieces: Mapping[int, bytes]) -> None:
        self._documents.put_pieces(folder, pieces)

    def read_pieces(self, folder: str, numbers: Sequence[int]) -> dict[int, bytes]:
        return self._documents.read_pieces(folder, numbers)

    def close(self) -> None:
        self._connection.close()


def _dimensions_of(about: dict[str, Any]) -> int | None:
    """Return the dimensions of a collection created by tfa; None if its fields differ."""
    own = {field.name: field for field in schema_of(2).fields}
    theirs = {field["name"]: field for field in about["fields"]}
    if own.keys() != theirs.keys() or any(theirs[name]["type"] != own[name].dtype for name in own):
        return None
    return int(theirs["vector"]["params"]["dim"])
