"""Is the service alive, is it ready, and how is it doing?"""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from tfa.service.auth import reader
from tfa.service.context import service_of
from tfa.service.metrics import CONTENT_TYPE
from tfa.service.models import Health
from tfa.service.problems import RETRY

router = APIRouter(tags=["status"])


@router.get("/healthz", response_model=Health)
async def healthz() -> dict[str, str]:
    """Alive: the process answers."""
    return {"status": "ok"}


@router.get(
    "/readyz", response_model=Health, responses={503: {"model": Health, "description": "Still loading, or failed."}}
)
async def readyz(request: Request) -> Response:
    """Ready: maps are open and packed for queries, encoders have run once, and every map's query thread runs."""
    status = service_of(request).status
    if status == "ready":
        return JSONResponse({"status": status})
    return JSONResponse({"status": status}, 503, headers=RETRY if status == "loading" else None)


@router.get("/metrics", response_class=PlainTextResponse, dependencies=[Depends(reader)])
async def metrics(request: Request) -> Response:
    """Counts, latencies, queue lengths and map sizes in Prometheus' text format."""
    service = service_of(request)
    return Response(service.metrics.text(service.gauges()), media_type=CONTENT_TYPE)
