"""LanceDB keeps the contract of stores, in a folder."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.waiting import PATIENCE
from tfa.errors import BadSpec, StoreConflict, StoreUnavailable
from tfa_bench.store_contract import StoreContract, make_entries, make_vectors

pytestmark = pytest.mark.stores
pytest.importorskip("tfa_lance", reason="tfa-lance is not installed: pip install -e plugins/tfa-lance")


class TestLance(StoreContract):
    dtypes = ("float32", "float16")
    coarse = ("ivf_rq",)

    @pytest.fixture
    def url(self, tmp_path) -> str:
        return f"lance://{tmp_path}"


def count_up(url: str, times: int) -> None:
    """Add 1 to a number in a document repeatedly, and append the name of the process."""
    store = StoreContract.connect(url)
    for _ in range(times):
        while True:
            old = store.read("map/header")
            number = 0 if old is None else int(old.split()[0])
            if store.swap("map/header", old, b"%d %d" % (number + 1, os.getpid())):
                break


@pytest.mark.kill
def test_no_swap_of_four_processes_is_lost(tmp_path):
    url = f"lance://{tmp_path}"
    spawn = multiprocessing.get_context("spawn")  # LanceDB has threads that a fork would lose
    workers = [spawn.Process(target=count_up, args=(url, 3)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    assert Counter(worker.exitcode for worker in workers) == {0: 4}
    assert StoreContract.connect(url).read("map/header").split()[0] == b"12"
    assert len(list((Path(tmp_path) / "documents").iterdir())) <= 12


def test_a_swap_counts_even_if_its_version_was_taken_away_before_the_writer_looked(tmp_path, monkeypatch):
    url = f"lance://{tmp_path}"
    slow, quick = StoreContract.connect(url), StoreContract.connect(url)
    documents = slow._documents
    create = documents._database.create_table

    def overtaken(*given, **named):
        create(*given, **named)
        for turn in range(1, 12):
            assert quick.swap("map/header", b"%d" % (turn - 1), b"%d" % turn)

    monkeypatch.setattr(documents._database, "create_table", overtaken)
    assert slow.swap("map/header", None, b"0")
    assert quick.read("map/header") == b"11"


def test_a_swap_that_comes_after_others_took_its_number_away_does_not_count(tmp_path, monkeypatch):
    url = f"lance://{tmp_path}"
    slow, quick = StoreContract.connect(url), StoreContract.connect(url)
    documents = slow._documents
    create = documents._database.create_table

    def late(*given, **named):
        for turn in range(1, 12):
            quick.put("map/header", b"%d" % turn)
        create(*given, **named)

    monkeypatch.setattr(documents._database, "create_table", late)
    assert not slow.swap("map/header", None, b"0")
    assert quick.read("map/header") == b"11"


def test_a_document_that_was_erased_does_not_begin_again(tmp_path):
    store = StoreContract.connect(f"lance://{tmp_path}")
    for turn in range(3):
        assert store.swap("map/header", None, b"%d" % turn)
        store.erase("map/header")
        assert store.keys() == []
    assert not store.swap("map/header", b"2", b"3")


def test_a_table_that_was_never_finished_is_no_document(tmp_path):
    store = StoreContract.connect(f"lance://{tmp_path}")
    store.put("a", b"1")
    (tmp_path / "documents" / "a.000000000002.lance" / "data").mkdir(parents=True)
    assert store.read("a") == b"1"
    assert store.swap("a", b"1", b"2")
    assert store.read("a") == b"2"


def test_versions_that_take_long_to_become_readable_are_awaited(tmp_path, monkeypatch):
    store = StoreContract.connect(f"lance://{tmp_path}")
    store.put("a", b"1")
    store.put("a", b"2")
    documents, looks, version = store._documents, [], store._documents._version

    def read_late(name):
        looks.append(name)
        return version(name) if len(looks) > 500 else None

    monkeypatch.setattr("tfa_lance.tables._PAUSE", 0.0)
    monkeypatch.setattr(documents, "_version", read_late)
    assert store.read("a") == b"2"
    assert len(looks) > 500


def test_versions_that_stay_unreadable_are_an_error(tmp_path, monkeypatch):
    store = StoreContract.connect(f"lance://{tmp_path}")
    for number in (1, 2):
        (tmp_path / "documents" / f"a.{number:012}.lance" / "data").mkdir(parents=True)
    monkeypatch.setattr("tfa_lance.tables._GIVE_UP_SECONDS", 0.0)
    with pytest.raises(StoreUnavailable, match="no version of the document 'a' can be read"):
        store.read("a")


def test_a_table_of_somebody_else_is_left_alone(tmp_path):
    import lancedb

    lancedb.connect(tmp_path).create_table("places__v1", [{"id": 1}])
    with pytest.raises(StoreConflict, match="not created by tfa"):
        StoreContract.connect(f"lance://{tmp_path}").open("places__v1")


def test_a_collection_that_was_dropped_elsewhere_is_named(tmp_path):
    store = StoreContract.connect(f"lance://{tmp_path}")
    collection = store.create("gone__v1", 64)
    vectors, queries = make_vectors(40, 64)
    collection.write(make_entries(np.arange(40), vectors))
    StoreContract.connect(f"lance://{tmp_path}").drop("gone__v1")
    with pytest.raises((StoreConflict, StoreUnavailable), match=str(tmp_path)):
        collection.nearest(queries, 3)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("lance://folder", "three slashes"),
        ("lance:///tmp?endpoints=a", "use endpoint= or region="),
        ("lance+s3:///prefix", "has no bucket"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused(url, said):
    with pytest.raises(BadSpec, match=said):
        StoreContract.connect(url)
