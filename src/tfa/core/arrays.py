"""Shared array helpers: backends (numpy or torch), half precision, arrays spilled to disk, and threads.

Numeric stages are written once against the array API (`xp`); a `Backend` names the device of large arrays. Large
results are stored in memory-mapped temporary files.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from tfa.core.files import LockedFolder, tidy
from tfa.core.progress import Task
from tfa.errors import BadSpec, DiskFull, MissingExtra, TfaError, from_os_error

Array = Any  # array of any namespace; each signature states its shapes


@dataclass(frozen=True)
class Backend:
    """Array library and device. `cpu` is numpy; `cuda`, `mps` and `torch` are torch."""

    device: str
    xp: Any
    torch_device: str | None = None

    def put(self, array: np.ndarray, dtype: str | None = None) -> Array:
        """Copy a numpy array to the backend, converted to `dtype` if it is set."""
        array = np.asarray(array) if dtype is None else np.asarray(array, dtype=dtype)
        if self.torch_device is None:
            return array
        if not array.flags.writeable:
            array = array.copy()  # torch refuses to share read-only memory such as a mapped file
        return self.xp.asarray(array, device=self.torch_device)


def choose_device(device: str) -> str:
    """Return a usable device: `auto` is cuda, then mps, then cpu; a device that is not there raises BadSpec."""
    if device == "cpu":
        return device
    try:
        import torch
    except ImportError:
        if device == "auto":
            return "cpu"
        raise MissingExtra(
            f"--device {device} needs PyTorch; install with: pip install 'tfa-vpr[torch]', or use --device cpu"
        ) from None
    cuda, metal = torch.cuda.device_count(), torch.backends.mps.is_available()
    if device == "auto":
        return "cuda" if cuda else "mps" if metal else "cpu"
    kind, colon, number = device.partition(":")
    if device != "mps" and (kind != "cuda" or (colon and not number.isdecimal())):
        raise BadSpec(f"unknown device {device!r}; use auto, cpu, cuda, cuda:N or mps")
    if not metal if kind == "mps" else int(number or 0) >= cuda:
        raise BadSpec(
            f"device {device!r} is not available: torch {torch.__version__} finds {cuda} CUDA devices and "
            f"{int(metal)} Metal devices; use auto or cpu, or install a build of torch for the device and its driver"
        )
    return device


def backend_for(device: str, *, double: bool = True) -> Backend:
    """Return numpy for `cpu`, torch on a GPU for `cuda` or `cuda:1`, torch on the CPU for `torch` (comparisons).

    Metal has no float64: for `mps` it is numpy, unless `double` is off.
    """
    device = device if device == "torch" else choose_device(device)
    if device == "cpu" or (device == "mps" and double):
        return Backend("cpu", np)
    import array_api_compat.torch as torch_namespace

    return Backend(device, torch_namespace, "cpu" if device == "torch" else device)


def array_namespace(array: Array) -> Any:
    """Return the functions for an array: numpy itself, or torch's in the same form."""
    if isinstance(array, np.ndarray):
        return np
    import array_api_compat

    return array_api_compat.array_namespace(array)


def to_numpy(array: Array) -> np.ndarray:
    """Convert an array of any backend to numpy."""
    if isinstance(array, np.ndarray):
        return array
    return array.detach().cpu().numpy() if hasattr(array, "detach") else np.asarray(array)


def l2_normalize(x: Array) -> Array:
    """Normalize vectors along the last axis to unit length; zero vectors stay zero."""
    xp = array_namespace(x)
    norm = xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True))
    return x / xp.where(norm > 0, norm, xp.ones_like(norm))


# --- half -----------------------------------------------------------------------------------------

# Smallest magnitude that `widen` returns for float16 infinities and NaN.
NOT_FINITE = 2.0**16
_BLOCK = 1 << 17  # numbers per block, few enough to stay in the CPU cache for three passes


