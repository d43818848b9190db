"""What the maps are: their names, decisions, evidence and positions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfa.core.text import list_rules
from tfa.maps.state import DATABASE
from tfa.report.collect import collect_report, list_heads
from tfa.report.evidence import collect_evidence
from tfa.service.auth import reading_router
from tfa.service.context import Chosen, Running, image_url
from tfa.service.models import MapEntry, MapInfo, PositionList
from tfa.service.served import Served

map_router = reading_router("map")


@map_router.get("/maps", response_model=list[MapEntry])
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


@map_router.get("/map", response_model=MapInfo)
async def map_info(service: Running, live: Chosen) -> dict[str, Any]:
    """What a map holds, what was decided and why, and its calibrations."""
    told = await service.work(lambda: public_info(live))
    return {**told, "name": live.name, "editable": service.settings.editable}


def public_info(live: Served) -> dict[str, Any]:
    """`PlaceMap.info()` for the network: without paths of this machine and without the list of photos."""
    info, place_map = live.info().to_dict(), live.current_map
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
        "rules": list_rules(),
    }


@map_router.get("/evidence")
async def get_evidence(service: Running, live: Chosen) -> dict[str, Any]:
    """What the decisions of the head that answers rest on: its candidates, the spectrum, similarities of pairs."""
    return await service.work(lambda: _cached(live, "evidence", collect_evidence))


@map_router.get("/report")
async def get_report(service: Running, live: Chosen) -> dict[str, Any]:
    """What `tfa report` says: a headline, what answers and why, advice, hubs, near and least recognised photos."""
    return await service.work(lambda: _cached(live, "report", lambda place_map: _report(live, place_map)))


def _cached(live: Served, name: str, make: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """What was made of the map as it is: the same until an edit."""
    key, place_map = live.evidence_map()
    if live.report_cache is None or (live.report_cache[0] is not key and live.report_cache[0] != key):
        live.report_cache = (key, {})
    cached = live.report_cache[1]
    if name not in cached:
        cached[name] = make(place_map)
    return cached[name]


def _report(live: Served, place_map: Any) -> dict[str, Any]:
    """Without paths of this machine; photos have addresses instead."""

    def shown(image: dict[str, Any]) -> dict[str, Any]:
        return {
            **{key: value for key, value in image.items() if key != "path"},
            "image_url": image_url(live, image["id"]),
        }

    found = collect_report(place_map, called=live.path_name)
    plain = ("tfa", "headline", "near", "queries", "answers", "returned_by", "recall", "advice", "rules", "evidence")
    facts = found["map"]
    return {
        **{key: found[key] for key in plain},
        "what_answers": facts["answers"],
        "judged": facts["head"] == "judged",
        "heads": list_heads(facts),
        "duplicates": [{"images": [shown(one) for one in group["images"]]} for group in found["duplicates"]],
        **{key: [shown(one) for one in found[key]] for key in ("hubs", "lonely", "least_alike")},
    }


@map_router.get("/positions", response_model=PositionList)
async def positions(service: Running, live: Chosen) -> dict[str, Any]:
    """Where the images were taken; of two kinds in one map the more frequent is given."""
    found = await service.work(live.placed)
    placed = [(record.id, record.position) for record in found if record.position is not None]
    globe = [(i, place.lon, place.lat) for i, place in placed if place.is_global]
    plane = [(i, place.x, place.y) for i, place in placed if not place.is_global]
    if not placed:
        return {"kind": None, "points": []}
    return {"kind": "latlon", "points": globe} if len(globe) >= len(plane) else {"kind": "xy", "points": plane}
