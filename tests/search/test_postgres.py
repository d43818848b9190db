"""PostgreSQL keeps the contract of stores, over the wire."""

from __future__ import annotations

import pytest

from tests.search.store_contract import StoreContract
from tests.servers import PostgresServer

pytestmark = pytest.mark.engines


@pytest.fixture(scope="session")
def postgres():
    server = PostgresServer().start()
    yield server
    server.remove()


class TestPostgres(StoreContract):
    dtypes = ("float32", "float16")
    coarse = ("ivfflat", "hnsw", "bit")

    @pytest.fixture
    def url(self, postgres) -> str:
        return postgres.url