def widen(numbers: np.ndarray, out: np.ndarray) -> None:
    """Convert `numbers` into `out`, two to three times as fast as numpy from float16 to float32.

    Shifting the fields of a half into those of a float gives the number times 2^(15 − 127), also for subnormals. So
    every finite half is exact; infinities and NaN become numbers of 2^16 or more.
    """
    if numbers.dtype != np.float16 or out.dtype != np.float32:
        np.copyto(out, numbers, casting="same_kind")
        return
    halves, bits = numbers.view(np.int16), out.view(np.int32)
    step = max(1, _BLOCK // max(1, halves[:1].size))
    for low in range(0, len(halves), step):
        block = bits[low : low + step]
        np.left_shift(halves[low : low + step], 13, out=block, dtype=np.int32)
        np.bitwise_and(block, np.int32(-0x70002000), out=block)  # clear the bits that sign extension set
        wide = out[low : low + step]
        np.multiply(wide, np.float32(2.0**112), out=wide)


def to_float32(numbers: np.ndarray) -> np.ndarray:
    """Convert to float32; float32 input is returned without a copy."""
    if numbers.dtype == np.float32:
        return numbers
    out = np.empty(numbers.shape, np.float32)
    widen(numbers, out)
    return out


def all_finite(halves: np.ndarray) -> bool:
    """Return True if all float16 values are finite. (Inf and NaN have all exponent bits set.)"""
    exponent = np.uint16(0x7C00)
    return bool((halves.view(np.uint16) & exponent).max(initial=0) < exponent)


# --- spill ----------------------------------------------------------------------------------------

SPILL_PREFIX, _SUFFIX = "tfa-spill-", ".bin"
SPILL_BYTES = 4 << 20  # largest array in memory
_NO_RESERVING = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # errors of file systems without fallocate


class Spill:
    """Array storage: small arrays in memory, large ones in memory-mapped temporary files."""

    def __init__(self, spill_bytes: int | None = None) -> None:
        self.spill_bytes = SPILL_BYTES if spill_bytes is None else spill_bytes
        self._folder: Path | None = None

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        dtype = np.dtype(dtype)
        size = int(np.prod(shape)) * dtype.itemsize
        if size <= self.spill_bytes:
            return np.empty(shape, dtype)
        parent = Path(tempfile.gettempdir()) if self._folder is None else self._folder.parent
        try:
            if self._folder is None:
                tidy(parent, f"{SPILL_PREFIX}*", lambda name: name.endswith(_SUFFIX))
                folder = LockedFolder(parent, SPILL_PREFIX)
                weakref.finalize(self, folder.remove)
                self._folder = folder.path
            mapped = np.memmap(_reserved(self._folder, size), dtype, "r+", shape=shape)
        except OSError as error:
            raise (_what_ran_out(error, size, parent) or error) from None
        mapped.spill = self  # type: ignore[attr-defined]  # keeps the file as long as an array uses it
        return mapped

    def keep(self, array: np.ndarray) -> np.ndarray:
        """Copy an array; the copy is memory-mapped if it is large."""
        kept = self.empty(array.shape, array.dtype)
        kept[...] = array
        release(kept)
        return kept


def _reserved(folder: Path, size: int) -> Path:
    """Create a file with its disk space allocated: a mapped page without space would kill the process (SIGBUS)."""
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
    """Explain a resource error; a full disk gets advice on temporary files."""
    known = from_os_error(error, parent)
    if not isinstance(known, DiskFull):
        return known
    return DiskFull(
        f"temporary data needs {size:,} bytes in {parent}, but only {shutil.disk_usage(parent).free:,} are free; free "
        "disk space, or set the environment variable TMPDIR to a folder on another disk",
        parent,
    )


def release(*arrays: np.ndarray | None) -> None:
    """Release the resident pages of mapped arrays; their content stays in the files."""
    base: Any
    for base in arrays:
        while base is not None and not isinstance(getattr(base, "_mmap", None), mmap.mmap):
            base = getattr(base, "base", None)  # the base may be a tensor without one
        if base is not None and hasattr(mmap, "MADV_DONTNEED"):
            # For a shared file mapping this drops the process's pages, not the data written to them.
            base._mmap.madvise(mmap.MADV_DONTNEED)


# --- threads --------------------------------------------------------------------------------------

_T = TypeVar("_T")
_R = TypeVar("_R")
_THREAD_BYTES = 16 << 20  # free address space wanted for a thread: 8 MB of stack on Linux, and memory for its objects


def start_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Return a pool of `count` running threads; raise MemoryError if they do not fit into memory.

    Python waits forever for a thread that runs out of memory while it starts. So memory is checked first, and no thread
    gets work, which allocates, before all have started.
    """
    if hasattr(mmap, "MAP_ANON"):  # not on Windows
        try:
            # Without access rights, the pages take no memory.
            mmap.mmap(-1, count * _THREAD_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON, prot=0).close()
        except OSError:
            raise MemoryError from None
    pool, started = ThreadPoolExecutor(count, thread_name_prefix=name), threading.Event()
    try:
        for _ in range(count):
            pool.submit(started.wait)  # no thread is idle, so each call starts one
    finally:
        started.set()
    return pool


def map_in_threads(
    call: Callable[[_T], _R], items: Sequence[_T], threads: int | None = None, task: Task | None = None
) -> list[_R]:
    """Call `call` on the items in parallel threads, with single-threaded matrix products; advance `task` after each.

    This is faster than multithreaded products, which leave other steps with one thread. Results do not depend on the
    number of items, to the last bit.
    """
    count = min(len(items), threads or count_cores())
    results: list[_R] = []
    with ONE_THREAD_PRODUCTS, start_threads(count, "tfa") if count > 1 else nullcontext() as pool:
        for result in map(call, items) if pool is None else pool.map(call, items):
            results.append(result)
            if task is not None:
                task.advance()
    return results


def count_cores() -> int:
    """Return the number of cores this process may use, which a container can limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _blas() -> ThreadpoolController:
    """Return the BLAS libraries whose thread count applies to the whole process."""
    found = ThreadpoolController().select(user_api="blas")
    own = ("openblas", "openmp")  # a count per thread, which other threads cannot restore
    shared = [lib for lib in found.lib_controllers if (lib.internal_api, getattr(lib, "threading_layer", "")) != own]
    return found.select(filepath=[lib.filepath for lib in shared])


class _SharedLimit:
    """Context manager that limits matrix products to one thread.

    Callers may overlap and end in any order: the first to enter sets the limit, the last to leave restores it.
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
        """Allow another thread to restore the limit; threadpoolctl accepts only the thread that set it."""
        for lib in _blas().lib_controllers:
            if hasattr(lib, "clear_controlling_thread"):  # older releases accept any thread
                lib.clear_controlling_thread()


ONE_THREAD_PRODUCTS = _SharedLimit()
