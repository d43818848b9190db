"""Progress of long work, told to whoever listens.

Library functions take a `Progress`; the default says nothing. `RichProgress` draws bars on standard error
with rate and time left, and stays silent for work that ends within two seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

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
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        bar = _RichTask(bars, bars.add_task(label, total=total, rate=""), unit)
        try:
            yield bar
        finally:
            if bars.live.is_started:
                bars.stop()


class _RichTask:
    def __init__(self, bars: Any, task: Any, unit: str) -> None:
        self._bars, self._task, self._unit = bars, task, unit
        self._start, self._done, self._shown = time.monotonic(), 0, False

    def advance(self, steps: int = 1) -> None:
        self._done += steps
        elapsed = time.monotonic() - self._start
        if not self._shown and elapsed >= QUIET_SECONDS and self._bars.console.is_terminal:
            self._bars.start()
            self._shown = True
        rate = f"{self._done / elapsed:.1f} {self._unit}/s" if self._unit and elapsed > 0 else ""
        self._bars.update(self._task, advance=steps, rate=rate)


def as_progress(progress: bool | Progress | None) -> Progress:
    """`True` draws bars, `False` or `None` is silent, an object of your own is used as it is."""
    if progress is True:
        return RichProgress()
    return progress or SilentProgress()


def tracked(items: Iterable[T], total: int, label: str, progress: Progress, unit: str = "") -> Iterator[T]:
    """Iterate, telling `progress` after each item."""
    with progress.task(label, total, unit) as task:
        for item in items:
            yield item
            task.advance()
