"""Progress reports of long operations.

Library functions take a `Progress`; the default is silent. `RichProgress` draws bars on standard error with rate and
time left, for operations longer than two seconds. Without a terminal it writes a line every ten seconds instead.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from tfa.core.text import make_printable

_T = TypeVar("_T")
QUIET_SECONDS = 2.0
LINE_SECONDS = 10.0  # seconds between two lines without a terminal


class Task(Protocol):
    def advance(self, steps: int = 1) -> None: ...


class Progress(Protocol):
    def task(self, label: str, total: int, unit: str = "") -> Any:
        """Return a context manager that yields a Task."""


class SilentProgress:
    """Progress that reports nothing."""

    @contextmanager
    def task(self, label: str, total: int, unit: str = "") -> Iterator[Task]:
        yield self

    def advance(self, steps: int = 1) -> None:
        pass


class RichProgress:
    """Bars on standard error for tasks longer than two seconds; lines if it is not a terminal."""

    @contextmanager
    def task(self, label: str, total: int, unit: str = "") -> Iterator[Task]:
        from rich.console import Console

        show = _bar if Console(stderr=True).is_terminal else _lines
        with show(make_printable(label), total, unit) as task:
            yield task


@contextmanager
def _bar(label: str, total: int, unit: str) -> Iterator[Task]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    bars = Bars(
        TextColumn("{task.description}", markup=False),  # a label may name a dataset
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar = bars.add_task(label, total=total, rate="")
    # A timer starts the bar, not the first advance: a single long step must show too.
    clock = threading.Timer(QUIET_SECONDS, bars.start)
    clock.daemon = True
    clock.start()
    try:
        yield _Counted(unit, lambda count, rate: bars.update(bar, completed=count, rate=rate))
    finally:
        clock.cancel()
        if bars.live.is_started:
            bars.stop()


@contextmanager
def _lines(label: str, total: int, unit: str) -> Iterator[Task]:
    counted, ended = _Counted(unit), threading.Event()

    def write() -> None:
        while not ended.wait(LINE_SECONDS):
            announce(counted.line(label, total), RichProgress())

    writer = threading.Thread(target=write, name="tfa-progress", daemon=True)
    writer.start()
    try:
        yield counted
    finally:
        ended.set()
        writer.join()


def announce(text: str, progress: Progress) -> None:
    """Write a line at once, with or without a terminal, unless `progress` is silent."""
    if isinstance(progress, RichProgress):
        with suppress(OSError, ValueError):  # standard error is closed
            print(make_printable(text), file=sys.stderr, flush=True)


class _Counted:
    """Step counter that reports count and rate after each step."""

    def __init__(self, unit: str, report: Callable[[int, str], object] | None = None) -> None:
        self._unit, self._report, self._started, self._done = unit, report, time.monotonic(), 0

    def advance(self, steps: int = 1) -> None:
        self._done += steps
        if self._report is not None:
            self._report(self._done, self.rate)

    @property
    def rate(self) -> str:
        return f"{self._done / self._elapsed:.1f} {self._unit}/s" if self._unit else ""

    @property
    def _elapsed(self) -> float:
        return max(time.monotonic() - self._started, 1e-9)

    def line(self, label: str, total: int) -> str:
        """Format count, rate and time left."""
        parts = [f"{label}: {self._done:,} of {total:,}{' ' if self._unit else ''}{self._unit}"]
        parts += [self.rate] if self.rate else []
        if 0 < self._done < total:
            left = round(self._elapsed / self._done * (total - self._done))
            parts.append(f"about {timedelta(seconds=left)} left")
        else:
            parts.append(f"{timedelta(seconds=round(self._elapsed))} so far")
        return ", ".join(parts)


def as_progress(progress: bool | Progress | None) -> Progress:
    """Return bars or lines for `True`, silence for `False` or `None`; other objects are used as they are."""
    if progress is True:
        return RichProgress()
    return progress or SilentProgress()


def track_progress(items: Iterable[_T], total: int, label: str, progress: Progress, unit: str = "") -> Iterator[_T]:
    """Iterate over items and advance `progress` after each."""
    with progress.task(label, total, unit) as task:
        for item in items:
            yield item
            task.advance()
