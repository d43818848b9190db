"""Wait for a condition or an event in tests, never for a fixed time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

# Seconds after which a wait is given up. It only keeps a test that can no longer succeed from hanging.
PATIENCE = 300.0
_SOURCE = Path(__file__).parents[1] / "src"


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until a condition holds; fail if it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"nothing happened within {seconds} s"
        time.sleep(0.005)


def child_environment(*folders: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a child process that imports what the tests import.

    The folders come first, then this repository's package, then the caller's PYTHONPATH.
    """
    paths = [*map(str, folders), str(_SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}
