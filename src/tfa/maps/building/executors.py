"""Executors that compute the shards of a build: in this process, in several, or on a Ray cluster.

`Executor.map(work, items)` calls `work` for every item and yields results in any order. `work` is a small picklable
object that stores results in the work folder and reuses them, so an item can be repeated after a worker is lost.

On Ray, shards are tasks rather than Ray Data's actor pools: a pool waits forever for an actor whose node died, while a
task is retried on another node without limit (`max_retries=-1`).
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import socket
import time
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Self, TypeVar

from tfa.core.arrays import count_cores
from tfa.core.progress import Progress
from tfa.errors import BadSpec, MissingExtra, OutOfResources, StoreUnavailable, TfaError
from tfa.maps.building.work_folder import Item, ItemReport
from tfa.types import BuildPass

_T = TypeVar("_T")
_R = TypeVar("_R")
_AHEAD = 2  # submitted items per worker: one in progress, one queued
_LOSSES = 3  # consecutive lost workers without a result that end the build


class Executor(ABC):
    """A context manager that computes items and stops its workers at the end."""

    name: str
    workers: int

    @abstractmethod
    def map(self, work: Callable[[_T], _R], items: Sequence[_T]) -> Iterator[_R]:
        """Yield results as they complete. The first error of `work` ends it."""

    def close(self) -> None:  # noqa: B027  # optional
        """Stop the workers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SerialExecutor(Executor):
    """Compute items in this process, in order."""

    name, workers = "serial", 1

    def map(self, work: Callable[[_T], _R], items: Sequence[_T]) -> Iterator[_R]:
        return map(work, items)


class ProcessExecutor(Executor):
    """Compute items in processes of this machine; items of a killed process are repeated."""

    name = "processes"

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise BadSpec(f"workers={workers} is out of range: must be at least 1")
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def map(self, work: Callable[[_T], _R], items: Sequence[_T]) -> Iterator[_R]:
        waiting, losses = deque(items), 0
        under_way: dict[Future[_R], _T] = {}
        try:
            while waiting or under_way:
                try:
                    while waiting and len(under_way) < _AHEAD * self.workers:
                        future = self._started().submit(work, waiting[0])  # if this raises, the item keeps waiting
                        under_way[future] = waiting.popleft()
                    for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                        result = future.result()  # if this raises, the item stays in progress
                        del under_way[future]
                        losses = 0
                        yield result
                except BrokenProcessPool:
                    losses += 1
                    if losses == _LOSSES:
                        raise OutOfResources(
                            f"{_LOSSES} worker processes in a row died without a result, probably out of memory; "
                            "lower build.workers or build.shard_size, and rerun the build to resume it"
                        ) from None
                    self.close()
                    ended = [future for future in under_way if future.done() and not future.cancelled()]
                    done = [future for future in ended if future.exception() is None]
                    results = [future.result() for future in done]
                    waiting.extendleft(item for future, item in under_way.items() if future not in done)
                    under_way.clear()
                    yield from results
        finally:
            for future in under_way:
                future.cancel()

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Spawn: a fork would inherit the threads of torch and BLAS in an undefined state.
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.workers, spawn, _start_worker, (self.workers,))
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def _start_worker(workers: int) -> None:
    """Limit a worker to its share of the cores. Results do not depend on it."""
    from threadpoolctl import threadpool_limits

    share = max(count_cores() // workers, 1)
    os.environ.setdefault("OMP_NUM_THREADS", str(share))  # for torch, which is not loaded yet
    threadpool_limits(share)


def choose_executor(ray: str | None, workers: int | None, device: str = "cpu") -> Executor:
    """Return the executor for `build.ray` and `build.workers`. [default: this process]"""
    if ray is not None:
        return RayExecutor(ray, workers, gpus=int(device.startswith("cuda")))
    return SerialExecutor() if workers in (None, 1) else ProcessExecutor(workers or 1)


_ADDRESSES = "auto, local, ray://HOST:10001 or HOST:PORT"
_OBJECT_STORE = 200_000_000  # bytes of a local object store; results are small
_CONNECT_SECONDS = 5.0
_LOOPBACK = ("127.0.0.1", "localhost")


class RayExecutor(Executor):
    """Compute items on Ray. The address "auto" finds this machine's cluster; "local" starts one for this build."""

    name = "ray"

    def __init__(self, address: str, workers: int | None = None, *, gpus: int = 0) -> None:
        if address not in ("auto", "local") and ":" not in address:
            raise BadSpec(f"build.ray={address} is not a cluster address; use {_ADDRESSES}")
        _check_answers(address)  # Ray would retry for minutes
        self._ray = _import_ray(address)
        self._connect(address, workers)
        self._gpus = gpus
        cores = int(self._ray.cluster_resources().get("CPU", 1))
        self.workers = max(min(workers or cores, cores), 1)

    def _connect(self, address: str, workers: int | None) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address == "local":
            # Loopback only: by default Ray listens on all interfaces.
            options |= {"num_cpus": workers or count_cores(), "include_dashboard": False}
            options |= {"object_store_memory": _OBJECT_STORE, "_node_ip_address": _LOOPBACK[0]}
        elif address.rpartition(":")[0] in _LOOPBACK:
            options["_node_ip_address"] = _LOOPBACK[0]
        try:
            with warnings.catch_warnings():
                # Ray starts programs, which LanceDB mistakes for forks of this process.
                warnings.filterwarnings("ignore", "lancedb fork support", RuntimeWarning)
                self._ray.init(address=address, **options)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, self._ray.exceptions.RayError) as error:
            raise _make_silent_error(address, error) from None

    def map(self, work: Callable[[_T], _R], items: Sequence[_T]) -> Iterator[_R]:
        ray = self._ray
        task = ray.remote(num_cpus=1, num_gpus=self._gpus, max_retries=-1)(_compute)
        shared = ray.put(work)
        waiting, under_way = deque(items), list[Any]()
        try:
            while waiting or under_way:
                while waiting and len(under_way) < _AHEAD * self.workers:
                    under_way.append(task.remote(shared, waiting.popleft()))
                [done], under_way = ray.wait(under_way)
                yield _get_result(ray, done)
        except Exception:
            # Not canceled: Ray aborts this process if a canceled task replies. Shards under way end first.
            if under_way:
                ray.wait(under_way, num_returns=len(under_way))
            raise

    def close(self) -> None:
        self._ray.shutdown()


