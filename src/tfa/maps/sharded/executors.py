"""Executors: who computes the shards of a build.

An executor has one method, `map(work, items)`: call `work` of every item somewhere and yield the results as they are
done, in any order. `work` is a small object that can be pickled, keeps its results in the work folder and finds those
that are there, so an item may be repeated after a worker was lost. Dask would be a few lines: `Client.submit(work,
item, retries=5, pure=False)` for each item, results from `as_completed`.
"""

from __future__ import annotations

import multiprocessing
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Any, Self, TypeVar

from tfa.base.threads import count_cores
from tfa.errors import BadSpec, OutOfResources

T = TypeVar("T")
R = TypeVar("R")
AHEAD = 2  # items a worker has: one that it computes, one that waits for it
LOSSES = 3  # workers lost one after the other, without a result between, after which something is wrong


class Executor(ABC):
    """Used in a `with` block, at whose end what it started is stopped."""

    name: str
    workers: int

    @abstractmethod
    def map(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Results as they are done. The first error of `work` ends it."""

    def close(self) -> None:  # noqa: B027  # most have nothing to stop
        """Stop what was started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


class SerialExecutor(Executor):
    """This process, one item after the other."""

    name, workers = "serial", 1

    def map(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        return map(work, items)


class ProcessExecutor(Executor):
    """Processes of this machine. If one is killed, what was under way is repeated by others."""

    name = "processes"

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise BadSpec(f"workers={workers} is out of range: must be at least 1")
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def map(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        waiting, losses = deque(items), 0
        under_way: dict[Future[R], T] = {}
        try:
            while waiting or under_way:
                try:
                    while waiting and len(under_way) < AHEAD * self.workers:
                        future = self._started().submit(work, waiting[0])  # if that raises, the item still waits
                        under_way[future] = waiting.popleft()
                    for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                        result = future.result()  # if that raises, the item is still under way
                        del under_way[future]
                        losses = 0
                        yield result
                except BrokenProcessPool:
                    losses += 1
                    if losses == LOSSES:
                        raise OutOfResources(
                            f"{LOSSES} worker processes ended one after the other without a result, as happens when "
                            "memory runs out; give fewer --workers or a smaller --shard-size, and build again: what is "
                            "done is not repeated"
                        ) from None
                    self._stop()
                    done = [future for future in under_way if _has_result(future)]
                    results = [future.result() for future in done]
                    waiting.extendleft(item for future, item in under_way.items() if future not in done)
                    under_way.clear()
                    yield from results
        finally:
            for future in under_way:
                future.cancel()

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Spawned: a fork would take over the threads of torch and of matrix products in whatever state they are.
            self._pool = ProcessPoolExecutor(
                self.workers, multiprocessing.get_context("spawn"), _start_worker, (self.workers,)
            )
        return self._pool

    def _stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def close(self) -> None:
        self._stop()


def _has_result(future: Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _start_worker(workers: int) -> None:
    """Each worker takes its share of the cores; a result does not depend on it."""
    from threadpoolctl import threadpool_limits

    share = max(count_cores() // workers, 1)
    os.environ.setdefault("OMP_NUM_THREADS", str(share))  # of torch, which is loaded with the encoder
    threadpool_limits(share)


def executor_for(ray: str | None, workers: int | None, device: str = "cpu") -> Executor:
    """What `--ray` and `--workers` name; without either this process."""
    if ray is not None:
        from tfa.maps.sharded.ray_executor import RayExecutor

        return RayExecutor(ray, workers, gpus=0 if device == "cpu" else 1)
    return SerialExecutor() if workers in (None, 1) else ProcessExecutor(workers or 1)
