"""Threads: several images at once, each with matrix products of one thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

from tfa.base.progress import Task

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
