"""Where was this photo taken, and why there? And the cameras that queries named."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import PureWindowsPath
from typing import Any, NamedTuple

from fastapi import Request

from tfa.core.config import ONLY_SURE
from tfa.errors import TfaError
from tfa.maps.records import Answer, describe_hits
from tfa.maps.state import DATABASE
from tfa.maps.verification import QueryParams
from tfa.search.store import Region, Where
from tfa.service.auth import editing_router, reading_router, refusals, visible_owner, who
from tfa.service.bodies import Upload, body_schema, read_photo, read_photos
from tfa.service.cameras import CameraKey
from tfa.service.context import Chosen, Running, Service, find_record, image_url, wait_for
from tfa.service.models import BatchAnswer, CameraDetails, CameraList, ExplainFields, QueryAnswer, QueryFields, Reset
from tfa.service.problems import Refused, status_of
from tfa.service.query_queue import QueryResult
from tfa.service.served import Served

# --- query -----------------------------------------------------------------------------------------------------------

query_router = reading_router("query")
query_router.responses |= refusals(400, 408, 409, 413, 415)


@query_router.post("/query", response_model=QueryAnswer, openapi_extra=body_schema(QueryFields, "image"))
async def query_photo(request: Request, service: Running, live: Chosen) -> dict[str, Any]:
    """The most likely places of one photo."""
    upload, fields = await read_photo(request, QueryFields, service.settings)
    queued = _parse_query(request, live, fields)
    return await _answer(live, await _start(service, live, upload, queued), fields)


@query_router.post("/query/batch", response_model=BatchAnswer, openapi_extra=body_schema(QueryFields, "images"))
async def query_batch(request: Request, service: Running, live: Chosen) -> dict[str, Any]:
    """The places of several photos; one that cannot be read gets an error in its place."""
    uploads, fields = await read_photos(request, QueryFields, service.settings)
    queued, answers = _parse_query(request, live, fields), list[dict[str, Any]]()
    queries: list[Future[QueryResult]] = []
    for upload in uploads:  # decoded one after the other, encoded together as they come
        try:
            queries.append(await _start(service, live, upload, queued))
        except Refused as refusal:
            if refusal.status == 503:
                raise
            queries.append(Future())
            queries[-1].set_exception(refusal)
    for query in queries:
        try:
            answers.append(await _answer(live, query, fields))
        except TfaError as error:
            if status_of(error) == 503:
                raise
            answers.append({"error": error.public})
    return {"answers": answers}


class QueuedQuery(NamedTuple):
    """How the photos of a request are answered."""

    question: QueryParams
    camera: CameraKey | None = None  # None: the map alone answers
    sequence: bool = False  # are the photos frames of a drive?


def _parse_query(request: Request, live: Served, fields: QueryFields) -> QueuedQuery:
    """Read what the request asks for; the impossible is refused before a photo is decoded."""
    region = None if fields.region is None else Region(*fields.region)
    where = Where(tuple(fields.sessions), region) if fields.sessions or region is not None else None
    question = QueryParams(fields.k, fields.calibration, fields.rerank, fields.candidates, where)
    live.check(question)
    if fields.camera is None:
        return QueuedQuery(question)
    if live.cameras is None:
        raise live.no_cameras()
    if where is not None:
        raise Refused(422, "photos of a camera are answered by the whole map; leave out sessions and region")
    return QueuedQuery(question, CameraKey(who(request), fields.camera), fields.sequence)


async def _start(service: Service, live: Served, upload: Upload, queued: QueuedQuery) -> Future[QueryResult]:
    photo = await service.decoded(upload, live.encoder)
    return live.queries.hits(photo.image, *queued)


async def _answer(live: Served, query: Future[QueryResult], fields: QueryFields) -> dict[str, Any]:
    result = await wait_for(query)
    told = Answer("", result.hits, result.confidence, None, **describe_hits(result.hits))
    told = told.withhold_below(ONLY_SURE if fields.sure else fields.min_confidence)
    return {
        "hits": [  # a path may have been written on another system: this kind knows both separators
            {**hit.to_dict(), "image": PureWindowsPath(hit.image).name, "image_url": image_url(live, hit.id)}
            for hit in told.hits
        ],
        "confidence": told.confidence,
        "sure": told.sure,
        "reranked": told.reranked,
        "place": None if told.place is None else told.place.to_dict(),
        "place_missing": told.place_missing,
        "calibration": None if result.head == DATABASE else result.head,
        "camera": fields.camera,
        "adaptation_photos": result.adaptation_photos,
        "lost": result.lost,
        "seconds": result.seconds,
    }


@query_router.post("/explain", openapi_extra=body_schema(ExplainFields, "image"))
async def explain_match(request: Request, service: Running, live: Chosen) -> dict[str, Any]:
    """What carried the match of a photo with an image of the map: patches, words and terms of the score."""
    upload, fields = await read_photo(request, ExplainFields, service.settings)
    record = await find_record(service, live, fields.id)
    photo = await service.decoded(upload, live.encoder)
    tokens = await wait_for(live.queries.tokens(photo.image))
    explanation = await service.work(lambda: live.explain(tokens, record.id, fields.calibration))
    return {**explanation, "image_url": image_url(live, record.id)}


# --- cameras ---------------------------------------------------------------------------------------------------------

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
