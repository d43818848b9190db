"""Who may read and who may edit: bearer tokens, how often they may ask; routers that let in nobody else."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from tfa.service.audit import AuditedRoute
from tfa.service.cameras import NOBODY
from tfa.service.models import Problem
from tfa.service.problems import Refused
from tfa.service.settings import ServiceSettings
from tfa.service.tokens import identify

bearer = HTTPBearer(auto_error=False, description="The read token, or the edit token, the service was started with.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]


def may_read(settings: ServiceSettings, token: str | None) -> bool:
    return not settings.closed or identify(token, settings.all_tokens) is not None


def may_edit(settings: ServiceSettings, token: str | None) -> bool:
    known = identify(token, settings.all_tokens)
    if not any(one.edits for one in settings.all_tokens):
        return settings.editable
    return known is not None and known.edits


def reader(request: Request, credentials: Credentials) -> None:
    """Refuse who may not read, or asks too often."""
    settings, token = _admitted(request, credentials)
    if not may_read(settings, token):
        raise _stranger(token, "reading needs one")


def editor(request: Request, credentials: Credentials) -> None:
    """Refuse who may not edit, or asks too often."""
    settings, token = _admitted(request, credentials)
    if may_edit(settings, token):
        return
    if not settings.editable:
        raise Refused(403, "this service takes no edits: it was started without a token that may edit")
    if identify(token, settings.all_tokens) is not None:
        raise Refused(403, "the read token may not edit; use the edit token")
    raise _stranger(token, "editing needs the edit token")


def who(request: Request) -> str:
    """The name of the token that asks; empty without one."""
    return getattr(request.state, "token", None) or NOBODY


def visible_owner(request: Request) -> str | None:
    """Whose cameras may be looked at: one's own; with a token that edits everybody's, which is None."""
    settings = request.app.state.service.settings
    mine = next((token for token in settings.all_tokens if token.name == who(request)), None)
    return None if mine is not None and mine.edits else who(request)


def _admitted(request: Request, credentials: HTTPAuthorizationCredentials | None) -> tuple[ServiceSettings, str | None]:
    """The settings and the token that was given, whose name the request carries from here on."""
    service, given = request.app.state.service, None if credentials is None else credentials.credentials
    known = identify(given, service.settings.all_tokens)
    request.state.token = None if known is None else known.name
    address = "unknown" if request.client is None else request.client.host
    # A stranger, who may be guessing tokens, is counted by the address.
    pause = service.rates.wait(f"address {address}" if known is None else f"token {known.name}")
    if pause:
        most = f"{service.rates.per_second:g} requests a second"
        raise Refused(429, f"more than {most}; send this one again in {pause} s", {"Retry-After": str(pause)})
    return service.settings, given


def _stranger(token: str | None, need: str) -> Refused:
    reason = "no token was given" if token is None else "this token is not known"
    sentence = f"{reason}, and {need}; send the header 'Authorization: Bearer TOKEN'"
    return Refused(401, sentence, {"WWW-Authenticate": "Bearer"})


def reading(tag: str) -> APIRouter:
    """Routes for those who may read."""
    return APIRouter(
        prefix="/v1", tags=[tag], dependencies=[Depends(reader)], responses=refusals(401, 403, 404, 422, 429, 503)
    )


def editing(tag: str) -> APIRouter:
    """Routes for those who may edit."""
    refused = refusals(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503, 507)
    return APIRouter(
        prefix="/v1", tags=[tag], dependencies=[Depends(editor)], responses=refused, route_class=AuditedRoute
    )


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How OpenAPI describes the errors of a route."""
    return {status: {"model": Problem} for status in statuses}
