"""Stores that maps in engines are tested with, and a store that goes away and comes back."""

from __future__ import annotations

import itertools
from typing import Any

from tfa.errors import EngineUnavailable
from tfa.search.memory_store import MemoryStore
from tfa.search.store import Store

_NUMBERS = itertools.count()
# A line each: where `{n}` is a number that no other test has.
STORES = ("memory://test{n}",)


def new_url(pattern: str, name: str = "town") -> str:
    """The URL of a map that is not there yet."""
    return f"{pattern.format(n=next(_NUMBERS))}/{name}"


class Flaky:
    """A store in front of another, which answers only while `there`."""

    def __init__(self, store: Store) -> None:
        self._store, self.there = store, True

    def __getattr__(self, name: str) -> Any:
        if not self.there:
            raise EngineUnavailable("the engine flaky://here does not answer; start it, or try again later")
        found = getattr(self._store, name)
        return found

    def open(self, name: str) -> Any:
        return _FlakyCollection(self, self._store.open(name))


class _FlakyCollection:
    def __init__(self, store: Flaky, collection: Any) -> None:
        self._owner, self._collection = store, collection

    def __getattr__(self, name: str) -> Any:
        if not self._owner.there:
            raise EngineUnavailable("the engine flaky://here does not answer; start it, or try again later")
        return getattr(self._collection, name)


def memory_store(url: str) -> MemoryStore:
    """What a `memory://` URL of a map connects to."""
    return MemoryStore.connect(url.rpartition("/")[0])
