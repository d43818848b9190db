"""What the maps are: their names, decisions, evidence and positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfa.maps.state import DATABASE
from tfa.report.evidence import evidence_of
from tfa.service.auth import reading
from tfa.service.context import Chosen, Running
from tfa.service.models import MapEntry, MapInfo, Positions
from tfa.service.served import Served

router = reading("map")


@router.get("/maps", response_model=list[MapEntry])
async def maps(service: Running) -> list[dict[str, Any]]:
    """The maps of this service; the first answers where none is named."""
    return [
        {
            "name": name,
            "images": live.count,
            "encoder": live.encoder.id,
            "path_name": live.path_name,
        }
        for name, live in service.maps.items()
    ]


@router.get("/map", response_model=MapInfo)
async def map_info(service: Running, live: Chosen) -> dict[str, Any]:
    """What a map holds, what was decided and why, and its calibrations."""
    told = await service.work(lambda: public_info(live))
    return {**told, "name": live.name, "editable": service.settings.editable}


def public_info(live: Served) -> dict[str, Any]:
    """`PlaceMap.info()` for the network: without paths of this machine and without the list of photos."""
    info, place_map = live.info(), live.asked
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
        "recent": live.queries.recent.summary(state),
    }


@router.get("/evidence")
async def evidence(service: Running, live: Chosen) -> dict[str, Any]:
    """What the decisions rest on: support and agreement of each candidate, the spectrum, similarities of pairs."""
    return await service.work(lambda: _evidence(live))


def _evidence(live: Served) -> dict[str, Any]:
    known_by, judged_on = live.judged_on()
    kept = live.evidence
    if kept is None or (kept[0] is not known_by and kept[0] != known_by):  # the same until an edit
        kept = (known_by, evidence_of(judged_on))
        live.evidence = kept
    return kept[1]


@router.get("/positions", response_model=Positions)
async def positions(service: Running, live: Chosen) -> dict[str, Any]:
    """Where the images were taken; of two kinds in one map the more frequent is given."""
    found = await service.work(live.placed)
    placed = [(record.id, record.position) for record in found if record.position is not None]
    globe = [(i, place.lon, place.lat) for i, place in placed if place.is_global]
    plane = [(i, place.x, place.y) for i, place in placed if not place.is_global]
    if not placed:
        return {"kind": None, "points": []}
    return {"kind": "latlon", "points": globe} if len(globe) >= len(plane) else {"kind": "xy", "points": plane}
