"""LanceDB keeps the contract of stores, in a folder."""

from __future__ import annotations

import pytest

from tests.search.engine_contract import EngineContract
from tests.search.store_contract import StoreContract
from tfa.search.store_engine import StoreEngine

pytestmark = pytest.mark.engines
pytest.importorskip("lancedb", reason="lancedb is not installed (pip install -e '.[dev]')")


class TestEngineInLance(EngineContract):
    @pytest.fixture(autouse=True)
    def _store(self, tmp_path):
        self.store = StoreContract.connect(f"lance://{tmp_path}")

    def create(self, vectors, bias, ids, payload=None):
        return StoreEngine.create(vectors, bias, ids, payload, self.store)


class TestLance(StoreContract):
    dtypes = ("float32", "float16")
    coarse = ("ivf_rq",)

    @pytest.fixture
    def url(self, tmp_path) -> str:
        return f"lance://{tmp_path}"
