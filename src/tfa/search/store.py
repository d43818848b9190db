"""Stores: a server, a folder or a bucket that holds collections of vectors, and documents beside them.

A store knows ids, vectors, payloads and bytes, nothing of heads: bias, rotation and reduction are folded into the
vectors before (`search.reduced`), and ties, scores from full vectors and confidence are computed after.

A collection is one physical version of a map. A document, the map's header, says which collection answers, and `swap`
replaces it all at once: databases' aliases may be seen late.

PostgreSQL and LanceDB are here. Another distribution adds a store by an entry point whose name is the URL scheme and
whose value opens a URL; `tfa.search.store_contract` is the test suite for it.

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

Payload = Mapping[str, Any]  # path, digest, session, position and what else JSON can hold
NO_ID = -1  # the id in the places of a row that has fewer answers

_GROUP = "tfa.stores"
_BUILT_IN = {
    "postgres": "tfa.search.postgres:PostgresStore.connect",
    "lance": "tfa.search.lance:LanceStore.connect",
    "lance+s3": "tfa.search.lance:LanceStore.connect",
}
_DISTRIBUTIONS = {"milvus": "tfa-milvus", "qdrant": "tfa-qdrant"}  # stores of this project that are installed apart
URL_EXAMPLES = (
    "postgres://USER@HOST:5432/DATABASE/NAME, lance:///FOLDER/NAME, lance+s3://BUCKET/PREFIX/NAME, "
    "milvus://HOST:19530/NAME, qdrant:///FOLDER/NAME"
)


@dataclass(frozen=True)
class Region:
    """A box with its edges: degrees if positions are on the globe, meters if they are in a plane."""

    west: float  # lon or x
    south: float  # lat or y
    east: float
    north: float

    def __post_init__(self) -> None:
        edges = (self.west, self.south, self.east, self.north)
        if not all(map(math.isfinite, edges)) or self.west > self.east or self.south > self.north:
            raise BadSpec(
                f"{', '.join(f'{edge:g}' for edge in edges)} is not a region; give west, south, east, north (degrees, "
                "or meters if positions are x and y), west and south not beyond east and north"
            )


@dataclass(frozen=True)
class Where:
    """Which images may answer: those of one of these sessions (of any if empty) within the region (anywhere if None).

    An image without a position is in no region.
    """

    sessions: tuple[str, ...] = ()
    region: Region | None = None

    def admits(self, payload: Payload) -> bool:
        """Say whether an image may answer, by the definition; stores filter in their own ways."""
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
    """Images as a collection holds them."""

    ids: np.ndarray  # m, int64
    vectors: np.ndarray  # m D, float32
    payload: Sequence[Payload]
    full: Sequence[bytes]  # the full rows that candidates are scored again with; empty if not stored

    def __len__(self) -> int:
        return len(self.ids)


class Collection(ABC):
    """Vectors with an id, a payload and some bytes each. Scores are plain inner products."""

    name: str
    dimensions: int
    dtype: str  # float32, float16 or another type that vectors are stored in

    @abstractmethod
    def write(self, entries: Entries) -> None:
        """Add or replace by id. On return the images are durable and can be found. Idempotent."""

    @abstractmethod
    def delete(self, ids: Sequence[int] | np.ndarray) -> None:
        """Remove images. An id that is missing is not an error."""

    @abstractmethod
    def nearest(self, queries: np.ndarray, k: int, where: Where | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return ids `q k'` and scores `q k'` (float32) of the k best, k' = min(k, count); ties to the smaller id.

        Exact unless `seal` made an approximate index. If fewer pass the filter, NO_ID and −∞ follow.
        """

    @abstractmethod
    def fetch(self, ids: Sequence[int] | np.ndarray) -> Entries:
        """Return those of the ids that are there, in the order of `ids`, in one request."""

    @abstractmethod
    def find(self, digests: Sequence[str]) -> dict[str, int]:
        """Return the smallest id of each digest that is there."""

    @abstractmethod
    def pages(self, size: int = 1000) -> Iterator[Entries]:
        """Yield everything by growing id, `size` images at a time."""

    @abstractmethod
    def count(self) -> int:
        """Return how many images can be found."""

    @abstractmethod
    def seal(self, index: str | None = None) -> None:
        """Flush after the last write of a build and build the index of that name; None searches exactly."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return `store`, `collection`, `count`, `dimensions`, `dtype` and other facts, in JSON."""

    def fit(self, vectors: np.ndarray) -> np.ndarray:
        """Return vectors `m D` in float32; refuse another dimension than the collection's."""
        vectors = np.asarray(vectors, np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self.dimensions:
            raise BadSpec(
                f"vectors of shape {vectors.shape} do not fit {self.name!r}, which has {self.dimensions} dimensions"
            )
        return vectors


class Store(ABC):
    """Holds collections and documents. What opens a URL is named by an entry point, see above."""

    scheme: str  # of its URLs
    one_process: bool = False  # can only one process at a time write to it, or see what it holds?

    @abstractmethod
    def create(self, name: str, dimensions: int, dtype: str = "float32") -> Collection:
        """Create an empty collection; `StoreConflict` if there is one of that name."""

    @abstractmethod
    def open(self, name: str) -> Collection:
        """Open a collection; `StoreConflict` if it is missing or was not made by tfa."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Delete a collection and all it holds. A missing one is not an error."""

    @abstractmethod
    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all collections that begin with `prefix`, sorted."""

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """Return a document as it was last written by any process; None if there is none."""

    def read_latest(self, key: str) -> bytes | None:
        """Return a document, never an outdated one, even if that takes a wait; `read` may lag for a moment."""
        return self.read(key)

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Write a document of any size (some 100 MB), durably, all or nothing."""

    @abstractmethod
    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """Replace a small document if it is still `old` (None: if there is none); False if somebody else was first.

        Of several that try at once, at most one succeeds.
        """

    @abstractmethod
    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys of all documents that begin with `prefix`, sorted; pieces by key or folder."""

    @abstractmethod
    def erase(self, key: str) -> None:
        """Delete a document, or a folder of pieces that `keys` names. A missing one is not an error."""

    def put_pieces(self, folder: str, pieces: Mapping[int, bytes]) -> None:
        """Write many small documents by number below a folder, whose name ends in a slash, durably.

        In few requests if the store can. A piece is never changed later. Idempotent.
        """
        for number, data in pieces.items():
            self.put(f"{folder}{number}", data)

    def read_pieces(self, folder: str, numbers: Sequence[int]) -> dict[int, bytes]:
        """Return those of the numbers that are there, in one request if the store can."""
        found = {int(number): self.read(f"{folder}{number}") for number in numbers}
        return {number: data for number, data in found.items() if data is not None}

    def seal_pieces(self, folder: str) -> None:  # noqa: B027  # most have nothing to do
        """Make pieces quick to find, after the last of many writes."""

    @abstractmethod
    def close(self) -> None:
        """Close connections."""


# --- where a map is ----------------------------------------------------------------------------------------------


Opener = Callable[[str], Store]  # of a store URL without a map's name


def is_url(text: object) -> bool:
    """Say whether this names a map in a store, not one in a folder."""
    return isinstance(text, str) and "://" in text


def hide_password(url: str) -> str:
    """Return the URL without its password, to be printed."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, f"{parts.username}:***@{host}", parts.path, parts.query, parts.fragment))


@dataclass(frozen=True)
class MapLocation:
    """Where a map is: a folder, or the URL of a map in a store. It is printed without a password."""

    text: str

    @property
    def in_store(self) -> bool:
        return is_url(self.text)

    @property
    def folder(self) -> Path:
        """The folder; only for a map that is not in a store."""
        assert not self.in_store, "a map in a store has no folder"
        return Path(self.text)

    def __str__(self) -> str:
        return hide_password(self.text) if self.in_store else str(Path(self.text))


def split_map_url(url: str) -> tuple[str, str]:
    """Return the URL of the store and the name of the map in it; refuse a scheme that no store is installed for."""
    parts = urlsplit(url)
    find_opener(url)
    base, _, name = parts.path.rstrip("/").rpartition("/")
    if not (name.isascii() and name.replace("_", "a").isalnum() and name[0].isalpha() and len(name) <= 40):
        raise BadSpec(
            f"{hide_password(url)}: {name!r} cannot be the name of a map; use letters, digits and underscores, a "
            f"letter first, 40 at most. For example {URL_EXAMPLES}"
        )
    return urlunsplit((parts.scheme, parts.netloc, base, parts.query, "")), name


def open_store(url: str) -> Store:
    """Connect to the store of a URL without a map's name; `StoreUnavailable` if it does not answer."""
    opener = find_opener(url)
    with _explain_missing(urlsplit(url).scheme):
        store: Store = opener(url)
        return store


def open_map_store(url: str) -> tuple[Store, str]:
    """Connect to the store of a map's URL; return it with the name of the map."""
    base, name = split_map_url(url)
    return open_store(base), name


def list_schemes() -> list[str]:
    """Return the URL schemes that stores are installed for."""
    from tfa.core.plugins import plugin_names  # which takes 30 ms to import

    return [*_BUILT_IN, *plugin_names(_GROUP, _BUILT_IN)]


def find_opener(url: str) -> Opener:
    """Return what connects to the store of a URL; an error lists the schemes that stores are installed for."""
    scheme = urlsplit(url).scheme
    if scheme in _BUILT_IN:
        module, _, attributes = _BUILT_IN[scheme].partition(":")
        with _explain_missing(scheme):
            opener: Opener = attrgetter(attributes)(import_module(module))
            return opener
    from tfa.core.plugins import load_plugin

    plugin: Opener | None = load_plugin(_GROUP, scheme, _BUILT_IN)
    if plugin is not None:
        return plugin
    schemes = list_schemes()
    if scheme in _DISTRIBUTIONS:
        hint = f"; install it with: pip install {_DISTRIBUTIONS[scheme]}"
    else:
        near = get_close_matches(scheme, [*schemes, *_DISTRIBUTIONS], 1)
        hint = f"; did you mean {near[0]}://?" if near else f". For example {URL_EXAMPLES}"
    installed = ", ".join(f"{one}://" for one in schemes)
    raise BadSpec(f"{hide_password(url)}: no store for {scheme}:// is installed; there are {installed}{hint}")


@contextmanager
def _explain_missing(scheme: str) -> Iterator[None]:
    """Name the extra to install if a package that a store needs is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if scheme not in _BUILT_IN or (error.name or "").startswith("tfa"):
            raise
        raise MissingExtra(
            f"a map in {scheme}:// needs {error.name}, which is not installed; install with: "
            f"pip install 'tfa-vpr[{scheme.partition('+')[0]}]'"
        ) from None
