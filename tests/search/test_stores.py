"""Every store keeps the contract."""

from __future__ import annotations

import pytest
from tfa.search.store_engine import StoreEngine

from tests.search.engine_contract import EngineContract
from tests.search.store_contract import StoreContract
from tfa.errors import BadSpec
from tfa.search.memory_store import MemoryStore


class TestEngineInMemory(EngineContract):
    create = staticmethod(StoreEngine.create)


def test_a_collection_of_another_width_is_no_engine_for_these_vectors():
    with pytest.raises(BadSpec, match=r"48 dimensions fold into 64.*has 128"):
        StoreEngine(MemoryStore().create("wide", 128), 48)


class TestMemory(StoreContract):
    @pytest.fixture
    def url(self) -> str:
        return "memory://tests"
