"""Counters, latencies and sizes in Prometheus' text format."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds
HELP = {
    "tfa_requests_total": ("counter", "Requests answered, by route, method and status."),
    "tfa_request_seconds": ("histogram", "Time from the first byte of a request to the last of its answer."),
    "tfa_edits_total": ("counter", "Edits that were written to disk, by map and kind."),
    "tfa_batches_total": ("counter", "Batches of queries encoded and scored together, by map."),
    "tfa_batch_photos_total": ("counter", "Photos in those batches, by map."),
    "tfa_queue_length": ("gauge", "Queries that wait to be encoded, by map."),
    "tfa_map_images": ("gauge", "Images that answer, by map."),
    "tfa_map_revision": ("gauge", "Revision of the map, by map."),
    "tfa_jobs": ("gauge", "Calibration jobs remembered, by state."),
}

Labels = tuple[tuple[str, str], ...]


def labels(**values: str) -> Labels:
    return tuple(sorted(values.items()))


class Metrics:
    """Numbers that any thread may add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, Labels], float] = {}
        self._times: dict[tuple[str, Labels], tuple[list[int], float]] = {}

    def count(self, name: str, by: float = 1, **labelled: str) -> None:
        key = (name, labels(**labelled))
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + by

    def observe(self, name: str, seconds: float, **labelled: str) -> None:
        key = (name, labels(**labelled))
        with self._lock:
            counts, total = self._times.get(key) or ([0] * (len(BUCKETS) + 1), 0.0)
            counts[bisect_left(BUCKETS, seconds)] += 1
            self._times[key] = (counts, total + seconds)

    def text(self, gauges: Iterable[tuple[str, Mapping[str, str], float]] = ()) -> str:
        """Everything so far, and `gauges` as they stand now: name, labels, value."""
        with self._lock:
            counts = dict(self._counts)
            times = {key: (list(buckets), total) for key, (buckets, total) in self._times.items()}
        lines: dict[str, list[str]] = {name: [] for name in HELP}
        for (name, labelled), value in counts.items():
            lines[name].append(_line(name, labelled, value))
        for name, given, value in gauges:
            lines[name].append(_line(name, labels(**given), value))
        for (name, labelled), (buckets, total) in times.items():
            below = 0
            for bound, number in zip((*map(str, BUCKETS), "+Inf"), buckets, strict=True):
                below += number
                lines[name].append(_line(f"{name}_bucket", (*labelled, ("le", bound)), below))
            lines[name] += [_line(f"{name}_sum", labelled, total), _line(f"{name}_count", labelled, below)]
        blocks = [
            "\n".join([f"# HELP {name} {HELP[name][1]}", f"# TYPE {name} {HELP[name][0]}", *samples])
            for name, samples in lines.items()
            if samples
        ]
        return "\n".join(blocks) + "\n"


def _line(name: str, labelled: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labelled)
    # repr keeps every digit: a sum of seconds that is rounded to six stands still once it is large.
    return f"{name}{{{inside}}} {int(value) if float(value).is_integer() else repr(float(value))}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Measured:
    """Counts and times every request, under the pattern of its route: ids in paths would make endless labels."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "DELETE", "OPTIONS") else "other"
            self.metrics.count("tfa_requests_total", route=route, method=method, status=str(status))
            self.metrics.observe("tfa_request_seconds", time.perf_counter() - started, route=route)
