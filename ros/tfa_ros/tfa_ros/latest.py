"""A slot for the newest item, and a thread that processes it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """Process the newest item in a thread; `put` never waits, and a new item replaces a waiting one.

    `work` returns None when done, or the seconds until a retry. The retry uses the newest item by then.
    """

    def __init__(self, work: Callable[[T], float | None], rate: float = 0.0) -> None:
        """Start the thread; `rate` is the maximum of calls of `work` per second, 0 for no limit."""
        self._work, self._interval = work, 1 / rate if rate else 0.0
        self._changed = threading.Condition()
        self._waiting: list[T] = []  # at most one item
        self._stopped = False
        self._put = self._replaced = 0
        self._thread = threading.Thread(target=self._run, name="tfa newest image", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> tuple[int, int]:
        """Number of items put, and of items replaced before they were processed."""
        with self._changed:
            return self._put, self._replaced

    def put(self, thing: T) -> None:
        with self._changed:
            self._put += 1
            self._replaced += len(self._waiting)
            self._waiting = [thing]
            self._changed.notify_all()

    def stop(self, timeout: float = 5.0) -> None:
        """Start no more work, and wait for the running call."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join(timeout)

    def _run(self) -> None:
        not_before = 0.0
        while True:
            with self._changed:
                # Take the item as late as possible, so that it is the newest.
                while not self._stopped and (not self._waiting or time.monotonic() < not_before):
                    pause = not_before - time.monotonic() if self._waiting else None
                    self._changed.wait(pause if pause is None else max(pause, 0.0))
                if self._stopped:
                    return
                thing = self._waiting.pop()
            begun = time.monotonic()
            again = self._work(thing)
            not_before = begun + self._interval
            if again is not None:
                not_before = max(not_before, time.monotonic() + again)
                self._give_back(thing)

    def _give_back(self, thing: T) -> None:
        with self._changed:
            if self._waiting:
                self._replaced += 1
            else:
                self._waiting = [thing]
