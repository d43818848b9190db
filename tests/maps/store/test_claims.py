"""Build locks of a store: one build at a time, and no build deletes another one's data."""

from __future__ import annotations

import time

import pytest

from tests.search.memory_store import MemoryStore
from tfa.errors import StoreConflict
from tfa.maps.store.header import Builder, claim_key, claim_map
from tfa.maps.store.publish import Publisher

BUSY = r"memory://x/town is being built by process \d+ of .* for 0 min; try again when it is done"


class SlowStore(MemoryStore):
    """Others see a swapped value before the swapping process continues, as with a remote server."""

    def __init__(self):
        super().__init__()
        self.meanwhile = None

    def swap(self, key, old, new):
        done, meanwhile = super().swap(key, old, new), self.meanwhile
        self.meanwhile = None
        if meanwhile is not None:
            meanwhile()
        return done


class LaggingStore(MemoryStore):
    """`read` shows what was there before the last change, as a replica may."""

    def __init__(self):
        super().__init__()
        self.before = {}

    def read(self, key):
        return self.before.get(key)

    def read_latest(self, key):
        return super().read(key)

    def swap(self, key, old, new):
        self.before[key] = super().read(key)
        return super().swap(key, old, new)


def publisher(store):
    return Publisher(store, "town", "memory://x/town")


def elsewhere(doing="built"):
    return Builder("process 1 of elsewhere", doing, time.time(), time.time(), "y")


def test_a_claim_counts_before_its_owner_has_heard_that_it_has_it():
    store, refused = SlowStore(), []

    def second():
        with pytest.raises(StoreConflict, match=BUSY), publisher(store).claim():
            pass
        refused.append(True)

    store.meanwhile = second
    first = publisher(store)
    with first.claim():
        assert refused
        first.begin(8)
    with publisher(store).claim():  # it is free again
        pass


def test_a_claim_and_a_header_are_read_as_they_are_now():
    store = LaggingStore()
    with publisher(store).claim(), pytest.raises(StoreConflict, match=BUSY), publisher(store).claim():
        pass
    store.before, store._documents["town/header"] = {}, b"as it is"
    one = publisher(store)
    one.look()
    assert one._before == b"as it is"


def test_a_builder_whose_claim_was_taken_drops_nothing_of_the_other():
    store = MemoryStore()

    def overtaken():
        store.put(claim_key("town"), elsewhere().to_bytes())
        store.create("town__v9", 8)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), publisher(store).claim():
        overtaken()
    assert store.names() == ["town__v9"]


@pytest.mark.parametrize(("doing", "said"), [
    ("built", "memory://x/town is being built by process 1 of elsewhere for 0 min; try again when it is done"),
    (None, "memory://x/town is being built: another process created the collection 'town__v1'; try again when"),
])  # fmt: skip
def test_a_collection_that_another_builder_was_faster_to_make_is_told_of_as_that_builder(doing, said, monkeypatch):
    store = MemoryStore()
    create = store.create

    def create_second(name, *given):
        create(name, 8)
        if doing is not None:
            store.put(claim_key("town"), elsewhere(doing).to_bytes())
        return create(name, *given)

    monkeypatch.setattr(store, "create", create_second)
    one = publisher(store)
    with pytest.raises(StoreConflict) as refusal, one.claim():
        one.begin(8)
    assert str(refusal.value).startswith(said)
    assert store.names() == ([] if doing is None else ["town__v1"])  # tables without a running build are dropped


def test_a_store_that_refuses_for_another_reason_says_so_itself(monkeypatch):
    store = MemoryStore()

    def refuse(*_):
        raise StoreConflict("no room for another collection")

    monkeypatch.setattr(store, "create", refuse)
    one = publisher(store)
    with pytest.raises(StoreConflict, match="no room for another collection"), one.claim():
        one.begin(8)


def test_a_claim_is_given_back_if_its_owner_fails():
    store = MemoryStore()
    with pytest.raises(ZeroDivisionError), claim_map(store, "town", "built", "x"):
        1 / 0  # noqa: B018
    with claim_map(store, "town", "built", "x"):
        pass
