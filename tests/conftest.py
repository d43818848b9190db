"""What every test folder shares."""

from __future__ import annotations

import pytest
from hypothesis import settings

# One server for all tests, whichever folder asks for it.
from tests.servers import own_postgres, postgres  # noqa: F401
from tests.servers_milvus import milvus_address, own_milvus  # noqa: F401

settings.register_profile("tfa", deadline=None)  # no test fails because others use the machine
settings.load_profile("tfa")

LONG = {"browser", "kill", "encoder", "slow", "engines", "faults"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that opens the browser has its mark, however it comes by it. Files with tests that take long come first:
    the quick ones at the end then keep all workers busy until it."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)
    long = {item.path for item in items if any(mark.name in LONG for mark in item.iter_markers())}
    items.sort(key=lambda item: item.path not in long)
