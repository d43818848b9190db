"""Shared array helpers: backends (numpy or torch), half precision, arrays spilled to disk, and threads.

Numeric stages are written once against the array API (`xp`); a `Backend` says where heavy arrays live. Large
results are kept in memory-mapped temporary files.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from array_api_compat import array_namespace
from threadpoolctl import ThreadpoolController

from tfa.core.files import LockedFolder, tidy
from tfa.core.progress import Task
from tfa.errors import BadSpec, DiskFull, TfaError, from_os_error

# --- backend --------------------------------------------------------------------------------------

Array = Any  # an array of any namespace; shapes are written in each signature


@dataclass(frozen=True)
class Backend:
    """Where arrays live while they are computed on. `cpu` is numpy; `cuda`, `torch` are torch."""

    device: str
    xp: Any
    torch_device: str | None = None

    def put(self, array: np.ndarray, dtype: str | None = None) -> Array:
        """Bring a numpy array to the backend, as `dtype` if one is named."""
        array = np.asarray(array) if dtype is None else np.asarray(array, dtype=dtype)
        if self.torch_device is None:
            return array
        if not array.flags.writeable:
            array = array.copy()  # torch refuses to share read-only memory such as a mapped file
        return self.xp.asarray(array, device=self.torch_device)


def backend_for(device: str) -> Backend:
    """`cpu` → numpy, `cuda` or `cuda:1` → torch on that GPU, `torch` → torch on the CPU (for comparison)."""
    if device == "cpu":
        import array_api_compat.numpy as numpy_namespace

        return Backend("cpu", numpy_namespace)
    if device == "torch" or device.split(":")[0] == "cuda":
        import array_api_compat.torch as torch_namespace
        import torch

        if device != "torch" and not torch.cuda.is_available():
            raise BadSpec(f"device {device!r}: this machine has no usable CUDA device; use cpu")
        return Backend(device, torch_namespace, "cpu" if device == "torch" else device)
    raise BadSpec(f"device {device!r} is unknown; use cpu, cuda or cuda:N")


def to_numpy(array: Array) -> np.ndarray:
    """A numpy array of the same numbers, wherever `array` lives."""
    if isinstance(array, np.ndarray):
        return array
    return array.detach().cpu().numpy() if hasattr(array, "detach") else np.asarray(array)


def l2_normalize(x: Array) -> Array:
    """Unit vectors along the last axis; L2(0) = 0."""
    xp = array_namespace(x)
    norm = xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True))
    return x / xp.where(norm > 0, norm, xp.ones_like(norm))


# --- half -----------------------------------------------------------------------------------------

# What float16 calls infinite or not a number comes out of `widen` as this or more.
NOT_FINITE = 2.0**16
_BLOCK = 1 << 17  # numbers: three passes over so many stay in the cache


def widen(numbers: np.ndarray, out: np.ndarray) -> None:
    """`out[...] = numpy's own conversion of numbers`, two to three times as fast from float16 to float32.

    The fields of a half moved to their places in a float are that number times 2^(15 − 127), subnormal ones too. So
    every finite half is exact; infinite ones and NaN become numbers of 2^16 or more.
    """
    if numbers.dtype != np.float16 or out.dtype != np.float32:
        np.copyto(out, numbers, casting="same_kind")
        return
    halves, bits = numbers.view(np.int16), out.view(np.int32)
    step = max(1, _BLOCK // max(1, halves[:1].size))
    for low in range(0, len(halves), step):
        block = bits[low : low + step]
        np.left_shift(halves[low : low + step], 13, out=block, dtype=np.int32)
        np.bitwise_and(block, np.int32(-0x70002000), out=block)  # what the sign filled beyond exponent and fraction
        wide = out[low : low + step]
        np.multiply(wide, np.float32(2.0**112), out=wide)


def to_float32(numbers: np.ndarray) -> np.ndarray:
    """`numbers` in float32: as they are if they are that already, else a copy."""
    if numbers.dtype == np.float32:
        return numbers
    out = np.empty(numbers.shape, np.float32)
    widen(numbers, out)
    return out


def all_finite(halves: np.ndarray) -> bool:
    """Is no float16 infinite or NaN? Those have all exponent bits set."""
    exponent = np.uint16(0x7C00)
    return bool((halves.view(np.uint16) & exponent).max(initial=0) < exponent)


# --- spill ----------------------------------------------------------------------------------------

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


# --- threads --------------------------------------------------------------------------------------

_T = TypeVar("_T")
_R = TypeVar("_R")


def map_in_threads(
    call: Callable[[_T], _R], items: Sequence[_T], threads: int | None = None, task: Task | None = None
) -> list[_R]:
    """`call` of each item, several at once, each with matrix products of one thread; `task` advances by each.

    Products split among threads wait for each other, and what stands between them has one thread. The bits of a
    result do not depend on how many items there are.
    """
    count = min(len(items), threads or count_cores())
    with ONE_THREAD_PRODUCTS:
        if count < 2:
            return list(_advancing(map(call, items), task))
        with ThreadPoolExecutor(count, thread_name_prefix="tfa") as pool:
            return list(_advancing(pool.map(call, items), task))


def _advancing(results: Iterable[_R], task: Task | None) -> Iterator[_R]:
    for result in results:
        if task is not None:
            task.advance()
        yield result


def count_cores() -> int:
    """Count the cores of this process; a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _blas() -> ThreadpoolController:
    """The libraries of matrix products whose thread count is the whole process's."""
    found = ThreadpoolController().select(user_api="blas")
    own = ("openblas", "openmp")  # there each thread has a count of its own, which no other can restore
    shared = [lib for lib in found.lib_controllers if (lib.internal_api, getattr(lib, "threading_layer", "")) != own]
    return found.select(filepath=[lib.filepath for lib in shared])


class _SharedLimit:
    """Matrix products of one thread, while anyone is inside.

    Callers may overlap and end in any order: the first one in sets the limit, the last one out restores it.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._limit = _blas().limit(limits=1, user_api="blas")
                self._let_go()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limit.restore_original_limits()
                self._let_go()

    @staticmethod
    def _let_go() -> None:
        """So that another thread may restore: threadpoolctl obeys only the thread that set the limit before."""
        for lib in _blas().lib_controllers:
            if hasattr(lib, "clear_controlling_thread"):  # older releases have no such rule
                lib.clear_controlling_thread()


ONE_THREAD_PRODUCTS = _SharedLimit()
