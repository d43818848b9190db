"""Time and peak memory of a call, the same number of threads for every library, and the machine they ran on."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tfa.bench.provenance import hardware, versions
from tfa.core.progress import Progress

Bars = bool | Progress | None  # what `as_progress` takes
LIBRARIES = ("scipy", "scikit-learn", "faiss-cpu", "fast-pytorch-kmeans", "openvino")
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Measured:
    """The shortest of several runs, the most memory any of them took beyond what was there, and the last result."""

    seconds: float
    peak_bytes: int | None
    result: Any


def measure(call: Callable[[], Any], repeats: int = 1) -> Measured:
    return measure_in_turn({"only": call}, repeats)["only"]


def measure_in_turn(
    calls: dict[str, Callable[[], Any]], repeats: int = 1, before_each: Callable[[], Any] = lambda: None
) -> dict[str, Measured]:
    """Every call `repeats` times, in turn, so that a busy machine slows them alike; `before_each` is not timed."""
    seconds, peaks, results = dict.fromkeys(calls, math.inf), dict.fromkeys(calls, 0), dict.fromkeys(calls)
    known = resident("VmHWM") is not None and _forget_peak()
    for _ in range(repeats):
        for name, call in calls.items():
            results[name] = None  # the last result does not count against this one
            before_each()
            _forget_peak()
            before, started = resident("VmRSS") or 0, time.perf_counter()
            results[name] = call()
            seconds[name] = min(seconds[name], time.perf_counter() - started)
            peaks[name] = max(peaks[name], (resident("VmHWM") or 0) - before)
    return {name: Measured(seconds[name], peaks[name] if known else None, results[name]) for name in calls}


def fastest(runs: Iterable[Any], call: Callable[[], tuple[float, float, Any]]) -> tuple[float, float, Any, int | None]:
    """Of a call for each of `runs`, which times itself and its floor: the fastest (seconds, floor, what else it gives),
    and the most memory any of them took."""
    measured = [measure(call) for _ in runs]
    peak = max((one.peak_bytes for one in measured if one.peak_bytes is not None), default=None)
    return *min((one.result for one in measured), key=lambda result: result[0]), peak


def resident(field: str) -> int | None:
    """Bytes of this process's memory now (`VmRSS`) or at most (`VmHWM`); None where the system does not say."""
    with contextlib.suppress(OSError):
        match = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text("ascii"), re.MULTILINE)
        return None if match is None else 1024 * int(match[1])
    return None


def _forget_peak() -> bool:
    """Let `VmHWM` start again from what is resident now."""
    try:
        CLEAR.write_text("5", "ascii")
    except OSError:
        return False
    return True


def thread_count() -> int:
    """Threads of numpy's matrix products: what is set, else what the environment sets, else every core."""
    with contextlib.suppress(ImportError):
        pools = importlib.import_module("threadpoolctl").threadpool_info()
        threads = [pool["num_threads"] for pool in pools if pool["user_api"] == "blas"]
        if threads:
            return max(threads)
    wanted = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or ""
    return int(wanted) if wanted.isdigit() and int(wanted) > 0 else os.cpu_count() or 1


@contextlib.contextmanager
def same_threads(count: int, *libraries: Any) -> Iterator[None]:
    """`count` threads for BLAS, OpenMP, torch and faiss (where given), as they were afterwards."""
    import torch

    setters = [(torch.get_num_threads, torch.set_num_threads)]
    setters += [(one.omp_get_max_threads, one.omp_set_num_threads) for one in libraries if one is not None]
    before = [get() for get, _ in setters]
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):
            stack.enter_context(importlib.import_module("threadpoolctl").threadpool_limits(count))
        try:
            for _, put in setters:
                put(count)
            yield
        finally:
            for (_, put), value in zip(setters, before, strict=True):
                put(value)


def machine() -> dict[str, str | int]:
    """The processor by name, its cores, and its memory where the system says it."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return {**hardware(), "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")}
    return hardware()


def library_versions() -> dict[str, str]:
    installed = versions()
    for package in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed
