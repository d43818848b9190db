"""Routes that query a map, explain a match, and manage cameras."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from pathlib import PureWindowsPath
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from tfa.core.plain import Options, Value, opt, req
from tfa.errors import TfaError
from tfa.maps.confidence import collect_answers
from tfa.service.auth import editing_router, reading_router, refusals, visible_owner, who
from tfa.service.bodies import Upload, body_schema, read_photo, read_photos, reply
from tfa.service.cameras import CameraInfo, CameraKey
from tfa.service.context import Chosen, Running, find_record, image_url, wait_for
from tfa.service.live import LiveMap
from tfa.service.problems import Refused, choose_status
from tfa.types import UNREADABLE, Answer, Answers, QueryOptions

# --- queries ---------------------------------------------------------------------------------------------------------

query_router = reading_router("query")
query_router.responses |= refusals(400, 408, 409, 413, 415)


class ExplainOptions(Options):
    """Options for explaining a match."""

    id: int = req("Map image to compare with.", ge=0)
    calibration: str | None = opt(None, "Calibration to use, or 'none'. [default: the active one]")


@query_router.post("/query", response_model=Answer, openapi_extra=body_schema(QueryOptions, "image"))
async def query_photo(request: Request, service: Running, live: Chosen) -> Response:
    """Find where a photo was taken."""
    upload, options = await read_photo(request, QueryOptions, service.settings)
    camera = _check_query(request, live, options)
    query = await service.queue(request, live, upload, options, camera)
    return reply(await _finish(live, upload, query, options))


@query_router.post("/query/batch", response_model=Answers, openapi_extra=body_schema(QueryOptions, "images"))
async def query_batch(request: Request, service: Running, live: Chosen) -> Response:
    """Find where several photos were taken; a photo that cannot be read gets an answer with an error."""
    uploads, options = await read_photos(request, QueryOptions, service.settings)
    camera, answers = _check_query(request, live, options), list[Answer]()
    queries: list[Future[Answer]] = []
    for upload in uploads:  # decode one by one; the queue encodes them in batches
        try:
            queries.append(await service.queue(request, live, upload, options, camera))
        except Refused as refusal:
            if refusal.status == 503:
                raise
            queries.append(Future())
            queries[-1].set_exception(refusal)
    for upload, query in zip(uploads, queries, strict=True):
        try:
            answers.append(await _finish(live, upload, query, options))
        except TfaError as error:
            if choose_status(error) == 503:
                raise
            answers.append(Answer(query=upload.name, error=error.public, reason=UNREADABLE))
    return reply(collect_answers(answers))


def _check_query(request: Request, live: LiveMap, options: QueryOptions) -> CameraKey | None:
    """Refuse invalid options before a photo is decoded, and return the named camera."""
    live.check(options)
    if options.camera is None:
        if options.sequence or options.loops:
            name = "sequence" if options.sequence else "loops"
            raise Refused(422, f"{name} needs a camera; name one, such as camera=cam0")
        return None
    if live.cameras is None:
        raise live.refuse_cameras()
    if options.sessions or options.region is not None:
        raise Refused(422, "camera cannot be combined with sessions or region; leave these out")
    return CameraKey(who(request), options.camera)


async def _finish(live: LiveMap, upload: Upload, query: Future[Answer], options: QueryOptions) -> Answer:
    answer = (await wait_for(query)).withhold(options)
    # Paths may come from another system; PureWindowsPath splits at both separators.
    hits = [
        replace(hit, image=PureWindowsPath(hit.image).name, image_url=image_url(live, hit.id)) for hit in answer.hits
    ]
    return replace(answer, query=upload.name, hits=hits)


@query_router.post("/explain", response_model=dict[str, Any], openapi_extra=body_schema(ExplainOptions, "image"))
async def post_explain(request: Request, service: Running, live: Chosen) -> Response:
    """Explain the match of a photo with a map image: patches, visual words and score terms."""
    upload, options = await read_photo(request, ExplainOptions, service.settings)
    record = await find_record(request, service, live, options.id)
    tokens = await wait_for(await service.queue(request, live, upload))

    def explain() -> Response:
        explanation = live.explain(tokens, record, options.calibration)
        return reply({**explanation, "image_url": image_url(live, record.id)})

    return await service.work(request, live, explain)


# --- cameras ---------------------------------------------------------------------------------------------------------

cameras_router, cameras_edits = reading_router("camera"), editing_router("camera")


class CameraList(Value):
    """The cameras of a map."""

    most: int = req("Maximum number of cameras; a new one replaces the least recently used.")
    cameras: list[CameraInfo] = req("Cameras, most recently used first.")


class CamerasReset(Value):
    """Cameras that were reset."""

    reset: list[str] = req("Names of the cameras.")


@cameras_router.get("/cameras", response_model=CameraList)
async def cameras(request: Request, service: Running, live: Chosen) -> Response:
    """List the cameras of the caller's API key, most recently used first; an edit key lists all cameras."""
    remembered, owner = live.cameras, visible_owner(request)
    if remembered is None:
        return reply(CameraList(most=0, cameras=[]))
    # In a thread: it waits for a running query and recomputes a bias.
    listed = await service.work(request, live, lambda: remembered.list_all(owner))
    return reply(CameraList(most=remembered.most, cameras=listed))


@cameras_router.get("/cameras/{name}", response_model=CameraInfo)
async def camera(request: Request, service: Running, live: Chosen, name: str) -> Response:
    """Show the state of a camera."""
    remembered, owner = live.cameras, visible_owner(request)
    info = None if remembered is None else await service.work(request, live, lambda: remembered.get(name, owner))
    if info is None:
        raise _refuse_name(live, name)
    return reply(info)


@cameras_edits.delete("/cameras/{name}", response_model=CamerasReset)
async def reset(request: Request, service: Running, live: Chosen, name: str) -> Response:
    """Delete the adaptation of a camera; its next photo starts over."""
    remembered = live.cameras
    gone = [] if remembered is None else await service.work(request, live, lambda: remembered.reset(name))
    if not gone:
        raise _refuse_name(live, name)
    return reply(CamerasReset(reset=gone))


@cameras_edits.delete("/cameras", response_model=CamerasReset)
async def reset_all(request: Request, service: Running, live: Chosen) -> Response:
    """Delete the adaptation of every camera of the map."""
    gone = [] if live.cameras is None else await service.work(request, live, live.cameras.reset)
    return reply(CamerasReset(reset=gone))


def _refuse_name(live: LiveMap, name: str) -> Refused:
    return Refused(404, f"camera {name[:80]!r} not found in {live.name}; /v1/cameras lists all cameras")
