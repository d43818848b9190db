"""Progress of long work, reported to whoever listens.

Library functions take a `Progress`; the default says nothing. `RichProgress` draws bars on standard error
with rate and time left, and stays silent for work that ends within two seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from tfa.base.printable import printable

T = TypeVar("T")
QUIET_SECONDS = 2.0


class Task(Protocol):
    def advance(self, steps: int = 1) -> None: ...


class Progress(Protocol):
    def task(self, label: str, total: int, unit: str = "") -> Any:
        """A context manager that yields a Task."""


class SilentProgress:
    """Listens to nothing."""

    @contextmanager
    def task(self, label: str, total: int, unit: str = "") -> Iterator[Task]:
        yield self

    def advance(self, steps: int = 1) -> None:
        pass


class RichProgress:
    """Bars on standard error, shown only once a task has run for two seconds."""

    @contextmanager
    def task(self, label: str, total: int, unit: str = "") -> Iterator[Task]:
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
        started = time.monotonic()
        bar = bars.add_task(printable(label), total=total, rate="")
        # A single long step must show too, so the bar starts by the clock and not with the first advance.
        clock = threading.Timer(QUIET_SECONDS, bars.start)
        clock.daemon = True
        if bars.console.is_terminal:
            clock.start()
        try:
            yield _RichTask(bars, bar, unit, started)
        finally:
            clock.cancel()
            if bars.live.is_started:
                bars.stop()


class _RichTask:
    def __init__(self, bars: Any, bar: Any, unit: str, started: float) -> None:
        self._bars, self._bar, self._unit, self._started, self._done = bars, bar, unit, started, 0

    def advance(self, steps: int = 1) -> None:
        self._done += steps
        elapsed = max(time.monotonic() - self._started, 1e-9)
        rate = f"{self._done / elapsed:.1f} {self._unit}/s" if self._unit else ""
        self._bars.update(self._bar, advance=steps, rate=rate)


def as_progress(progress: bool | Progress | None) -> Progress:
    """`True` draws bars, `False` or `None` is silent, an object of your own is used as it is."""
    if progress is True:
        return RichProgress()
    return progress or SilentProgress()


def tracked(items: Iterable[T], total: int, label: str, progress: Progress, unit: str = "") -> Iterator[T]:
    """Iterate, advancing `progress` after each item."""
    with progress.task(label, total, unit) as task:
        for item in items:
            yield item
            task.advance()
