"""Stores that maps are tested in, and a store that goes away and comes back."""

from __future__ import annotations

import itertools
from typing import Any
from uuid import uuid4

import pytest

from tests.search.memory_store import MemoryStore
from tfa.errors import StoreUnavailable
from tfa.search.store import Store

_NUMBERS = itertools.count()
_OURS = uuid4().hex[:8]
MEMORY = "memory"
REAL = ("postgres", "lance", "milvus", "qdrant")
STORES = (MEMORY, *(pytest.param(kind, marks=pytest.mark.stores) for kind in REAL))


def new_url(pattern: str, name: str = "town") -> str:
    """The URL of a map that is not there yet; `{n}` becomes a number that no other test has."""
    return f"{pattern.format(n=next(_NUMBERS))}/{name}"


def new_name() -> str:
    """Of a map that is not there yet, in a store that others use too, and tests before these have used."""
    return f"town{next(_NUMBERS)}{_OURS}"


def place_of(kind: str, request: pytest.FixtureRequest) -> str:
    """The URL of a store of that kind, without a map's name. A server is that of all tests; folders are new.

    Only one process has a Qdrant folder at a time; all connections of this process share it.
    """
    if kind == MEMORY:
        return f"memory://test{next(_NUMBERS)}"
    if kind == "postgres":
        pytest.importorskip("psycopg", reason="psycopg is not installed (pip install -e '.[dev]')")
        return str(request.getfixturevalue("postgres").url)
    if kind == "milvus":
        return f"milvus://{request.getfixturevalue('milvus_address')}"
    package = {"lance": "tfa_lance", "qdrant": "tfa_qdrant"}[kind]
    pytest.importorskip(package, reason=f"{package} is not installed (make check installs it)")
    return f"{kind}://{request.getfixturevalue('tmp_path')}/store"


class Flaky:
    """A store in front of another, which answers only while `there`."""

    def __init__(self, store: Store) -> None:
        self._store, self.there = store, True

    def __getattr__(self, name: str) -> Any:
        if not self.there:
            raise StoreUnavailable("the store flaky://here does not answer; start it, or try again later")
        found = getattr(self._store, name)
        return found

    def open(self, name: str) -> Any:
        return _FlakyCollection(self, self._store.open(name))


class _FlakyCollection:
    def __init__(self, store: Flaky, collection: Any) -> None:
        self._owner, self._collection = store, collection

    def __getattr__(self, name: str) -> Any:
        if not self._owner.there:
            raise StoreUnavailable("the store flaky://here does not answer; start it, or try again later")
        return getattr(self._collection, name)


def memory_store(url: str) -> MemoryStore:
    """What a `memory://` URL of a map connects to."""
    return MemoryStore.connect(url.rpartition("/")[0])
