"""Counters, latencies and sizes in Prometheus' text format."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds
METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")


class Metrics:
    """The numbers of one service, which any thread may change. The names of counters end in `_total` when written."""

    def __init__(self) -> None:
        self._registry = own = CollectorRegistry()
        by_route = ("route", "method", "status")
        self.requests = Counter("tfa_requests", "Requests answered.", by_route, registry=own)
        timed = "Time from the first byte of a request to the last of its answer."
        self.seconds = Histogram("tfa_request_seconds", timed, ["route"], buckets=BUCKETS, registry=own)
        self.edits = Counter("tfa_edits", "Edits that were written to disk.", ["map", "kind"], registry=own)
        self.batches = Counter("tfa_batches", "Batches of queries encoded and scored together.", ["map"], registry=own)
        self.batch_photos = Counter("tfa_batch_photos", "Photos in those batches.", ["map"], registry=own)
        self.queue_length = Gauge("tfa_queue_length", "Queries that wait to be encoded.", ["map"], registry=own)
        self.map_images = Gauge("tfa_map_images", "Images that answer.", ["map"], registry=own)
        self.map_revision = Gauge("tfa_map_revision", "Revision of the map.", ["map"], registry=own)
        self.cameras = Gauge("tfa_cameras", "Cameras that are remembered.", ["map"], registry=own)
        answered = "Photos of named cameras that were answered."
        self.camera_photos = Counter("tfa_camera_photos", answered, ["map"], registry=own)
        self.jobs = Gauge("tfa_jobs", "Calibration jobs remembered.", ["state"], registry=own)

    def text(self) -> str:
        """Everything so far, gauges as they stand now."""
        return generate_latest(self._registry).decode()


class MeasureRequests:
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
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.metrics.requests.labels(route, method, status).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - started)
