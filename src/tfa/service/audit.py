"""The audit log: a line of JSON for every edit that was asked for, and for the end of every job that edits."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from logging import getLogger
from pathlib import Path
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from tfa.errors import BadSpec

_log = getLogger("tfa.service")
_CUT_OFF = "the service stopped before it answered; whether the edit was made, the map's revision tells"
_LOGGED_KEYS = ("added", "removed", "reset", "dropped", "active", "job", "revision")  # of an answer


class AuditLog:
    """A file that lines are added to, each whole and at once; None keeps no log."""

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.Lock()
        self._file: int | None = None
        if path is not None:
            try:
                self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            except OSError as error:
                reason = error.strerror or str(error)
                raise BadSpec(f"the audit log {path} cannot be written: {reason}; choose another file", path) from None

    def write(self, **entry: Any) -> None:
        """The time and these fields. A disk that is full costs the line, which the service's own log then has."""
        if self._file is None:
            return
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry}, ensure_ascii=True)
        with self._lock:
            try:
                os.write(self._file, f"{line}\n".encode())
            except OSError as error:
                _log.error("the audit log cannot be written (%s), its line is: %s", error, line)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class AuditedRoute(APIRoute):
    """A route whose every request is noted, also one that is refused."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def noted(request: Request) -> Response:
            from tfa.service.problems import refusal_of

            try:
                response = await handle(request)
            except asyncio.CancelledError:
                _note(request, 503, {"error": _CUT_OFF})
                raise
            except BaseException as error:
                refusal = refusal_of(request, error)
                _note(request, refusal.status, {"error": refusal.public})
                raise
            told = json.loads(bytes(response.body))
            _note(request, response.status_code, {key: told[key] for key in _LOGGED_KEYS if key in told})
            return response

        return noted


def _note(request: Request, status: int, result: dict[str, Any]) -> None:
    service = request.app.state.service
    service.audit.write(
        **asker_of(request),
        action=f"{request.method} {request.url.path}",
        map=request.query_params.get("map") or next(iter(service.maps)),
        status=status,
        result=result,
    )


def asker_of(request: Request) -> dict[str, str | None]:
    """The name of the API key that asks, and from where."""
    return {
        "api_key": getattr(request.state, "api_key", None),
        "address": None if request.client is None else request.client.host,
    }
