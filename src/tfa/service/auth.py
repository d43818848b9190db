"""Who may read and who may edit: bearer tokens, compared in constant time; routers that let in nobody else."""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from tfa.service.models import Problem
from tfa.service.problems import Refused
from tfa.service.settings import ServiceSettings

bearer = HTTPBearer(auto_error=False, description="The read token, or the edit token, the service was started with.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]


def same(given: str, wanted: str | None) -> bool:
    """Are the tokens equal? Takes as long for a wrong one, whatever it has in common with the right one."""
    if wanted is None:
        return False
    # Digests have one length: the length of the token is not shown by the time either.
    ours, theirs = (hashlib.sha256(text.encode("utf-8", "replace")).digest() for text in (wanted, given))
    return hmac.compare_digest(ours, theirs)


def may_read(settings: ServiceSettings, token: str | None) -> bool:
    if settings.read_token is None:
        return True
    return token is not None and (same(token, settings.read_token) | same(token, settings.edit_token))


def may_edit(settings: ServiceSettings, token: str | None) -> bool:
    if settings.edit_token is None:
        return settings.editable
    return token is not None and same(token, settings.edit_token)


def reader(request: Request, credentials: Credentials) -> None:
    """Refuse who may not read."""
    token = None if credentials is None else credentials.credentials
    if not may_read(request.app.state.service.settings, token):
        raise _stranger(token, "reading needs one")


def editor(request: Request, credentials: Credentials) -> None:
    """Refuse who may not edit."""
    settings = request.app.state.service.settings
    token = None if credentials is None else credentials.credentials
    if may_edit(settings, token):
        return
    if not settings.editable:
        raise Refused(403, "this service takes no edits: it was started with a read token and without --edit-token")
    if token is not None and same(token, settings.read_token):
        raise Refused(403, "the read token may not edit; use the edit token")
    raise _stranger(token, "editing needs the edit token")


def _stranger(token: str | None, need: str) -> Refused:
    reason = "no token was given" if token is None else "this token is not known"
    sentence = f"{reason}, and {need}; send the header 'Authorization: Bearer TOKEN'"
    return Refused(401, sentence, {"WWW-Authenticate": "Bearer"})


def reading(tag: str) -> APIRouter:
    """Routes for those who may read."""
    return APIRouter(prefix="/v1", tags=[tag], dependencies=[Depends(reader)], responses=refusals(401, 404, 422))


def editing(tag: str) -> APIRouter:
    """Routes for those who may edit."""
    refused = refusals(401, 403, 404, 409, 413, 415, 422, 503)
    return APIRouter(prefix="/v1", tags=[tag], dependencies=[Depends(editor)], responses=refused)


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How OpenAPI describes the errors of a route."""
    return {status: {"model": Problem} for status in statuses}
