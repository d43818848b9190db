"""Qdrant's core in a folder keeps the contract of stores."""

from __future__ import annotations

import pytest

from tests.search.store_contract import StoreContract

pytest.importorskip("qdrant_edge", reason="qdrant-edge-py is not installed: pip install 'tfa-vpr[qdrant]'")
pytestmark = pytest.mark.engines


class TestQdrantEdge(StoreContract):
    dtypes = ("float32", "float16")
    coarse = ("turbo4",)

    @pytest.fixture
    def url(self, tmp_path):
        return f"qdrant://{tmp_path}/places of Köln"
