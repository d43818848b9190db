"""Who may read and who may edit: API keys, how often they may ask; routers that let in nobody else."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from tfa.service.api_keys import find_api_key
from tfa.service.audit import AuditedRoute
from tfa.service.cameras import ANONYMOUS
from tfa.service.models import Problem
from tfa.service.problems import Refused
from tfa.service.settings import ServiceSettings

bearer = HTTPBearer(
    auto_error=False, description="The read API key, or the edit API key, the service was started with."
)
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]


def may_read(settings: ServiceSettings, api_key: str | None) -> bool:
    return not settings.closed or find_api_key(api_key, settings.all_api_keys) is not None


def may_edit(settings: ServiceSettings, api_key: str | None) -> bool:
    known = find_api_key(api_key, settings.all_api_keys)
    if not any(one.edits for one in settings.all_api_keys):
        return settings.editable
    return known is not None and known.edits


def reader(request: Request, credentials: Credentials) -> None:
    """Refuse who may not read, or asks too often."""
    settings, api_key = _admitted(request, credentials)
    if not may_read(settings, api_key):
        raise _stranger(api_key, "reading needs one")


def editor(request: Request, credentials: Credentials) -> None:
    """Refuse who may not edit, or asks too often."""
    settings, api_key = _admitted(request, credentials)
    if may_edit(settings, api_key):
        return
    if not settings.editable:
        raise Refused(403, "this service takes no edits: it was started without an API key that may edit")
    if find_api_key(api_key, settings.all_api_keys) is not None:
        raise Refused(403, "the read API key may not edit; use the edit API key")
    raise _stranger(api_key, "editing needs the edit API key")


def who(request: Request) -> str:
    """The name of the API key that asks; empty without one."""
    return getattr(request.state, "api_key", None) or ANONYMOUS


def visible_owner(request: Request) -> str | None:
    """Whose cameras may be looked at: one's own; with an API key that edits everybody's, which is None."""
    settings = request.app.state.service.settings
    mine = next((api_key for api_key in settings.all_api_keys if api_key.name == who(request)), None)
    return None if mine is not None and mine.edits else who(request)


def _admitted(request: Request, credentials: HTTPAuthorizationCredentials | None) -> tuple[ServiceSettings, str | None]:
    """The settings and the API key that was given, whose name the request carries from here on."""
    service, given = request.app.state.service, None if credentials is None else credentials.credentials
    known = find_api_key(given, service.settings.all_api_keys)
    request.state.api_key = None if known is None else known.name
    address = "unknown" if request.client is None else request.client.host
    # A stranger, who may be guessing API keys, is counted by the address.
    pause = service.rates.wait(f"address {address}" if known is None else f"API key {known.name}")
    if pause:
        most = f"{service.rates.per_second:g} requests a second"
        raise Refused(429, f"more than {most}; send this one again in {pause} s", {"Retry-After": str(pause)})
    return service.settings, given


def _stranger(api_key: str | None, need: str) -> Refused:
    reason = "no API key was given" if api_key is None else "this API key is not known"
    sentence = f"{reason}, and {need}; send the header 'Authorization: Bearer KEY'"
    return Refused(401, sentence, {"WWW-Authenticate": "Bearer"})


def reading_router(tag: str) -> APIRouter:
    """Routes for those who may read."""
    return APIRouter(
        prefix="/v1", tags=[tag], dependencies=[Depends(reader)], responses=refusals(401, 403, 404, 422, 429, 503)
    )


def editing_router(tag: str) -> APIRouter:
    """Routes for those who may edit."""
    refused = refusals(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503, 507)
    return APIRouter(
        prefix="/v1", tags=[tag], dependencies=[Depends(editor)], responses=refused, route_class=AuditedRoute
    )


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How OpenAPI describes the errors of a route."""
    return {status: {"model": Problem} for status in statuses}
