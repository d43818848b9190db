"""Create the ASGI app that serves maps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse
from starlette.staticfiles import StaticFiles

from tfa.maps import PlaceMap
from tfa.report.page import PLAN_VIEW
from tfa.service.bodies import simplify_schema
from tfa.service.context import Service
from tfa.service.middleware import BodyLimit, MeasureRequests, OriginGuard, SecurityHeaders
from tfa.service.problems import ANSWERED, answer_problem
from tfa.service.routes.calibrations import calibrations_edits, calibrations_router
from tfa.service.routes.images import images_edits, images_router
from tfa.service.routes.map import map_router, status_router
from tfa.service.routes.query import cameras_edits, cameras_router, query_router
from tfa.service.settings import ServiceSettings
from tfa.version import __version__

_ROUTERS = (
    status_router, map_router, query_router, images_router, images_edits, calibrations_router, calibrations_edits,
    cameras_router, cameras_edits,
)  # fmt: skip
_PAGE = Path(__file__).parent / "page"
_ABOUT = (
    "Find where photos were taken: query, edit and calibrate place maps over HTTP. Photos of a named camera adapt the "
    "answers to its later photos."
)


class _Application(FastAPI):
    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = simplify_schema(super().openapi())
        return self.openapi_schema


def create_app(maps: Sequence[PlaceMap], settings: ServiceSettings | None = None) -> FastAPI:
    """Create an app that serves saved maps, and load their encoders. The first map is the default."""
    service = Service(maps, settings or ServiceSettings())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(asyncio.to_thread(service.warm_up))
        try:
            yield
        finally:
            await asyncio.gather(warming, return_exceptions=True)
            await asyncio.to_thread(service.close)

    # No interactive documentation: FastAPI's pages load scripts from other sites. A redirect repeats the Host header.
    app = _Application(
        title="TFA", description=_ABOUT, version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
        redirect_slashes=False, exception_handlers=dict.fromkeys(ANSWERED, answer_problem),
    )  # fmt: skip
    app.state.service = service
    for router in _ROUTERS:
        app.include_router(router)
    app.add_api_route(f"/static/{PLAN_VIEW.name}", lambda: FileResponse(PLAN_VIEW), include_in_schema=False)
    app.mount("/static", StaticFiles(directory=_PAGE), name="static")
    app.add_api_route("/", lambda: FileResponse(_PAGE / "index.html"), include_in_schema=False)

    # The last middleware added is the first to see a request.
    app.add_middleware(BodyLimit, settings=service.settings)
    if service.settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.settings.cors),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type"],
        )
    app.add_middleware(OriginGuard, settings=service.settings)
    app.add_middleware(MeasureRequests, metrics=service.metrics)
    app.add_middleware(SecurityHeaders)
    return app
