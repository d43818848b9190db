"""Sessions: cameras that were given a name in queries; what their photos taught is shown here, and forgotten."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from tfa.service.auth import editing, reading, visible_owner
from tfa.service.context import Chosen, Running
from tfa.service.models import Reset, SessionDetails, SessionList
from tfa.service.problems import Refused
from tfa.service.served import Served

router, edits = reading("session"), editing("session")


@router.get("/sessions", response_model=SessionList)
async def sessions(request: Request, service: Running, live: Chosen) -> dict[str, Any]:
    """The sessions of a map that the caller's token made, of an edit token's all; the most recently used first."""
    if live.sessions is None:
        return {"most": 0, "sessions": []}
    # A query may be under way, and a bias has to be computed anew: not in the thread that takes requests.
    own, owner = live.sessions, visible_owner(request)
    return {"most": own.most, "sessions": await service.work(lambda: own.listed(owner))}


@router.get("/sessions/{name}", response_model=SessionDetails)
async def session(request: Request, service: Running, live: Chosen, name: str) -> dict[str, Any]:
    """What one session has seen and learnt."""
    own, owner = live.sessions, visible_owner(request)
    found = None if own is None else await service.work(lambda: own.get(name, owner))
    if found is None:
        raise _unknown(live, name)
    return found


@edits.delete("/sessions/{name}", response_model=Reset)
async def reset(service: Running, live: Chosen, name: str) -> dict[str, Any]:
    """Forget what a session has learnt; its next photo is the first."""
    own = live.sessions
    gone = [] if own is None else await service.work(lambda: own.reset(name))
    if not gone:
        raise _unknown(live, name)
    return {"reset": gone}


@edits.delete("/sessions", response_model=Reset)
async def reset_all(service: Running, live: Chosen) -> dict[str, Any]:
    """Forget what every session of the map has learnt."""
    return {"reset": [] if live.sessions is None else await service.work(live.sessions.reset)}


def _unknown(live: Served, name: str) -> Refused:
    return Refused(404, f"there is no session {name[:80]!r} in {live.name}; /v1/sessions lists those there are")
