"""Temporary folders of our own: held while they are used, and removed when a process that was killed left them.

Whoever makes such a folder locks it as long as it lives; the system gives the lock back with the end of the process.
Age alone would not do: a clock that jumps makes a folder in use look old.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows, where a folder cannot be locked: there nothing is tidied
    fcntl = None  # type: ignore[assignment]

STALE_SECONDS = 3600  # a folder may be made and not locked yet: one so old is not


class OwnFolder:
    """A new temporary folder, locked until it is closed. `close` does not remove it, `remove` does."""

    def __init__(self, parent: Path, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        self._handle: int | None = None
        try:
            self._handle = _locked(self.path)
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.close()


def _locked(folder: Path) -> int | None:
    """A handle that holds the folder; None if somebody else does, or where folders cannot be held."""
    if fcntl is None:
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def tidy(parent: Path, prefix: str, ours: Callable[[str], bool]) -> None:
    """Remove folders in `parent` that a killed process left.

    They have that prefix, hold nothing but files whose names are `ours`, were not changed for an hour and are held by
    nobody.
    """
    with contextlib.suppress(OSError):  # tidying is no reason to fail
        for folder in parent.iterdir():
            if folder.name.startswith(prefix) and folder.is_dir() and not folder.is_symlink():
                with contextlib.suppress(OSError):
                    _remove_if_left(folder, ours)


def _remove_if_left(folder: Path, ours: Callable[[str], bool]) -> None:
    if time.time() - folder.stat().st_mtime < STALE_SECONDS or not all(ours(name) for name in os.listdir(folder)):
        return
    handle = _locked(folder)
    if handle is not None:
        try:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(handle)
