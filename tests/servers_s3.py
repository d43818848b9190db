"""An S3 bucket for tests: on the server named by TFA_TEST_S3 (http://HOST:PORT), or on moto if installed."""

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
from uuid import uuid4

import pytest

from tests.servers import free_port
from tests.waiting import PATIENCE

KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """http://HOST:PORT of a server for all tests."""
    if running := os.environ.get("TFA_TEST_S3"):
        yield running
        return
    own = Path(sys.executable).parent / "moto_server"
    command = str(own) if own.exists() else shutil.which("moto_server")
    if command is None:
        pytest.skip("there is no S3 server: pip install 'moto[s3]' flask flask-cors, or name one in TFA_TEST_S3")
    port = free_port()
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([command, "-H", "127.0.0.1", "-p", str(port)], **silent)
    try:
        until = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, "the S3 server ended at once"
            assert time.monotonic() < until, "the S3 server does not listen"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a new one; keys and the server's address are in the environment."""
    fs = pytest.importorskip("pyarrow.fs", reason="pyarrow is not installed (pip install -e '.[dev]')")
    for key, value in KEYS.items():
        monkeypatch.setenv(key, os.environ.get(key, value))
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    name = f"tfa-{uuid4().hex[:12]}"
    fs.FileSystem.from_uri(f"s3://{name}?allow_bucket_creation=true")[0].create_dir(name)
    return name
