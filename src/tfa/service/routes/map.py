"""What the maps are: their names, decisions, evidence and positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfa.maps import PlaceMap
from tfa.maps.state import DATABASE
from tfa.report.evidence import evidence_of
from tfa.service.auth import reading
from tfa.service.context import Chosen, Running
from tfa.service.models import MapEntry, MapInfo, Positions

router = reading("map")


@router.get("/maps", response_model=list[MapEntry])
async def maps(service: Running) -> list[dict[str, Any]]:
    """The maps of this service; the first answers where none is named."""
    return [
        {
            "name": name,
            "images": len(live.current),
            "encoder": live.current.state.encoder["id"],
            "path_name": live.path.name,
        }
        for name, live in service.maps.items()
    ]


@router.get("/map", response_model=MapInfo)
async def map_info(service: Running, live: Chosen) -> dict[str, Any]:
    """What a map holds, what was decided and why, and its calibrations."""
    current = live.current
    recent = await service.work(lambda: live.queries.recent.summary(current.state))
    return {**public_info(current), "name": live.name, "editable": service.settings.editable, "recent": recent}


def public_info(place_map: PlaceMap) -> dict[str, Any]:
    """`PlaceMap.info()` for the network: without paths of this machine and without the list of photos."""
    info = place_map.info()
    state = place_map.state
    weights = info["encoder"]["weights"]
    info["encoder"] = {**info["encoder"], "weights": None if weights is None else Path(weights).name}
    kept = {key: value for key, value in info.items() if key not in ("path", "photos")}
    return {
        **kept,
        "calibrations": place_map.calibrations,
        "calibration_details": info["calibrations"],
        "active_calibration": None if state.active == DATABASE else state.active,
        "positions": info["positions"] > 0,
        "placed_images": info["positions"],
    }


@router.get("/evidence")
async def evidence(service: Running, live: Chosen) -> dict[str, Any]:
    """What the decisions rest on: support and agreement of each candidate, the spectrum, similarities of pairs."""
    current = live.current
    kept = live.evidence
    if kept is None or kept[0] is not current:  # the same until an edit
        kept = (current, await service.work(lambda: evidence_of(current)))
        live.evidence = kept
    return kept[1]


@router.get("/positions", response_model=Positions)
async def positions(live: Chosen) -> dict[str, Any]:
    """Where the images were taken; of two kinds in one map the more frequent is given."""
    placed = [(record.id, record.position) for record in live.current.images if record.position is not None]
    globe = [(i, place.lon, place.lat) for i, place in placed if place.is_global]
    plane = [(i, place.x, place.y) for i, place in placed if not place.is_global]
    if not placed:
        return {"kind": None, "points": []}
    return {"kind": "latlon", "points": globe} if len(globe) >= len(plane) else {"kind": "xy", "points": plane}
