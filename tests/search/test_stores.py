"""Every store keeps the contract; a URL opens the store that is installed for its scheme."""

from __future__ import annotations

import pytest

from tests.search.memory_store import MemoryStore
from tfa.core import plugins
from tfa.errors import BadSpec, MissingExtra
from tfa.search import store as stores
from tfa.search.store import MapLocation, open_map_store, split_map_url
from tfa_bench.store_contract import StoreContract


class TestMemory(StoreContract):
    @pytest.fixture
    def url(self) -> str:
        return "memory://tests"


def test_a_url_opens_the_store_of_its_scheme():
    store, name = open_map_store("memory://here/maps/town")
    assert isinstance(store, MemoryStore)
    assert name == "town"
    assert split_map_url("memory://here/maps/town?x=1") == ("memory://here/maps?x=1", "town")


def test_an_unknown_scheme_lists_those_that_are_installed(monkeypatch):
    with pytest.raises(BadSpec, match=r"no store for mysql:// is installed; available: postgres://"):
        open_map_store("mysql://user:secret@here/maps/town")
    with pytest.raises(BadSpec, match=r"did you mean postgres://\?"):
        open_map_store("postgre://here/maps/town")
    with pytest.raises(BadSpec) as caught:
        open_map_store("mysql://user:secret@here/maps/town")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["lance", "milvus", "qdrant"])
def test_stores_that_are_distributions_apart_are_named(monkeypatch, scheme):
    monkeypatch.setattr(plugins, "load_plugin", lambda *_: None)
    monkeypatch.setattr(plugins, "plugin_names", lambda *_: [])
    with pytest.raises(BadSpec, match=rf"no store for {scheme}:// .* available: postgres://.*pip install tfa-{scheme}"):
        open_map_store(f"{scheme}://here/town")


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(stores._BUILT_IN, "postgres", "no_such_package:Store")
    with pytest.raises(MissingExtra, match=r"postgres:// maps need no_such_package.*pip install 'tfa-vpr\[postgres\]'"):
        open_map_store("postgres://here/maps/town")


@pytest.mark.parametrize("name", ["1town", "to-wn", "t" * 41, "", "straße"])
def test_a_name_that_cannot_be_one_is_refused(name):
    with pytest.raises(BadSpec, match="is not a valid map name"):
        split_map_url(f"memory://here/{name}")


def test_a_location_is_a_folder_or_a_url_and_hides_the_password():
    assert MapLocation("town.tfa/").folder.name == "town.tfa"
    assert not MapLocation("town.tfa").in_store
    assert MapLocation("postgres://me:secret@here/db/town").in_store
    assert str(MapLocation("postgres://me:secret@here/db/town")) == "postgres://me:***@here/db/town"
    assert f"{MapLocation('maps//town.tfa')}" == "maps/town.tfa"
