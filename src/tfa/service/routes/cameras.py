"""Cameras that queries named: list them, show what their photos taught, reset them."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from tfa.service.auth import editing_router, reading_router, visible_owner
from tfa.service.context import Chosen, Running
from tfa.service.models import CameraDetails, CameraList, Reset
from tfa.service.problems import Refused
from tfa.service.served import Served

cameras_router, cameras_edits = reading_router("camera"), editing_router("camera")


@cameras_router.get("/cameras", response_model=CameraList)
async def cameras(request: Request, service: Running, live: Chosen) -> dict[str, Any]:
    """List the cameras that the caller's API key named, the most recently used first; an edit key sees all of them."""
    if live.cameras is None:
        return {"most": 0, "cameras": []}
    # A query may be under way, and a bias has to be computed anew: not in the thread that takes requests.
    own, owner = live.cameras, visible_owner(request)
    return {"most": own.most, "cameras": await service.work(lambda: own.listed(owner))}


@cameras_router.get("/cameras/{name}", response_model=CameraDetails)
async def camera(request: Request, service: Running, live: Chosen, name: str) -> dict[str, Any]:
    """What one camera has seen and learnt."""
    own, owner = live.cameras, visible_owner(request)
    found = None if own is None else await service.work(lambda: own.get(name, owner))
    if found is None:
        raise _unknown(live, name)
    return found


@cameras_edits.delete("/cameras/{name}", response_model=Reset)
async def reset(service: Running, live: Chosen, name: str) -> dict[str, Any]:
    """Forget what a camera has learnt; its next photo is the first."""
    own = live.cameras
    gone = [] if own is None else await service.work(lambda: own.reset(name))
    if not gone:
        raise _unknown(live, name)
    return {"reset": gone}


@cameras_edits.delete("/cameras", response_model=Reset)
async def reset_all(service: Running, live: Chosen) -> dict[str, Any]:
    """Forget what every camera of the map has learnt."""
    return {"reset": [] if live.cameras is None else await service.work(live.cameras.reset)}


def _unknown(live: Served, name: str) -> Refused:
    return Refused(404, f"there is no camera {name[:80]!r} in {live.name}; /v1/cameras lists those there are")
