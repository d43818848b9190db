"""Milvus keeps the contract of stores, and what is its own: ties, claims, a server that goes and comes back."""

from __future__ import annotations

import pytest

from tests.search.store_contract import StoreContract
from tests.servers_milvus import milvus_address, own_milvus  # noqa: F401

pytestmark = pytest.mark.engines


class TestMilvus(StoreContract):
    coarse = ("ivf_sq8", "hnsw")

    @pytest.fixture
    def url(self, milvus_address):  # noqa: F811
        return f"milvus://{milvus_address}"
