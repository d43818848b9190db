"""Is the service alive, is it ready, and how is it doing?"""

from __future__ import annotations

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from tfa.service.auth import reader
from tfa.service.context import Running
from tfa.service.live_store_map import LiveStoreMap
from tfa.service.models import Health
from tfa.service.problems import RETRY

status_router = APIRouter(tags=["status"])


@status_router.get("/healthz", response_model=Health)
async def healthz() -> dict[str, str]:
    """Alive: the process answers."""
    return {"status": "ok"}


@status_router.get(
    "/readyz", response_model=Health, responses={503: {"model": Health, "description": "Still loading, or failed."}}
)
async def readyz(service: Running) -> Response:
    """Ready: maps are open and packed for queries, encoders have run once, and every map's query thread runs.

    A map in a folder is ready while the folder is there, one in a store if its store answers; if not, the status is
    a sentence that names it.
    """
    status = service.status
    if status == "ready":
        remote = any(isinstance(live, LiveStoreMap) for live in service.maps.values())  # may take a moment to answer
        trouble = await service.work(lambda: service.trouble) if remote else service.trouble
        status = status if trouble is None else trouble
    return JSONResponse({"status": status}, 200 if status == "ready" else 503, RETRY if status == "loading" else None)


@status_router.get("/metrics", response_class=PlainTextResponse, dependencies=[Depends(reader)])
async def metrics(service: Running) -> Response:
    """Counts, latencies, queue lengths and map sizes in Prometheus' text format."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)
