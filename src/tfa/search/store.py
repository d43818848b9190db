"""Stores: a server, a folder or a bucket that holds collections of vectors, and documents beside them.

A store is what an engine for many images brings, one file each in `search.engines`. It knows ids, vectors, payloads and
bytes, nothing of heads: bias, rotation and reduction are folded into the vectors before (`search.reduction`), and
ties, scores from full vectors and confidence are ours after.

A collection is one physical version of a map and has a name of its own. Which one answers is said by a document, the
map's header, that `swap` replaces all at once: engines' own aliases may be seen late.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tfa.errors import BadSpec

Payload = Mapping[str, Any]  # path, digest, session, position and what else JSON can hold
NOBODY = -1  # the id in the places of a row that has fewer answers


@dataclass(frozen=True)
class Region:
    """A box, its edges included: degrees where positions are on the globe, metres where they are in a plane."""

    west: float  # lon or x
    south: float  # lat or y
    east: float
    north: float

    def __post_init__(self) -> None:
        edges = (self.west, self.south, self.east, self.north)
        if not all(map(math.isfinite, edges)) or self.west > self.east or self.south > self.north:
            raise BadSpec(
                f"{', '.join(f'{edge:g}' for edge in edges)} is no region; give west, south, east, north (degrees, or "
                "metres where positions are x and y), west and south not beyond east and north"
            )


@dataclass(frozen=True)
class Where:
    """Which images may answer: of one of these sessions (none given: of any), and within the region if there is one.

    An image without a position lies in no region.
    """

    sessions: tuple[str, ...] = ()
    region: Region | None = None

    def admits(self, payload: Payload) -> bool:
        """By the definition; engines have filters of their own."""
        if self.sessions and payload.get("session") not in self.sessions:
            return False
        if self.region is None:
            return True
        place = coordinates_of(payload)
        box = self.region
        return place is not None and box.west <= place[0] <= box.east and box.south <= place[1] <= box.north


def coordinates_of(payload: Payload) -> tuple[float, float] | None:
    """(lon or x, lat or y) of a payload's position."""
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
    full: Sequence[bytes]  # what the best answers are scored again with; empty bytes where it is not kept

    def __len__(self) -> int:
        return len(self.ids)


class Collection(ABC):
    """Vectors with an id, a payload and some bytes each. Scores are plain inner products."""

    name: str
    dimensions: int
    dtype: str  # float32, float16 or what else the engine stores vectors in

    @abstractmethod
    def write(self, entries: Entries) -> None:
        """Add or replace by id; on return they are durable and can be found. Doing it twice is doing it once."""

    @abstractmethod
    def delete(self, ids: Sequence[int] | np.ndarray) -> None:
        """An id that is not there is no error."""

    @abstractmethod
    def nearest(self, queries: np.ndarray, k: int, where: Where | None = None) -> tuple[np.ndarray, np.ndarray]:
        """ids `q k'` and scores `q k'` (float32) of the k best, k' = min(k, count), best first, ties to the smaller id.

        Exactly those unless `seal` made an approximate index. Where fewer pass the filter, NOBODY and −∞ follow.
        """

    @abstractmethod
    def fetch(self, ids: Sequence[int] | np.ndarray) -> Entries:
        """Those of the ids that are there, in the order given, in one request."""

    @abstractmethod
    def find(self, digests: Sequence[str]) -> dict[str, int]:
        """The smallest id of each digest that is there."""

    @abstractmethod
    def pages(self, size: int = 1000) -> Iterator[Entries]:
        """Everything, by growing id, so many at a time."""

    @abstractmethod
    def count(self) -> int:
        """How many can be found."""

    @abstractmethod
    def seal(self, index: str | None = None) -> None:
        """After the last write of a build: flush, and build the index of that name; None searches exactly."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """`engine`, `collection`, `count`, `dimensions`, `dtype` and what else is worth knowing, in JSON."""

    def fitting(self, vectors: np.ndarray) -> np.ndarray:
        """Vectors `m D` in float32, refused if their dimension is not the collection's."""
        given = np.asarray(vectors, np.float32)
        if given.ndim != 2 or given.shape[1] != self.dimensions:
            raise BadSpec(
                f"vectors of shape {given.shape} do not fit {self.name!r}, which has {self.dimensions} dimensions"
            )
        return given


class Store(ABC):
    """Where collections and documents live."""

    scheme: str  # of its URLs
    one_process: bool = False  # can only one process at a time write to it, or see what it holds?

    @classmethod
    @abstractmethod
    def connect(cls, url: str) -> Self:
        """The store of a URL without the map's name; `EngineUnavailable` if nobody answers."""

    @abstractmethod
    def create(self, name: str, dimensions: int, dtype: str = "float32") -> Collection:
        """A new, empty collection; `EngineConflict` if there is one of that name."""

    @abstractmethod
    def open(self, name: str) -> Collection:
        """One that was created before; `EngineConflict` if it is not there or is not of our making."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """A collection and all it holds; none of that name is no error."""

    @abstractmethod
    def names(self, prefix: str = "") -> list[str]:
        """Of all collections that begin so."""

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """A document as it was last written by anybody; None if there is none."""

    def read_latest(self, key: str) -> bytes | None:
        """The same where `read` may show for a moment what was there before: here never, at the price of a wait."""
        return self.read(key)

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Write a document of any size (some 100 MB), durably, all or nothing."""

    @abstractmethod
    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """Replace a small document if it still is `old` (None: if there is none). False if it is not: somebody else was
        first. Of several that try at once one succeeds at most."""

    @abstractmethod
    def keys(self, prefix: str = "") -> list[str]:
        """Of all documents that begin so, sorted; pieces by their own names, or all of a folder by its name."""

    @abstractmethod
    def erase(self, key: str) -> None:
        """A document, or a folder of pieces that `keys` names; none is no error."""

    def put_pieces(self, folder: str, pieces: Mapping[int, bytes]) -> None:
        """Write many documents of a kind, by number, below a folder (its name ends in a stroke), durably.

        In few requests where the engine can. A piece is not changed later; writing it twice is writing it once.
        """
        for number, data in pieces.items():
            self.put(f"{folder}{number}", data)

    def read_pieces(self, folder: str, numbers: Sequence[int]) -> dict[int, bytes]:
        """Those of the numbers that are there; in one request where the engine can."""
        found = {int(number): self.read(f"{folder}{number}") for number in numbers}
        return {number: data for number, data in found.items() if data is not None}

    def seal_pieces(self, folder: str) -> None:  # noqa: B027  # most have nothing to do
        """After the last of many writes: make finding them quick."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections."""
