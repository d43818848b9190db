"""How often one API key, or one address, may ask: a bucket for each that fills at a steady rate."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

BURST_SECONDS = 5  # a full bucket holds the requests of so many seconds
_REMEMBERED = 4096  # buckets; one that was not used for long is full again and need not be kept


class RateLimit:
    """One thread calls this, the one that takes requests."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is limited by a rate of 0."""
        self.per_second, self._clock = per_second, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is left, and when that was

    def wait(self, who: str) -> int:
        """Take a request of somebody in: 0, or the seconds after which it may come again."""
        if not self.per_second:
            return 0
        most, now = max(1.0, self.per_second * BURST_SECONDS), self._clock()
        left, since = self._buckets.pop(who, (most, now))
        left = min(most, left + (now - since) * self.per_second)
        taken = left >= 1
        self._buckets[who] = (left - taken, now)
        while len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        return 0 if taken else max(1, math.ceil((1 - left) / self.per_second))
