"""Middleware: metrics, limits on body size and time, origin checks and security headers."""

from __future__ import annotations

import time
from asyncio import get_running_loop, timeout_at
from collections import defaultdict
from logging import getLogger
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tfa.core.text import make_printable
from tfa.service.problems import HEADERS, Refused, problem, refuse_busy
from tfa.service.settings import ALL_AT_ONCE, SLACK, ServiceSettings, is_loopback

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds
request_log = getLogger("tfa.requests")
METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")


class Metrics:
    """Prometheus metrics of one service; thread-safe. Counter names get the suffix `_total` in the output."""

    def __init__(self) -> None:
        self._registry = own = CollectorRegistry()
        by_route = ("route", "method", "status")
        self.requests = Counter("tfa_requests", "Requests answered.", by_route, registry=own)
        timed = "Seconds from the first byte of a request to the last byte of its response."
        self.seconds = Histogram("tfa_request_seconds", timed, ["route"], buckets=BUCKETS, registry=own)
        self.edits = Counter("tfa_edits", "Edits written to disk.", ["map", "kind"], registry=own)
        self.batches = Counter("tfa_batches", "Query batches.", ["map"], registry=own)
        self.batch_photos = Counter("tfa_batch_photos", "Photos in query batches.", ["map"], registry=own)
        self.queue_length = Gauge("tfa_queue_length", "Queries waiting for the encoder.", ["map"], registry=own)
        self.map_images = Gauge("tfa_map_images", "Map images.", ["map"], registry=own)
        self.map_revision = Gauge("tfa_map_revision", "Revision of the map.", ["map"], registry=own)
        self.cameras = Gauge("tfa_cameras", "Cameras.", ["map"], registry=own)
        self.camera_photos = Counter("tfa_camera_photos", "Queries that named a camera.", ["map"], registry=own)
        self.jobs = Gauge("tfa_jobs", "Calibration jobs.", ["state"], registry=own)

    def text(self) -> str:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry).decode()


class MeasureRequests:
    """Log, count and time requests by route pattern; ids in paths would create unlimited labels."""

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
            seconds = time.perf_counter() - started
            self.metrics.requests.labels(route, method, status).inc()
            self.metrics.seconds.labels(route).observe(seconds)
            # Without the query string and headers, which may hold secrets.
            request_log.info("%s %s %d %.0f ms", method, make_printable(scope["path"]), status, 1000 * seconds)


_ONE, _MANY = ("/v1/query", "/v1/explain"), ("/v1/query/batch", "/v1/images", "/v1/calibrations")  # routes with photos
LARGEST_JSON = 64_000_000  # maximum bytes of a JSON request with several photos; parsing holds Python's lock
HELD_BODIES = 2  # requests of the maximum size that one caller may have in memory
CHANGING = ("POST", "PUT", "PATCH", "DELETE")


def format_megabytes(number: int) -> str:
    return f"{number / 1e6:.3g} MB"


class BodyLimit:
    """Limit a body's size and time by counting bytes on arrival; Content-Length may be wrong or missing."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self.app, self.settings = app, settings
        self._held: defaultdict[str, int] = defaultdict(int)  # bytes of unanswered requests, by caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"].rstrip("/")
        many, headers = path in _MANY, Headers(scope=scope)
        limit = self.settings.many_bytes if many else self.settings.single_bytes if path in _ONE else SLACK
        advice = "send fewer photos at a time" if many else "send a smaller one"
        if headers.get("content-type", "").lower().startswith("application/json") and limit > LARGEST_JSON:
            limit, advice = max(LARGEST_JSON, self.settings.single_bytes), f"{advice}, or as multipart/form-data"
        refusal = Refused(
            413,
            f"request larger than {format_megabytes(limit)}; the limit for one photo is "
            f"{format_megabytes(self.settings.max_upload)}, {advice}",
        )
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            await problem(refusal.status, refusal.public)(scope, receive, send)
            return
        arrived, complete, caller = 0, False, ""
        deadline = get_running_loop().time() + self.settings.body_seconds

        async def counted() -> Message:
            nonlocal arrived, complete, caller
            if complete:
                return await receive()  # waits for the client to disconnect
            try:
                async with timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                seconds = f"{self.settings.body_seconds:g}"
                raise Refused(408, f"request not complete after {seconds} s; retry") from None
            size = len(message.get("body", b""))
            arrived, complete = arrived + size, not message.get("more_body", False)
            caller = scope.get("state", {}).get("caller", "")  # known before a body is read
            self._held[caller] += size
            if arrived > limit:
                raise refusal
            if self._held[caller] > (
                most := HELD_BODIES * max(self.settings.many_bytes, ALL_AT_ONCE * self.settings.single_bytes)
            ):
                held = f"your unanswered requests have more than {format_megabytes(most)}"
                raise refuse_busy(f"{held}; retry when some of them are answered")
            return message

        try:
            await self.app(scope, counted, send)
        finally:
            self._held[caller] -= arrived
            if not self._held[caller]:
                del self._held[caller]


class OriginGuard:
    """Refuse edits from pages of other origins and, without API keys, other host names (DNS rebinding)."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sentence = self._objection(scope) if scope["type"] == "http" else None
        if sentence is None:
            await self.app(scope, receive, send)
        else:
            await problem(403, sentence)(scope, receive, send)

    def _objection(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            name, origin_host = urlsplit(f"//{host}").hostname or "", urlsplit(origin or "").netloc
        except ValueError:  # such as an open bracket
            return "the Host or Origin header is not valid"
        if self.settings.checks_host and not is_loopback(name):
            # The name is not repeated: a page of another site could have chosen it.
            return (
                "this service has no API keys and accepts local host names only; start it with --read-api-key or with "
                "--no-auth"
            )
        if origin is None or scope["method"] not in CHANGING or "*" in self.settings.cors:
            return None
        if origin in self.settings.cors or origin_host == host:
            return None
        return f"requests from pages of {origin} are not allowed; start the service with --cors {origin} to allow them"


class SecurityHeaders:
    """Add security headers to every response, refusals of other middleware too."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, with_headers)
