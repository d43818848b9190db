"""The service as a process of its own: started, waited for, killed."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from urllib.error import URLError
from urllib.request import urlopen

from tfa.errors import TfaError

START_SECONDS = 120.0
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # read when a process begins
Command = Callable[[Path], Sequence[str]]


def serve_command(place_map: Path) -> list[str]:
    return [sys.executable, "-m", "tfa", "serve", str(place_map), "--port", "0", "--quiet"]


class NotServing(TfaError):
    """The service did not start."""


class Child:
    """A service in a child process, which prints its address when it listens; its log goes to a file."""

    def __init__(self, place_map: Path, command: Command, log: Path, threads: int = 1) -> None:
        self._command, self._log = list(command(place_map)), log
        self._environment = {**os.environ, **dict.fromkeys(THREADS, str(threads))}
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Child:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and wait until it is ready."""
        with open(self._log, "a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment
            )
        clock = threading.Timer(START_SECONDS, self._process.kill)
        clock.daemon = True
        clock.start()
        try:
            self.url = self._address()
            while not self._ready():
                if self._process.poll() is not None:
                    raise NotServing("the service ended before it was ready:", more=self._log_tail().splitlines())
                time.sleep(0.05)
        except BaseException:
            self.kill()
            raise
        finally:
            clock.cancel()

    def _address(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            match = re.search(r"https?://\S+", line)
            if match:
                return match[0]
        raise NotServing("the service did not start:", more=self._log_tail().splitlines())

    def _ready(self) -> bool:
        with contextlib.suppress(URLError, OSError), urlopen(f"{self.url}/readyz", timeout=10) as answer:
            return bool(answer.status == 200)
        return False

    def _log_tail(self) -> str:
        return self._log.read_text("utf-8", "replace")[-2000:]

    def kill(self) -> None:
        """End it as a power cut would: SIGKILL, no chance to tidy up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None
