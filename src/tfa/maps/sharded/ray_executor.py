"""Shards as tasks of a Ray cluster, one task a shard.

Tasks and not Ray Data's pools of actors: a pool waits for ever for an actor whose node died, a task is repeated on
another node. Ray repeats a task whose worker or node was lost without end (`max_retries=-1`); the shard's file is the
proof that it is done, so repeating one that was finished costs a look at the file.
"""

from __future__ import annotations

import os
import secrets
import socket
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, TypeVar

from tfa.base.threads import usable_cores
from tfa.errors import BadSpec, MissingExtra, StoreUnavailable, TfaError
from tfa.maps.sharded.executors import AHEAD, Executor

T = TypeVar("T")
R = TypeVar("R")
ADDRESSES = "auto, local, ray://HOST:10001 or HOST:PORT"
OBJECT_STORE = 200_000_000  # bytes of a local one: results are a few numbers, all else is in files
CONNECT_SECONDS = 5.0
LOOPBACK = ("127.0.0.1", "localhost")


class RayExecutor(Executor):
    """`address`: auto finds the cluster this machine is in, local starts a small one here for this build."""

    name = "ray"

    def __init__(self, address: str, workers: int | None = None, *, gpus: int = 0) -> None:
        if address not in ("auto", "local") and ":" not in address:
            raise BadSpec(f"--ray {address} is no address of a cluster; give {ADDRESSES}")
        _check_answers(address)  # Ray itself would try for minutes
        self._ray = _imported(address)
        self._connect(address, workers)
        self._gpus = gpus
        cores = int(self._ray.cluster_resources().get("CPU", 1))
        self.workers = max(min(workers or cores, cores), 1)

    def _connect(self, address: str, workers: int | None) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address == "local":
            # On loopback alone: Ray listens on all interfaces otherwise.
            options |= {"num_cpus": workers or usable_cores(), "include_dashboard": False}
            options |= {"object_store_memory": OBJECT_STORE, "_node_ip_address": LOOPBACK[0]}
        elif address.rpartition(":")[0] in LOOPBACK:
            options["_node_ip_address"] = LOOPBACK[0]
        try:
            with warnings.catch_warnings():
                # Ray starts programs, which LanceDB takes for forks of this one.
                warnings.filterwarnings("ignore", "lancedb fork support", RuntimeWarning)
                self._ray.init(address=address, **options)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, self._ray.exceptions.RayError) as error:
            raise _silent(address, error) from None

    def map(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        ray = self._ray
        task = ray.remote(num_cpus=1, num_gpus=self._gpus, max_retries=-1)(_computed)
        shared = ray.put(work)
        waiting, under_way = deque(items), list[Any]()
        try:
            while waiting or under_way:
                while waiting and len(under_way) < AHEAD * self.workers:
                    under_way.append(task.remote(shared, waiting.popleft()))
                [done], under_way = ray.wait(under_way)
                yield _result(ray, done)
        finally:
            for one in under_way:
                ray.cancel(one)

    def close(self) -> None:
        self._ray.shutdown()


def _check_answers(address: str) -> None:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host:
        return  # auto, local
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise _silent(address, error) from None


def _silent(address: str, error: Exception) -> StoreUnavailable:
    said = (str(error) or type(error).__name__).splitlines()[0]
    return StoreUnavailable(
        f"Ray does not answer at {address} ({said}); start a cluster with: ray start --head, or give {ADDRESSES}"
    )


def _computed(work: Callable[[T], R], item: T) -> R:
    """What a worker runs."""
    return work(item)


def _result(ray: Any, done: Any) -> Any:
    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, TfaError):
            raise error.cause from None  # as if it had happened here
        raise
    except ray.exceptions.RayError as error:
        raise StoreUnavailable(
            f"Ray gave up on a shard ({str(error).splitlines()[0]}); build again: what is done is not repeated"
        ) from None


def _imported(address: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # without it Ray warns that it will change
    if address == "local":
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # of this build's own cluster, kept nowhere
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        # Ray's word for "this machine alone": otherwise it takes the machine's address for 127.0.0.1.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        ray = import_module("ray")

        if address.startswith("ray://"):
            import_module("grpc")
    except ImportError as error:
        raise MissingExtra(
            f"--ray needs a package that is not installed ({error}); install it with: pip install 'tfa-vpr[ray]'"
        ) from None
    return ray
