"""The application: maps and settings in, an ASGI app out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from tfa.maps import PlaceMap
from tfa.service.context import Service
from tfa.service.metrics import Measured
from tfa.service.middleware import BodyLimit, OriginGuard
from tfa.service.problems import ANSWERED, answer, problem
from tfa.service.response_headers import SecurityHeaders
from tfa.service.routes import calibrations, images, map, query, status
from tfa.service.settings import ServiceSettings
from tfa.version import __version__

PAGE = Path(__file__).parent / "page"
ABOUT = "Where was this photo taken? Maps of places, queried, edited and calibrated over HTTP."


def create_app(maps: Sequence[PlaceMap], settings: ServiceSettings | None = None) -> FastAPI:
    """An app that serves saved maps; their encoders are loaded here. The first map is the default one."""
    service = Service(maps, settings or ServiceSettings())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(asyncio.to_thread(service.warm_up))
        try:
            yield
        finally:
            await asyncio.gather(warming, return_exceptions=True)
            await asyncio.to_thread(service.close)

    # The interactive documentation of FastAPI loads scripts from elsewhere; the description itself does not.
    app = FastAPI(
        title="TFA",
        description=ABOUT,
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        exception_handlers=dict.fromkeys(ANSWERED, answer),
    )
    app.state.service = service
    groups = (status.router, map.router, query.router, images.router, images.edits, calibrations.router)
    for router in (*groups, calibrations.edits):
        app.include_router(router)
    _add_page(app)

    # The last added is the first to see a request.
    app.add_middleware(BodyLimit, settings=service.settings)
    if service.settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.settings.cors),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type"],
        )
    app.add_middleware(OriginGuard, settings=service.settings)
    app.add_middleware(Measured, metrics=service.metrics)
    app.add_middleware(SecurityHeaders)
    return app


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        index = PAGE / "index.html"
        if not index.is_file():
            return problem(404, "this installation has no page; the service itself is described by /openapi.json")
        return FileResponse(index)

    if PAGE.is_dir():
        app.mount("/static", StaticFiles(directory=PAGE), name="static")
