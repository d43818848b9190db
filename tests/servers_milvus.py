"""A Milvus server for tests: milvus-lite, or the server named by TFA_TEST_MILVUS."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from studies.scale.local_servers import MilvusServer


def need_milvus_lite() -> None:
    pytest.importorskip("tfa_milvus", reason="tfa-milvus is not installed: pip install -e plugins/tfa-milvus")
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed, and TFA_TEST_MILVUS names no server")
    if not (Path(sys.executable).parent / "milvus-lite").exists():
        pytest.skip("the command milvus-lite is not installed beside this Python")


@pytest.fixture(scope="session")
def milvus_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a server for all tests."""
    if running := os.environ.get("TFA_TEST_MILVUS"):
        yield running.removeprefix("milvus://")
        return
    need_milvus_lite()
    folder = tmp_path_factory.mktemp("milvus")
    server = MilvusServer(folder)
    server.start()
    yield server.address
    server.remove()


@pytest.fixture
def own_milvus(tmp_path: Path) -> Iterator[MilvusServer]:
    """A server for one test alone, which may kill it."""
    need_milvus_lite()
    server = MilvusServer(tmp_path / "milvus")
    server.start()
    yield server
    server.kill()
