"""What every test folder shares."""

from __future__ import annotations

import pytest

# One server for all tests, whichever folder asks for it.
from tests.servers import own_postgres, postgres  # noqa: F401
from tests.servers_milvus import milvus_address, own_milvus  # noqa: F401
from tests.servers_s3 import bucket, s3_endpoint  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that opens the browser has its mark, however it comes by it."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)
