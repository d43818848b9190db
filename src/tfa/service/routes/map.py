"""Routes that describe maps (contents, report, positions) and the service (health, metrics)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from tfa.core.plain import Value, req
from tfa.core.text import list_rules
from tfa.report.collect import collect_report
from tfa.service.auth import reader, reading_router
from tfa.service.bodies import reply
from tfa.service.context import Chosen, Running, image_url
from tfa.service.live import LiveMap
from tfa.service.problems import RETRY
from tfa.types import MapInfo

# --- status ----------------------------------------------------------------------------------------------------------

status_router = APIRouter(tags=["status"])


class Health(Value):
    """State of the service."""

    status: str = req("ok; for /readyz: ready, loading, failed, stalled, or the problem of a map.")


@status_router.get("/healthz", response_model=Health)
async def healthz() -> Response:
    """Check that the process is alive."""
    return reply(Health(status="ok"))


@status_router.get(
    "/readyz", response_model=Health, responses={503: {"model": Health, "description": "Still loading, or failed."}}
)
async def readyz(service: Running) -> Response:
    """Check that maps are loaded, encoders have run once, and every query thread is running.

    A map folder must exist, and the store of a map must respond; if not, the status is a sentence about that map.
    """
    status = service.status
    if status == "ready":
        status = await service.find_trouble() or status
    answer = reply(Health(status=status), 200 if status == "ready" else 503)
    if status == "loading":
        answer.headers.update(RETRY)
    return answer


@status_router.get("/metrics", response_class=PlainTextResponse, dependencies=[Depends(reader)])
async def metrics(service: Running) -> Response:
    """Return counts, latencies, queue lengths and map sizes in Prometheus' text format."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


# --- map -------------------------------------------------------------------------------------------------------------

map_router = reading_router("map")


class MapEntry(Value):
    """A map of the service."""

    name: str = req("Name of the map.")
    images: int = req("Number of images.")
    encoder: str = req("Encoder of the map.")
    path_name: str = req("Name of the map's folder.")


class PositionList(Value):
    """Positions of the map images."""

    kind: Literal["xy", "latlon"] | None = req("xy in meters, latlon in degrees, or null without positions.")
    points: list[list[float]] = req("Id, x and y of each image; for latlon x is lon and y is lat.")


@map_router.get("/maps", response_model=list[MapEntry])
async def maps(service: Running) -> Response:
    """List the maps of this service; the first is the default."""
    entries = [
        MapEntry(name=name, images=live.size[0], encoder=live.encoder.id, path_name=live.path_name)
        for name, live in service.maps.items()
    ]
    return reply(entries)


@map_router.get("/map", response_model=MapInfo)
async def map_info(request: Request, service: Running, live: Chosen) -> Response:
    """Describe a map: contents, decisions with reasons, and calibrations."""
    return await service.work(request, live, lambda: reply(get_map_info(live, service.settings.editable)))


def get_map_info(live: LiveMap, editable: bool) -> MapInfo:
    """Describe a map without paths of this machine and without the list of photos."""
    current = live.current_map
    info = current.info()
    return replace(
        info,
        name=live.name,
        path=live.path_name,
        photo_root=None if info.photo_root is None else Path(info.photo_root).name,
        encoder=replace(
            info.encoder, weights=None if info.encoder.weights is None else Path(info.encoder.weights).name
        ),
        photos=[],
        editable=editable,
        recent=live.queries.recent.summary(current.state),
        rules=list_rules(),
    )


@map_router.get("/report", response_model=dict[str, Any])
async def get_report(request: Request, service: Running, live: Chosen) -> Response:
    """Return the result of `tfa report`: headline, advice, near duplicates, hubs, isolated images."""
    return await service.work(
        request, live, lambda: reply(_cache_result(live, "report", lambda place_map: _report(live, place_map)))
    )


def _cache_result(live: LiveMap, name: str, make: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Return a result computed from the map, cached until the next edit."""
    version = live.current_map.storage.version
    if live.report_cache is None or live.report_cache[0] != version:
        live.report_cache = (version, {})
    cached = live.report_cache[1]
    if name not in cached:
        cached[name] = make(live.current.sample())
    return cached[name]


def _report(live: LiveMap, place_map: Any) -> dict[str, Any]:
    """Collect the report with image URLs instead of paths of this machine."""

    def shown(image: dict[str, Any]) -> dict[str, Any]:
        return {
            **{key: value for key, value in image.items() if key != "path"},
            "image_url": image_url(live, image["id"]),
        }

    found = collect_report(place_map, called=live.path_name)
    plain = ("tfa", "headline", "near", "queries", "answers", "returned_by", "recall", "advice", "rules")
    return {
        **{key: found[key] for key in plain},
        "duplicates": [{"images": [shown(one) for one in group["images"]]} for group in found["duplicates"]],
        **{key: [shown(one) for one in found[key]] for key in ("hubs", "lonely", "least_alike")},
    }


@map_router.get("/positions", response_model=PositionList)
async def positions(request: Request, service: Running, live: Chosen) -> Response:
    """List the positions of the images; a map with both kinds returns the more frequent one."""
    return await service.work(request, live, lambda: reply(_list_positions(live)))


def _list_positions(live: LiveMap) -> PositionList:
    globe, plane = list[list[float]](), list[list[float]]()
    for record in live.current.records():
        if record.position is not None:
            first, second = record.position.pair
            if record.position.is_global:
                globe.append([record.id, second, first])
            else:
                plane.append([record.id, first, second])
    if not globe and not plane:
        return PositionList(kind=None, points=[])
    is_globe = len(globe) >= len(plane)
    return PositionList(kind="latlon" if is_globe else "xy", points=globe if is_globe else plane)
