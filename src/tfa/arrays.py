"""The seam between numpy on a CPU and torch tensors on a GPU, and the few array idioms all stages share.

Numeric stages are written once, against the array API (`xp`): they take whatever arrays they are given.
A `Backend` says where heavy arrays live; what leaves a stage for the controller is numpy again.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from array_api_compat import array_namespace
from threadpoolctl import ThreadpoolController

from tfa.errors import BadSpec

T = TypeVar("T")
R = TypeVar("R")
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


def l2(x: Array) -> Array:
    """Unit vectors along the last axis; L2(0) = 0."""
    xp = array_namespace(x)
    norm = xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True))
    return x / xp.where(norm > 0, norm, xp.ones_like(norm))


def in_threads(call: Callable[[T], R], items: Sequence[T], threads: int | None = None) -> list[R]:
    """`call` of each item, several at once, each with matrix products of one thread.

    Products split among threads wait for each other, and what stands between them has one thread. The bits of a
    result do not depend on how many items there are.
    """
    count = min(len(items), threads or usable_cores())
    with ONE_THREAD_PRODUCTS:
        if count < 2:
            return [call(item) for item in items]
        with ThreadPoolExecutor(count, thread_name_prefix="tfa") as pool:
            return list(pool.map(call, items))


def usable_cores() -> int:
    """Of this process: a container may have fewer than the machine."""
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
        _, name = tempfile.mkstemp(dir=self._folder, suffix=".bin")
        Path(name).unlink()  # a new, sparse file
        mapped = np.memmap(name, dtype, "w+", shape=shape)
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
        base = base.base  # type: ignore[assignment]
    if base is not None and hasattr(mmap, "MADV_DONTNEED"):
        # Of a shared file mapping this drops the process's pages, not what was written to them.
        base._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
