"""Calls in threads: their results, and the thread count of the process's matrix products."""

from __future__ import annotations

import resource
import threading
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from tests.waiting import PATIENCE, wait_until
from tfa.core.arrays import map_in_threads, start_threads


def blas_threads() -> list[int]:
    """Of numpy's own library: others, loaded by other tests, have other users."""
    return [pool["num_threads"] for pool in threadpool_info() if "numpy" in pool["filepath"]]


@pytest.fixture
def two_threads():
    """Products of two threads, also where the environment allows one."""
    before = blas_threads()
    set_elsewhere(2)
    yield blas_threads()
    set_elsewhere(before[0] if before else None)


def set_elsewhere(count: int | None) -> None:
    """In a thread that ends, and so leaves the count to others."""
    setter = threading.Thread(target=threadpool_limits, kwargs={"limits": count, "user_api": "blas"})
    setter.start()
    setter.join(PATIENCE)


@pytest.mark.parametrize("threads", [1, 3, None])
def test_results_keep_the_order_of_the_items(two_threads, threads):
    assert map_in_threads(lambda item: item * item, range(5), threads) == [0, 1, 4, 9, 16]
    assert map_in_threads(lambda item: item, [], threads) == []
    assert blas_threads() == two_threads


@pytest.mark.parametrize("first_out", [0, 1])
def test_overlapping_calls_leave_the_thread_count_as_it_was(two_threads, first_out):
    inside = [threading.Event(), threading.Event()]
    leave = [threading.Event(), threading.Event()]

    def stay(number: int) -> None:
        inside[number].set()
        assert leave[number].wait(PATIENCE)

    callers = [threading.Thread(target=map_in_threads, args=(stay, [number])) for number in (0, 1)]
    for caller, entered in zip(callers, inside, strict=True):  # one after the other
        caller.start()
        assert entered.wait(PATIENCE)
    told = []
    for number in (first_out, 1 - first_out):
        told += blas_threads()
        leave[number].set()
        callers[number].join(PATIENCE)
    assert set(told) <= {1}  # as long as anyone is inside
    assert blas_threads() == two_threads


def test_nested_and_failing_calls_leave_it_too(two_threads):
    assert map_in_threads(lambda item: sum(map_in_threads(lambda other: item * other, [1, 2])), [3, 4]) == [9, 12]
    assert blas_threads() == two_threads
    with pytest.raises(ZeroDivisionError):
        map_in_threads(lambda item: 1 // item, [1, 0])
    assert blas_threads() == two_threads


def count_threads(prefix: str) -> int:
    return sum(thread.name.startswith(prefix) for thread in threading.enumerate())


def test_a_pool_has_all_its_threads_before_it_gets_work():
    with start_threads(3, "all-run") as pool:
        assert count_threads("all-run") == 3
        assert list(pool.map(lambda item: item + 1, range(9))) == list(range(1, 10))
    assert count_threads("all-run") == 0


def test_threads_that_do_not_fit_into_memory_are_an_error_and_not_a_hang():
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), before[1]))
    try:
        with pytest.raises(MemoryError):
            start_threads(4, "no-room")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert count_threads("no-room") == 0


def test_a_refused_thread_ends_those_that_started(monkeypatch):
    start, started = threading.Thread.start, []

    def refuse_the_third(thread: threading.Thread) -> None:
        if thread.name.startswith("refused"):
            if len(started) == 2:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_the_third)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        start_threads(3, "refused")
    assert len(started) == 2
    wait_until(lambda: count_threads("refused") == 0)