def _check_answers(address: str) -> None:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host:
        return  # auto, local
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise _make_silent_error(address, error) from None


def _make_silent_error(address: str, error: Exception) -> StoreUnavailable:
    said = (str(error) or type(error).__name__).splitlines()[0]
    return StoreUnavailable(
        f"cannot reach Ray at {address} ({said}); start a cluster with: ray start --head, or use {_ADDRESSES}"
    )


def _compute(work: Callable[[_T], _R], item: _T) -> _R:
    """Run one item; Ray needs a plain function."""
    return work(item)


def _get_result(ray: Any, done: Any) -> Any:
    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, TfaError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise StoreUnavailable(
            f"Ray failed on a shard ({str(error).splitlines()[0]}); rerun the build to resume it"
        ) from None


def _import_ray(address: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a deprecation warning of Ray
    if address == "local":
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # for this build's cluster only
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        # Makes Ray use 127.0.0.1 instead of the machine's address.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        ray = import_module("ray")
        if address.startswith("ray://"):
            import_module("grpc")
    except ImportError as error:
        raise MissingExtra(
            f"build.ray needs a package that is not installed ({error}); install it with: pip install 'tfa-vpr[ray]'"
        ) from None
    return ray


@dataclass
class PassRunner:
    """Runs passes on an executor and records their times."""

    executor: Executor
    progress: Progress
    passes: list[BuildPass] = field(default_factory=list)

    def run(
        self,
        name: str,
        work: Callable[[Item], ItemReport],
        items: Sequence[Item],
        images: Sequence[int],
        executor: Executor | None = None,
    ) -> dict[int, ItemReport]:
        """Compute every item and return the reports by item number; `images` per item are for progress."""
        started, heard = time.monotonic(), dict[int, ItemReport]()
        with self.progress.task(name, sum(images), "images") as task:
            for done in (executor or self.executor).map(work, items):
                heard[done.number] = done
                task.advance(done.images + len(done.skipped))
        before, count = sum(one.before for one in heard.values()), sum(one.images for one in heard.values())
        self.passes.append(BuildPass(name, len(items), before, count, time.monotonic() - started))
        return {item.number: heard[item.number] for item in items}

    def timed(self, name: str, call: Callable[[], _T]) -> _T:
        """Time a step that runs in this process."""
        started = time.monotonic()
        result = call()
        self.passes.append(BuildPass(name, 0, 0, 0, time.monotonic() - started))
        return result

    def notes(self) -> list[str]:
        """Return notes about resumed shards and times."""
        photos = [one for one in self.passes if one.name in ("sample", "descriptors")]
        shards, before = sum(one.shards for one in photos), sum(one.before for one in photos)
        took = ", ".join(f"{one.name} {one.seconds:.1f} s" for one in self.passes)
        workers = f"{self.executor.workers} worker{'s' * (self.executor.workers != 1)} ({self.executor.name})"
        known = [f"resumed: {before} of {shards} shards were done already"] if before else []
        return [*known, f"built by {workers}: {took}"]
