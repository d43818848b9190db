"""Stores: a server, folder or bucket that contains collections of vectors, and documents.

A store handles ids, vectors, payloads and bytes, but not heads: bias, rotation and reduction are folded into the
vectors (`search.reduced`); ties, exact scores and confidence are computed from its results.

A collection is one physical version of a map. A document, the map's header, names the collection in use, and `swap`
replaces it atomically: aliases of databases may be updated late.

PostgreSQL is built in. Another distribution adds a store with an entry point whose name is the URL scheme
and whose value opens a URL; `tfa_bench.store_contract` is the test suite for it.

    [project.entry-points."tfa.stores"]
    milvus = "tfa_milvus:MilvusStore.connect"
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import numpy as np

from tfa.errors import BadSpec, MissingExtra

Payload = Mapping[str, Any]  # path, digest, session, position and other JSON values
NO_ID = -1  # id that pads rows with fewer results

_GROUP = "tfa.stores"
_BUILT_IN = {"postgres": "tfa.search.postgres:PostgresStore.connect"}
# Stores of this project in other distributions
_DISTRIBUTIONS = {"lance": "tfa-lance", "lance+s3": "tfa-lance", "milvus": "tfa-milvus", "qdrant": "tfa-qdrant"}
URL_EXAMPLES = (
    "postgres://USER@HOST:5432/DATABASE/NAME, lance:///FOLDER/NAME, lance+s3://BUCKET/PREFIX/NAME, "
    "milvus://HOST:19530/NAME, qdrant:///FOLDER/NAME"
)


@dataclass(frozen=True)
class Region:
    """A box including its edges, in degrees on the globe or meters in a plane."""

    west: float  # lon or x
    south: float  # lat or y
    east: float
    north: float

    def __post_init__(self) -> None:
        edges = (self.west, self.south, self.east, self.north)
        if not all(map(math.isfinite, edges)) or self.west > self.east or self.south > self.north:
            raise BadSpec(
                f"{', '.join(f'{edge:g}' for edge in edges)} is not a region; use west, south, east, north (degrees, "
                "or meters if positions are x and y) with west <= east and south <= north"
            )


@dataclass(frozen=True)
class Where:
    """Filter of map images: in one of these sessions (any if empty) and within the region (anywhere if None).

    An image without a position is in no region.
    """

    sessions: tuple[str, ...] = ()
    region: Region | None = None

    def admits(self, payload: Payload) -> bool:
        """Return True if an image passes the filter. Reference definition; stores filter themselves."""
        if self.sessions and payload.get("session") not in self.sessions:
            return False
        if self.region is None:
            return True
        place = read_coordinates(payload)
        box = self.region
        return place is not None and box.west <= place[0] <= box.east and box.south <= place[1] <= box.north


def read_coordinates(payload: Payload) -> tuple[float, float] | None:
    """Return (lon or x, lat or y) of a payload's position."""
    position = payload.get("position")
    if not position:
        return None
    return (position["lon"], position["lat"]) if "lat" in position else (position["x"], position["y"])


@dataclass(frozen=True)
class Entries:
    """Images of a collection."""

    ids: np.ndarray  # (m,), int64
    vectors: np.ndarray  # (m, D), float32
    payload: Sequence[Payload]
    full: Sequence[bytes]  # full rows for rescoring candidates; empty if not stored

    def __len__(self) -> int:
        return len(self.ids)


