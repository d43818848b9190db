"""Every store keeps the contract."""

from __future__ import annotations

import pytest

from tests.search.store_contract import StoreContract


class TestMemory(StoreContract):
    @pytest.fixture
    def url(self) -> str:
        return "memory://tests"
