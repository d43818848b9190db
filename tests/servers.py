"""Real servers on loopback for the tests of stores; a test that needs one that is not installed is skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from studies.scale import local_servers
from studies.scale.local_servers import free_port
from tfa.errors import MissingExtra

__all__ = ["PostgresServer", "free_port"]


class PostgresServer(local_servers.PostgresServer):
    """A PostgreSQL of its own."""

    def __init__(self, password: str | None = None) -> None:
        try:
            super().__init__(password)
        except MissingExtra as missing:
            pytest.skip(str(missing))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server for all tests."""
    server = PostgresServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server for one test alone, which may kill it."""
    server = PostgresServer()
    server.start()
    yield server
    server.remove()
