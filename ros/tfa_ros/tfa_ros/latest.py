"""A slot for one thing and a thread that works on it: what comes while it works replaces what waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """`put` never waits. `work` gets the newest thing; it says None when done, or after how many seconds to try again.

    What is tried again is the newest thing then: the old one only if nothing came meanwhile.
    """

    def __init__(self, work: Callable[[T], float | None], rate: float = 0.0) -> None:
        """`rate` is how often a second `work` may begin; 0 is as often as there is something to do."""
        self._work, self._interval = work, 1 / rate if rate else 0.0
        self._changed = threading.Condition()
        self._waiting: list[T] = []  # one at most
        self._stopped = False
        self._put = self._replaced = 0
        self._thread = threading.Thread(target=self._run, name="tfa newest image", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> tuple[int, int]:
        """Things that came, and those of them that were replaced before anything was done with them."""
        with self._changed:
            return self._put, self._replaced

    def put(self, thing: T) -> None:
        with self._changed:
            self._put += 1
            self._replaced += len(self._waiting)
            self._waiting = [thing]
            self._changed.notify_all()

    def stop(self, timeout: float = 5.0) -> None:
        """No more work begins; waits for what is under way."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join(timeout)

    def _run(self) -> None:
        not_before = 0.0
        while True:
            with self._changed:
                # Taken as late as the rate allows, so that it is the newest.
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
