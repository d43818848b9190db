"""Spilled arrays: large ones live in memory-mapped temporary files, small ones in memory."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from tfa.base.locks import LockedFolder, tidy
from tfa.errors import DiskFull, TfaError, from_os_error

SPILL_PREFIX, _SUFFIX = "tfa-spill-", ".bin"
_NO_RESERVING = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # what a file system answers that cannot


class Spill:
    """Keeps arrays for later: small ones in memory, large ones in a memory-mapped temporary file."""

    def __init__(self, spill_bytes: int = 4 << 20) -> None:
        self.spill_bytes = spill_bytes
        self._folder: Path | None = None

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        dtype = np.dtype(dtype)
        size = int(np.prod(shape)) * dtype.itemsize
        if size <= self.spill_bytes:
            return np.empty(shape, dtype)
        parent = Path(tempfile.gettempdir()) if self._folder is None else self._folder.parent
        try:
            if self._folder is None:
                self._folder = self._new_folder(parent)
            mapped = np.memmap(_reserved(self._folder, size), dtype, "r+", shape=shape)
        except OSError as error:
            raise (_what_ran_out(error, size, parent) or error) from None
        mapped.spill = self  # type: ignore[attr-defined]  # the file lives as long as an array that needs it
        return mapped

    def _new_folder(self, parent: Path) -> Path:
        tidy(parent, f"{SPILL_PREFIX}*", lambda name: name.endswith(_SUFFIX))
        folder = LockedFolder(parent, SPILL_PREFIX)
        weakref.finalize(self, folder.remove)
        return folder.path

    def keep(self, array: np.ndarray) -> np.ndarray:
        """A copy of the array, mapped if it is large."""
        kept = self.empty(array.shape, array.dtype)
        kept[...] = array
        release(kept)
        return kept


def _reserved(folder: Path, size: int) -> Path:
    """A new file that has its room on the disk: a page of a mapped file that finds none later ends the process."""
    with tempfile.NamedTemporaryFile(dir=folder, suffix=_SUFFIX, delete=False) as file:
        try:
            _reserve(file.fileno(), size, folder)
        except BaseException:
            os.unlink(file.name)
            raise
        return Path(file.name)


def _reserve(handle: int, size: int, folder: Path) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(handle, 0, size)
            return
        except OSError as error:
            if error.errno not in _NO_RESERVING:
                raise
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    os.ftruncate(handle, size)


def _what_ran_out(error: OSError, size: int, parent: Path) -> TfaError | None:
    """The error of a full disk in words that help here; that of other things that ran out."""
    known = from_os_error(error, parent)
    if not isinstance(known, DiskFull):
        return known
    return DiskFull(
        f"there is no room for {size:,} bytes of temporary data in {parent}, where "
        f"{shutil.disk_usage(parent).free:,} bytes are free; free some, or name a folder on another disk in the "
        "environment variable TMPDIR",
        parent,
    )


def release(array: np.ndarray) -> None:
    """Let the system take back the resident pages of a mapped array; its content stays in the file."""
    base = array
    while base is not None and not isinstance(getattr(base, "_mmap", None), mmap.mmap):
        base = getattr(base, "base", None)  # type: ignore[assignment]  # a tensor may lie below, which has none
    if base is not None and hasattr(mmap, "MADV_DONTNEED"):
        # Of a shared file mapping this drops the process's pages, not what was written to them.
        base._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
