"""Fixtures and settings for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from typer.testing import CliRunner, Result

# Fixtures of real servers, started once for all tests.
from tests.servers import own_postgres, postgres  # noqa: F401
from tests.servers_milvus import milvus_address, own_milvus  # noqa: F401
from tests.servers_s3 import bucket, s3_endpoint  # noqa: F401
from tfa.core.files import cache_folder
from tfa.search import store as stores

stores._BUILT_IN["memory"] = "tests.search.memory_store:MemoryStore.connect"  # a store for tests: memory://ANYTHING


@pytest.fixture(scope="session", autouse=True)
def _not_the_users_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Isolate tests from the user's cache and settings; only the downloaded encoder weights are shared."""
    kept, own = cache_folder() / "weights", tmp_path_factory.mktemp("cache")
    kept.mkdir(parents=True, exist_ok=True)
    (own / "weights").symlink_to(kept)
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("TFA_") and not name.startswith(("TFA_FAULTS", "TFA_TEST")):
                patch.delenv(name)
        patch.setenv("TFA_CACHE", str(own))
        patch.setenv("XDG_CONFIG_HOME", str(own / "config"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _json_as_documented() -> Iterator[None]:
    """Check all JSON that the command line prints in tests against docs/schemas."""
    invoke = CliRunner.invoke

    def invoke_and_check(self: CliRunner, app: Any, args: Any = None, **given: Any) -> Result:
        result = invoke(self, app, args, **given)
        if {"--json", "--out"} & set(args or ()):
            from tests.schemas import check_output  # imported only if needed

            check_output(args, result)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CliRunner, "invoke", invoke_and_check)
        yield


settings.register_profile("tfa", deadline=None)  # a busy machine must not fail a test
settings.load_profile("tfa")

LONG = {"browser", "kill", "encoder", "slow", "stores", "faults"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use the browser, and run files with slow tests first: all workers then stay busy to the end."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)
    long = {item.path for item in items if any(mark.name in LONG for mark in item.iter_markers())}
    items.sort(key=lambda item: item.path not in long)
