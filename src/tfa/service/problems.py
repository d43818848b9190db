"""Error responses: an HTTP status and a JSON sentence, without tracebacks or server paths."""

from __future__ import annotations

from collections.abc import Mapping
from logging import getLogger
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from tfa.core.plain import Value, req
from tfa.errors import (
    BadMap,
    BadTokens,
    BadWeights,
    DiskFull,
    MissingExtra,
    OutOfResources,
    StoreConflict,
    StoreUnavailable,
    TfaError,
    UnknownImage,
    WeightsMissing,
    from_os_error,
)

# Headers of every response. The page runs only its own scripts, shows uploaded photos (blob:), and cannot be framed.
# All responses have this policy, so that one opened directly, such as a photo, runs no script either.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
RETRY = {"Retry-After": "1"}
LONGEST_SENTENCE = 10_000  # characters; errors repeat names that clients send
_log = getLogger("tfa.service")
INTERNAL_ERROR = (
    "internal error (a bug in the service); see its log. Check the map's revision before you repeat an edit"
)
# The first match counts; any other TfaError is a problem of the request (422).
_STATUSES: tuple[tuple[type[TfaError], int], ...] = (
    (UnknownImage, 404), (BadMap, 409), (StoreUnavailable, 503), (StoreConflict, 409), (MissingExtra, 501),
    (DiskFull, 507), (OutOfResources, 503), (WeightsMissing, 500), (BadWeights, 500), (BadTokens, 500),
)  # fmt: skip


class Problem(Value):
    """Reason why a request failed."""

    error: str = req("What is wrong, what is allowed, and what to do.")


class Refused(TfaError):
    """A request that failed, with its HTTP status."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, dict(headers or {})


def refuse_busy(sentence: str) -> Refused:
    return Refused(503, sentence, RETRY)


def problem(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    sentence = sentence[:LONGEST_SENTENCE].encode("utf-8", "replace").decode()  # names in JSON may have lone surrogates
    return JSONResponse(Problem(error=sentence).to_dict(), status, headers=dict(headers or {}))


def choose_status(error: TfaError) -> int:
    if isinstance(error, Refused):
        return error.status
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 422)


def join_problems(errors: Any) -> str:
    """Join pydantic's errors into one sentence."""
    objections = []
    for error in errors:
        place = ".".join(str(part) for part in error["loc"] if part not in ("body", "query", "path"))
        allowed = str(error["msg"]).removeprefix("Value error, ")
        objections.append(f"{place or 'the request'}: {allowed[:1].lower()}{allowed[1:]}")
    return f"invalid request: {'; '.join(objections)}. See /openapi.json"


def make_refusal(request: Request, error: BaseException) -> Refused:
    """Turn any error into a status and a sentence for the client."""
    place = f"{request.method} {request.url.path}"
    match error:
        case OSError() | MemoryError() if (known := from_os_error(error)) is not None:
            return Refused(choose_status(known), known.public, RETRY if isinstance(known, OutOfResources) else None)
        case ClientDisconnect():  # nobody reads the answer
            return Refused(400, "the request is incomplete; retry")
        case StoreUnavailable():  # the message names the store
            return Refused(choose_status(error), error.public, RETRY)
        case TfaError():
            return Refused(choose_status(error), error.public, getattr(error, "headers", None))
        case RequestValidationError() | ValidationError():
            return Refused(422, join_problems(error.errors()))
        case HTTPException(status_code=404):
            return Refused(404, f"{place} not found; /openapi.json lists all routes", error.headers)
        case HTTPException(status_code=405):
            sentence = f"{request.method} is not allowed for {request.url.path}; /openapi.json lists all routes"
            return Refused(405, sentence, error.headers)
        case HTTPException():
            return Refused(error.status_code, str(error.detail), error.headers)
        case OSError() | MemoryError():
            return Refused(500, INTERNAL_ERROR)
        case _:
            return Refused(500, INTERNAL_ERROR, HEADERS)  # no middleware sees this response


async def answer_problem(request: Request, error: Exception) -> JSONResponse:
    """Respond to any exception with a `Problem`. The server logs bugs; missing resources are logged here."""
    refusal = make_refusal(request, error)
    match error:
        case ClientDisconnect():
            _log.warning("%s %s: client disconnected before the request was complete", request.method, request.url.path)
        case StoreUnavailable():
            _log.warning("%s %s: %s", request.method, request.url.path, error)
        case OSError() | MemoryError() if refusal.status == 500:
            _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        case OSError() | MemoryError():
            _log.warning("%s %s: %s", request.method, request.url.path, from_os_error(error))
    return problem(refusal.status, refusal.public, refusal.headers)


ANSWERED: tuple[type[Exception], ...] = (
    TfaError, RequestValidationError, ValidationError, HTTPException, ClientDisconnect, OSError, MemoryError, Exception,
)  # fmt: skip
