"""Errors as clients see them: a status and one sentence in JSON, never a trace and no path of the server's disk."""

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
    BadCalibration,
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

# Of every answer, for browsers: run no foreign script, guess no types, send no referrer.
# The page runs its own scripts and no others, shows pictures it was given, and is framed by nobody. Other answers have
# the same policy: one that is opened by itself, such as a photo or a sentence, then runs nothing either.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
RETRY = {"Retry-After": "1"}
_log = getLogger("tfa.service")
DEFECT = "the service failed on this request; nothing was changed unless it said so before. Its log has the details"
# The first that fits counts; any other TfaError is something the client gave.
_STATUSES: tuple[tuple[type[TfaError], int], ...] = (
    (UnknownImage, 404),
    (BadCalibration, 422),
    (BadMap, 409),
    (StoreUnavailable, 503),
    (StoreConflict, 409),
    (MissingExtra, 501),
    (DiskFull, 507),
    (OutOfResources, 503),
    (WeightsMissing, 500),
    (BadWeights, 500),
    (BadTokens, 500),
)


class Problem(Value):
    """Why a request is not answered."""

    error: str = req("What was given, what is allowed, what to do.")


class Refused(TfaError):
    """A request that is not answered: why, what is allowed, and what to do."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, dict(headers or {})


def refuse_busy(sentence: str) -> Refused:
    return Refused(503, sentence, RETRY)


def problem(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(Problem(error=sentence).to_dict(), status, headers=dict(headers or {}))


def choose_status(error: TfaError) -> int:
    if isinstance(error, Refused):
        return error.status
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 422)


def join_problems(errors: Any) -> str:
    """What pydantic objects to, in one sentence."""
    objections = []
    for error in errors:
        place = ".".join(str(part) for part in error["loc"] if part not in ("body", "query", "path"))
        allowed = str(error["msg"]).removeprefix("Value error, ")
        objections.append(f"{place or 'the request'}: {allowed[:1].lower()}{allowed[1:]}")
    return f"the request cannot be understood: {'; '.join(objections)}. /openapi.json describes it"


def make_refusal(request: Request, error: BaseException) -> Refused:
    """What the client is told of any error: a status and a sentence."""
    place = f"{request.method} {request.url.path}"
    match error:
        case OSError() | MemoryError() if (known := from_os_error(error)) is not None:
            return Refused(choose_status(known), known.public, RETRY if isinstance(known, OutOfResources) else None)
        case ClientDisconnect():  # nobody reads the answer
            return Refused(400, "the request did not arrive as a whole; send it again")
        case StoreUnavailable():  # it names the store
            return Refused(choose_status(error), error.public, RETRY)
        case TfaError():
            return Refused(choose_status(error), error.public, getattr(error, "headers", None))
        case RequestValidationError() | ValidationError():
            return Refused(422, join_problems(error.errors()))
        case HTTPException(status_code=404):
            return Refused(404, f"there is nothing at {place}; /openapi.json lists what there is", error.headers)
        case HTTPException(status_code=405):
            sentence = f"{request.method} is not allowed for {request.url.path}; /openapi.json lists what is"
            return Refused(405, sentence, error.headers)
        case HTTPException():
            return Refused(error.status_code, str(error.detail), error.headers)
        case OSError() | MemoryError():
            return Refused(500, DEFECT)
        case _:
            return Refused(500, DEFECT, HEADERS)  # the one answer that no middleware of ours sees


async def answer_problem(request: Request, error: Exception) -> JSONResponse:
    """Every kind of error in the same shape. Defects are logged by the server, what the machine lacks here."""
    refusal = make_refusal(request, error)
    match error:
        case ClientDisconnect():
            _log.warning("%s %s: the client hung up before its request was there", request.method, request.url.path)
        case StoreUnavailable():
            _log.warning("%s %s: %s", request.method, request.url.path, error)
        case OSError() | MemoryError() if refusal.status == 500:
            _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        case OSError() | MemoryError():
            _log.warning("%s %s: %s", request.method, request.url.path, from_os_error(error))
    return problem(refusal.status, refusal.public, refusal.headers)


ANSWERED: tuple[type[Exception], ...] = (
    TfaError,
    RequestValidationError,
    ValidationError,
    HTTPException,
    ClientDisconnect,
    OSError,
    MemoryError,
    Exception,
)
