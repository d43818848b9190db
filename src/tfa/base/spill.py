"""Spilled arrays: large ones live in memory-mapped temporary files, small ones in memory."""

from __future__ import annotations

import mmap
import tempfile
import weakref
from typing import Any

import numpy as np


class Spill:
    """Keeps arrays for later: small ones in memory, large ones in a memory-mapped temporary file."""

    def __init__(self, spill_bytes: int = 4 << 20) -> None:
        self.spill_bytes = spill_bytes
        self._folder: str | None = None

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        dtype = np.dtype(dtype)
        if int(np.prod(shape)) * dtype.itemsize <= self.spill_bytes:
            return np.empty(shape, dtype)
        if self._folder is None:
            folder = tempfile.TemporaryDirectory(prefix="tfa-spill-")
            self._folder = folder.name
            weakref.finalize(self, folder.cleanup)
        with tempfile.NamedTemporaryFile(dir=self._folder, suffix=".bin", delete=False) as file:
            mapped = np.memmap(file, dtype, "w+", shape=shape)
        mapped.spill = self  # type: ignore[attr-defined]  # the file lives as long as an array that needs it
        return mapped

    def keep(self, array: np.ndarray) -> np.ndarray:
        """A copy of the array, mapped if it is large."""
        kept = self.empty(array.shape, array.dtype)
        kept[...] = array
        release(kept)
        return kept


def release(array: np.ndarray) -> None:
    """Let the system take back the resident pages of a mapped array; its content stays in the file."""
    base = array
    while base is not None and not isinstance(getattr(base, "_mmap", None), mmap.mmap):
        base = getattr(base, "base", None)  # type: ignore[assignment]  # a tensor may lie below, which has none
    if base is not None and hasattr(mmap, "MADV_DONTNEED"):
        # Of a shared file mapping this drops the process's pages, not what was written to them.
        base._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