class Collection(ABC):
    """Vectors, each with an id, a payload and bytes. Scores are inner products."""

    name: str
    dimensions: int
    dtype: str  # type of stored vectors, such as float32 or float16

    @abstractmethod
    def write(self, entries: Entries) -> None:
        """Upsert by id. Durable and searchable on return; idempotent."""

    @abstractmethod
    def delete(self, ids: Sequence[int] | np.ndarray) -> None:
        """Remove images. Missing ids are ignored."""

    @abstractmethod
    def nearest(self, queries: np.ndarray, k: int, where: Where | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return ids and float32 scores `(q, k')` of the k best, k' = min(k, count); ties to the smaller id.

        Exact unless `seal` built an approximate index. If fewer pass the filter, rows are padded with NO_ID and −∞.
        """

    @abstractmethod
    def fetch(self, ids: Sequence[int] | np.ndarray) -> Entries:
        """Return the images that exist, in the order of `ids`, with one request."""

    @abstractmethod
    def find(self, digests: Sequence[str]) -> dict[str, int]:
        """Return the smallest id of each digest that exists."""

    @abstractmethod
    def pages(self, size: int = 1000) -> Iterator[Entries]:
        """Yield all images by increasing id, `size` at a time."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of images."""

    @abstractmethod
    def seal(self, index: str | None = None) -> None:
        """Flush after the last write of a build and build the named index; None for exact search."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return `store`, `collection`, `count`, `dimensions`, `dtype` and other facts, for JSON."""

    def fit(self, vectors: np.ndarray) -> np.ndarray:
        """Return vectors `(m, D)` as float32; raise BadSpec if D is not the collection's dimension."""
        vectors = np.asarray(vectors, np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self.dimensions:
            raise BadSpec(
                f"vectors of shape {vectors.shape} do not fit {self.name!r}, which has {self.dimensions} dimensions"
            )
        return vectors


class Store(ABC):
    """Collections and documents. An entry point names the function that opens a URL, see above."""

    scheme: str  # of its URLs
    one_process: bool = False  # whether only one process at a time can use it

    @abstractmethod
    def create(self, name: str, dimensions: int, dtype: str = "float32") -> Collection:
        """Create an empty collection; raise StoreConflict if the name exists."""

    @abstractmethod
    def open(self, name: str) -> Collection:
        """Open a collection; raise StoreConflict if it is missing or was not created by tfa."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Delete a collection and its contents. A missing collection is ignored."""

    @abstractmethod
    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all collections that begin with `prefix`, sorted."""

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """Return a document as last written by any process; None if it does not exist."""

    def read_latest(self, key: str) -> bytes | None:
        """Return the latest version of a document, waiting if needed; `read` may lag for a moment."""
        return self.read(key)

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Write a document of any size (about 100 MB) durably and atomically."""

    @abstractmethod
    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """Replace a small document if it equals `old` (None: if it does not exist); return False otherwise.

        Of concurrent calls at most one succeeds.
        """

    @abstractmethod
    def keys(self, prefix: str = "") -> list[str]:
        """Return the sorted keys of all documents that begin with `prefix`; pieces by key or folder."""

    @abstractmethod
    def erase(self, key: str) -> None:
        """Delete a document, or a folder of pieces returned by `keys`. A missing key is ignored."""

    def put_pieces(self, folder: str, pieces: Mapping[int, bytes]) -> None:
        """Write many small numbered documents into a folder, whose name ends with a slash.

        Durable, idempotent, and with few requests if the store supports that. Pieces never change.
        """
        for number, data in pieces.items():
            self.put(f"{folder}{number}", data)

    def read_pieces(self, folder: str, numbers: Sequence[int]) -> dict[int, bytes]:
        """Return the pieces that exist, by number, with one request if the store supports that."""
        found = {int(number): self.read(f"{folder}{number}") for number in numbers}
        return {number: data for number, data in found.items() if data is not None}

    def seal_pieces(self, folder: str) -> None:  # noqa: B027  # optional
        """Index pieces for fast reads, after the last of many writes."""

    @abstractmethod
    def close(self) -> None:
        """Close connections."""


Opener = Callable[[str], Store]  # opens a store URL without a map name


def is_url(text: object) -> bool:
    """Return True if this is the URL of a map in a store, not a folder."""
    return isinstance(text, str) and "://" in text


def hide_password(url: str) -> str:
    """Return the URL without its password, for display."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, f"{parts.username}:***@{host}", parts.path, parts.query, parts.fragment))


@dataclass(frozen=True)
class MapLocation:
    """Location of a map: a folder, or a URL in a store, displayed without its password."""

    text: str

    @property
    def in_store(self) -> bool:
        return is_url(self.text)

    @property
    def folder(self) -> Path:
        """Folder of a map that is not in a store."""
        assert not self.in_store, "a map in a store has no folder"
        return Path(self.text)

    def __str__(self) -> str:
        return hide_password(self.text) if self.in_store else str(Path(self.text))


def split_map_url(url: str) -> tuple[str, str]:
    """Split a map URL into store URL and map name; raise BadSpec for an unknown scheme."""
    parts = urlsplit(url)
    find_opener(url)
    base, _, name = parts.path.rstrip("/").rpartition("/")
    if not (name.isascii() and name.replace("_", "a").isalnum() and name[0].isalpha() and len(name) <= 40):
        raise BadSpec(
            f"{hide_password(url)}: {name!r} is not a valid map name; use at most 40 letters, digits and underscores, "
            f"starting with a letter. For example {URL_EXAMPLES}"
        )
    return urlunsplit((parts.scheme, parts.netloc, base, parts.query, "")), name


def open_map_store(url: str) -> tuple[Store, str]:
    """Connect to the store of a map URL; return the store and the map name.

    Raises StoreUnavailable if the store does not respond.
    """
    base, name = split_map_url(url)
    opener = find_opener(base)
    with _explain_missing(urlsplit(url).scheme):
        return opener(base), name


def find_opener(url: str) -> Opener:
    """Return the function that opens the store of a URL; raise BadSpec with installed schemes if there is none."""
    scheme = urlsplit(url).scheme
    if scheme in _BUILT_IN:
        module, _, attributes = _BUILT_IN[scheme].partition(":")
        with _explain_missing(scheme):
            return attrgetter(attributes)(import_module(module))
    from tfa.core.plugins import load_plugin, plugin_names  # takes 30 ms to import

    plugin: Opener | None = load_plugin(_GROUP, scheme, _BUILT_IN)
    if plugin is not None:
        return plugin
    schemes = [*_BUILT_IN, *plugin_names(_GROUP, _BUILT_IN)]
    if scheme in _DISTRIBUTIONS:
        hint = f"; install it with: pip install {_DISTRIBUTIONS[scheme]}"
    else:
        near = get_close_matches(scheme, [*schemes, *_DISTRIBUTIONS], 1)
        hint = f"; did you mean {near[0]}://?" if near else ""
    installed = ", ".join(f"{one}://" for one in schemes)
    raise BadSpec(f"{hide_password(url)}: no store for {scheme}:// is installed; available: {installed}{hint}")


@contextmanager
def _explain_missing(scheme: str) -> Iterator[None]:
    """Raise MissingExtra if a package that a store needs is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if scheme not in _BUILT_IN or (error.name or "").startswith("tfa"):
            raise
        raise MissingExtra(
            f"{scheme}:// maps need {error.name}; install with: pip install 'tfa-vpr[{scheme}]'"
        ) from None
