"""Temporary files and folders: held while they are written, removed once a process that was killed left them behind.

Whoever writes one locks it; the system gives the lock back with the end of the process. Age alone would not do: a clock
that jumps makes what is being written look old.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows, where folders cannot be locked: there nothing is tidied
    fcntl = None  # type: ignore[assignment]

STALE_SECONDS = 3600  # what was just made may not be locked yet; what is so old is, if somebody writes it


class LockedFolder:
    """A new temporary folder, held until it is closed. `close` does not remove it, `remove` does."""

    def __init__(self, parent: Path, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        self._handle: int | None = None
        try:
            self._handle = _open_locked(self.path)
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


def hold(handle: int) -> bool:
    """Lock an open file or folder until it is closed; false if somebody else has it, or where that cannot be."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold a folder; wait while another process or thread does. Without effect on Windows."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _open_locked(path: Path) -> int | None:
    """A handle that holds a file or folder; None if somebody else does, or where they cannot be held."""
    if fcntl is None:
        return None
    handle = os.open(path, os.O_RDONLY)
    if hold(handle):
        return handle
    os.close(handle)
    return None


def tidy(parent: Path, pattern: str, ours: Callable[[str], bool] = lambda name: False) -> None:
    """Remove files and folders in `parent` that a killed process left.

    They are named like `pattern`, were not changed for an hour and are held by nobody; a folder holds nothing but files
    whose names are `ours`. What cannot be removed stays: tidying is no reason to fail.
    """
    with contextlib.suppress(OSError):
        for path in parent.glob(pattern):
            if not path.is_symlink():
                with contextlib.suppress(OSError):
                    _remove_if_left(path, ours)


def _remove_if_left(path: Path, ours: Callable[[str], bool]) -> None:
    if time.time() - path.stat().st_mtime < STALE_SECONDS:
        return
    if path.is_dir() and not all(ours(name) for name in os.listdir(path)):
        return
    handle = _open_locked(path)
    if handle is not None:
        try:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        finally:
            os.close(handle)
