"""A Milvus for the tests: milvus-lite's server on this machine, or a running one that TFA_TEST_MILVUS names."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SECONDS = 60  # that a server may take to answer


class MilvusServer:
    """A server process of our own, which can be killed and started again on the same data."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, _free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = Path(sys.executable).parent / "milvus-lite"
        options = ["--host", "127.0.0.1", "--data-dir", str(self.folder), "--port", str(self.port)]
        self._process = subprocess.Popen(
            [str(command), "server", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise RuntimeError(f"milvus-lite ended at once with status {self._process.returncode}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.1)
        raise RuntimeError(f"milvus-lite did not listen within {SECONDS} s")

    def kill(self) -> None:
        """Without a chance to write anything more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def need_milvus_lite() -> None:
    pytest.importorskip("pymilvus", reason="pymilvus is not installed: pip install 'tfa-vpr[milvus]'")
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed, and TFA_TEST_MILVUS names no server")
    if not (Path(sys.executable).parent / "milvus-lite").exists():
        pytest.skip("the command milvus-lite is not installed beside this Python")


@pytest.fixture(scope="session")
def milvus_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a server for all tests."""
    if running := os.environ.get("TFA_TEST_MILVUS"):
        yield running
        return
    need_milvus_lite()
    folder = tmp_path_factory.mktemp("milvus")
    server = MilvusServer(folder)
    server.start()
    yield server.address
    server.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def own_milvus(tmp_path: Path) -> Iterator[MilvusServer]:
    """A server for one test alone, which may kill it."""
    need_milvus_lite()
    server = MilvusServer(tmp_path / "milvus")
    server.start()
    yield server
    server.kill()
