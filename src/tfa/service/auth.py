"""Access control: API keys, rate limits and the audit log of edits."""

from __future__ import annotations

import asyncio
import json
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from logging import getLogger
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from tfa.errors import BadSpec
from tfa.service.cameras import ANONYMOUS
from tfa.service.problems import Problem, Refused, make_refusal
from tfa.service.settings import ServiceSettings, find_api_key

# --- audit log -------------------------------------------------------------------------------------------------------

_log = getLogger("tfa.service")
_CUT_OFF = "the service stopped before it answered; check the map's revision to see whether the edit was made"
_LONGEST = 200  # characters of a path or name that a client chose
_LOGGED_KEYS = ("added", "removed", "reset", "dropped", "active", "job", "revision")  # response fields to log


class AuditLog:
    """Append-only log with one JSON line per edit; no log if the path is None."""

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.Lock()
        self._file: int | None = None
        if path is not None:
            try:
                self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            except OSError as error:
                reason = error.strerror or str(error)
                raise BadSpec(f"cannot write the audit log {path}: {reason}; choose another file", path) from None

    def write(self, **entry: Any) -> None:
        """Append a line with the time and these fields. If that fails, the service log gets the line."""
        if self._file is None:
            return
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry}, ensure_ascii=True)
        with self._lock:
            try:
                os.write(self._file, f"{line}\n".encode())
            except OSError as error:
                _log.error("cannot write the audit log (%s); lost line: %s", error, line)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class AuditedRoute(APIRoute):
    """Route that writes every request to the audit log, refused ones too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def noted(request: Request) -> Response:
            try:
                response = await handle(request)
            except asyncio.CancelledError:
                _note(request, 503, {"error": _CUT_OFF})
                raise
            except BaseException as error:
                refusal = make_refusal(request, error)
                _note(request, refusal.status, {"error": refusal.public})
                raise
            reply = json.loads(bytes(response.body))
            result = {key: reply[key] for key in _LOGGED_KEYS if reply.get(key, []) != []}
            _note(request, response.status_code, result)
            return response

        return noted


def _note(request: Request, status: int, result: dict[str, Any]) -> None:
    service = request.app.state.service
    if not hasattr(request.state, "caller"):  # refused before its rate was limited, so anyone could fill the log
        return
    service.audit.write(
        **describe_caller(request),
        action=f"{request.method} {request.url.path[:_LONGEST]}",
        map=(request.query_params.get("map") or next(iter(service.maps)))[:_LONGEST],
        status=status,
        result=result,
    )


def describe_caller(request: Request) -> dict[str, str | None]:
    """Return the caller's API key name and address."""
    return {
        "api_key": getattr(request.state, "api_key", None),
        "address": None if request.client is None else request.client.host,
    }


BURST_SECONDS = 5  # seconds of requests in a full token bucket
_REMEMBERED = 4096  # buckets to keep; one that was not used for long is full again


class RateLimit:
    """Token buckets by caller; a rate of 0 limits nothing. Not thread-safe: only the event loop calls it."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_second, self._clock = per_second, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # requests left, and time of that count

    def wait(self, who: str) -> int:
        """Count a request; return 0 if it is allowed, else the seconds to wait before a retry."""
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


# --- permissions -----------------------------------------------------------------------------------------------------

bearer = HTTPBearer(auto_error=False, description="A read or edit API key of the service.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]


def may_read(settings: ServiceSettings, api_key: str | None) -> bool:
    return not settings.closed or find_api_key(api_key, settings.all_api_keys) is not None


def may_edit(settings: ServiceSettings, api_key: str | None) -> bool:
    if not any(one.edits for one in settings.all_api_keys):
        return settings.editable
    known = find_api_key(api_key, settings.all_api_keys)
    return known is not None and known.edits


async def reader(request: Request, credentials: Credentials) -> None:
    """Refuse callers that may not read or exceed the rate limit."""
    settings, api_key = _admit(request, credentials)
    if not may_read(settings, api_key):
        raise _refuse_caller(api_key, "reading needs an API key")


async def editor(request: Request, credentials: Credentials) -> None:
    """Refuse callers that may not edit or exceed the rate limit."""
    settings, api_key = _admit(request, credentials)
    if may_edit(settings, api_key):
        return
    if not settings.editable:
        raise Refused(403, "this service is read-only: it was started without an edit API key")
    if find_api_key(api_key, settings.all_api_keys) is not None:
        raise Refused(403, "the read API key may not edit; use the edit API key")
    raise _refuse_caller(api_key, "editing needs the edit API key")


def who(request: Request) -> str:
    """Return the name of the caller's API key; empty without one."""
    return getattr(request.state, "api_key", None) or ANONYMOUS


def visible_owner(request: Request) -> str | None:
    """Return the owner whose cameras the caller may see; None, for an edit API key, means every owner."""
    settings = request.app.state.service.settings
    mine = next((api_key for api_key in settings.all_api_keys if api_key.name == who(request)), None)
    return None if mine is not None and mine.edits else who(request)


def _admit(request: Request, credentials: HTTPAuthorizationCredentials | None) -> tuple[ServiceSettings, str | None]:
    """Apply the rate limit, note the API key's name on the request, and return the settings and the key sent."""
    service, given = request.app.state.service, None if credentials is None else credentials.credentials
    known = find_api_key(given, service.settings.all_api_keys)
    request.state.api_key = None if known is None else known.name
    address = "unknown" if request.client is None else request.client.host
    # Callers without a valid key may be guessing keys, so they are limited by address.
    request.state.caller = f"address {address}" if known is None else f"API key {known.name}"
    pause = service.rates.wait(request.state.caller)
    if pause:
        most = f"{service.rates.per_second:g} requests a second"
        raise Refused(429, f"more than {most}; retry in {pause} s", {"Retry-After": str(pause)})
    return service.settings, given


def _refuse_caller(api_key: str | None, need: str) -> Refused:
    reason = "API key missing" if api_key is None else "API key not valid"
    sentence = f"{reason}: {need}; send the header 'Authorization: Bearer KEY'"
    return Refused(401, sentence, {"WWW-Authenticate": "Bearer"})


def reading_router(tag: str) -> APIRouter:
    """Create a router that needs read access."""
    refused = refusals(401, 403, 404, 422, 429, 503)
    return APIRouter(prefix="/v1", tags=[tag], dependencies=[Depends(reader)], responses=refused)


def editing_router(tag: str) -> APIRouter:
    """Create a router that needs edit access and writes to the audit log."""
    refused = refusals(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503, 507)
    return APIRouter(
        prefix="/v1", tags=[tag], dependencies=[Depends(editor)], responses=refused, route_class=AuditedRoute
    )


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the error responses of a route for OpenAPI."""
    return {status: {"model": Problem} for status in statuses}
