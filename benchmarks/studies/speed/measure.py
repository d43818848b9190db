"""Measure time and memory against a floor, and print a line of results."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from tfa.core.progress import Progress
from tfa_bench.provenance import hardware, versions

Bars = bool | Progress | None  # argument of `as_progress`
_LIBRARIES = ("scipy", "scikit-learn", "faiss-cpu", "fast-pytorch-kmeans", "openvino")
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Measured:
    """The shortest of several runs, the largest additional memory of any run, and the last result."""

    seconds: float
    peak_bytes: int | None
    result: Any


def measure(call: Callable[[], Any], repeats: int = 1) -> Measured:
    return measure_in_turn({"only": call}, repeats)["only"]


def measure_in_turn(
    calls: dict[str, Callable[[], Any]], repeats: int = 1, before_each: Callable[[], Any] = lambda: None
) -> dict[str, Measured]:
    """Run every call `repeats` times, alternating, so that a busy machine slows all; `before_each` is not timed."""
    seconds, peaks, results = dict.fromkeys(calls, math.inf), dict.fromkeys(calls, 0), dict.fromkeys(calls)
    known = resident("VmHWM") is not None and _forget_peak()
    for _ in range(repeats):
        for name, call in calls.items():
            results[name] = None  # free the last result, so that its memory does not count here
            before_each()
            _forget_peak()
            before, started = resident("VmRSS") or 0, time.perf_counter()
            results[name] = call()
            seconds[name] = min(seconds[name], time.perf_counter() - started)
            peaks[name] = max(peaks[name], (resident("VmHWM") or 0) - before)
    return {name: Measured(seconds[name], peaks[name] if known else None, results[name]) for name in calls}


def fastest(runs: Iterable[Any], call: Callable[[], tuple[float, float, Any]]) -> tuple[float, float, Any, int | None]:
    """Return the fastest (seconds, floor, other results) of self-timed calls, one for each of `runs`, and the peak
    memory.
    """
    measured = [measure(call) for _ in runs]
    peak = max((one.peak_bytes for one in measured if one.peak_bytes is not None), default=None)
    return *min((one.result for one in measured), key=lambda result: result[0]), peak


def resident(field: str) -> int | None:
    """Return the current (`VmRSS`) or peak (`VmHWM`) memory of this process in bytes; None if unavailable."""
    with contextlib.suppress(OSError):
        match = re.search(rf"^{field}:\s+(\d+) kB", _STATUS.read_text("ascii"), re.MULTILINE)
        return None if match is None else 1024 * int(match[1])
    return None


def _forget_peak() -> bool:
    """Reset `VmHWM` to the current resident memory."""
    try:
        _CLEAR.write_text("5", "ascii")
    except OSError:
        return False
    return True


def thread_count() -> int:
    """Return the threads of numpy's matrix products: as set, else from the environment, else all cores."""
    with contextlib.suppress(ImportError):
        pools = importlib.import_module("threadpoolctl").threadpool_info()
        threads = [pool["num_threads"] for pool in pools if pool["user_api"] == "blas"]
        if threads:
            return max(threads)
    wanted = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or ""
    return int(wanted) if wanted.isdigit() and int(wanted) > 0 else os.cpu_count() or 1


@contextlib.contextmanager
def same_threads(count: int, *libraries: Any) -> Iterator[None]:
    """Use `count` threads for BLAS, OpenMP, torch and optionally faiss, and restore them afterwards."""
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
    """Return the processor's name, its cores, and its memory if known."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return {**hardware(), "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")}
    return hardware()


def library_versions() -> dict[str, str]:
    installed = versions()
    for package in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


COLUMNS = ("", "time", "floor", "ratio", "bar", "met", "peak memory", "on disk")
_UNKNOWN = "–"


@dataclass(frozen=True)
class Bar:
    """Required ratio: at most `allowed`, or at least `allowed` if the ratio is a gain."""

    allowed: float
    at_least: bool = False

    def met(self, ratio: float) -> bool:
        return ratio >= self.allowed if self.at_least else ratio <= self.allowed

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.allowed:g}"


@dataclass(frozen=True)
class Line:
    """One measurement. Values that do not apply are None; `note` explains."""

    what: str
    seconds: float | None = None
    floor: float | None = None  # seconds
    ratio: float | None = None
    bar: Bar | None = None
    peak_bytes: int | None = None
    disk_bytes: int | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """None without a target or a measurement."""
        return None if self.bar is None or self.ratio is None else self.bar.met(self.ratio)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Line:
        given = {name: value for name, value in values.items() if name != "met"}
        bar = given.get("bar")
        return cls(**{**given, "bar": None if bar is None else Bar(**bar)})


@dataclass(frozen=True, kw_only=True)
class OverFloor:
    """A result that is one time and its floor."""

    seconds: float
    floor: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.floor

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


class HasLines(Protocol):
    """A benchmark result that makes its own lines."""

    def lines(self) -> Sequence[Line]: ...

    def to_dict(self) -> dict[str, Any]: ...


def compared(
    what: str,
    seconds: float,
    floor: float,
    bar: Bar | None = None,
    *,
    peak_bytes: int | None = None,
    disk_bytes: int | None = None,
    note: str = "",
) -> Line:
    """Return a line whose ratio is time over floor, or floor over time (the gain) if the bar is `at_least`."""
    gain = bar is not None and bar.at_least
    over, under = (floor, seconds) if gain else (seconds, floor)
    return Line(what, seconds, floor, over / under if under > 0 else None, bar, peak_bytes, disk_bytes, note)


def cells(line: Line) -> tuple[str, ...]:
    """Format the line under `COLUMNS`; its note is appended to the name."""
    met = {True: "yes", False: "no", None: ""}[line.met]
    return (
        f"{line.what} ({line.note})" if line.note else line.what,
        format_seconds(line.seconds),
        format_seconds(line.floor),
        _UNKNOWN if line.ratio is None else f"{line.ratio:.2f}",
        "" if line.bar is None else str(line.bar),
        met,
        format_bytes(line.peak_bytes),
        format_bytes(line.disk_bytes),
    )


def listed(what: str, rows: Sequence[tuple[str, str]]) -> str:
    """Format names and values under a heading."""
    return "\n".join([what, "", *(f"{name:<44}{value:>20}" for name, value in rows)])


def format_seconds(seconds: float | None) -> str:
    if seconds is None:
        return _UNKNOWN
    for least, factor, unit in ((1.0, 1.0, "s"), (1e-3, 1e3, "ms")):
        if seconds >= least:
            return f"{seconds * factor:.3g} {unit}" if seconds * factor < 100 else f"{seconds * factor:.0f} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def format_bytes(count: int | None) -> str:
    if count is None:
        return _UNKNOWN
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"
