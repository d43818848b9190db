"""Who may read and who may edit: bearer tokens, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from tfa.service.problems import Refused
from tfa.service.settings import ServiceSettings

bearer = HTTPBearer(auto_error=False, description="The read token, or the edit token, the service was started with.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]

HOW = "send the header 'Authorization: Bearer TOKEN'"
CHALLENGE = {"WWW-Authenticate": "Bearer"}


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
        reason = "no token was given" if token is None else "this token is not known"
        raise Refused(401, f"{reason}, and reading needs one; {HOW}", CHALLENGE)


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
    reason = "no token was given" if token is None else "this token is not known"
    raise Refused(401, f"{reason}, and editing needs the edit token; {HOW}", CHALLENGE)
