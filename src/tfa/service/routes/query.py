"""Where was this photo taken, and why there?"""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import PureWindowsPath
from typing import Any, NamedTuple

from fastapi import Request

from tfa.errors import TfaError
from tfa.maps.answer import make_where
from tfa.service.auth import reading_router, refusals, who
from tfa.service.bodies import body_schema, read_photo, read_photos
from tfa.service.cameras import CameraKey
from tfa.service.context import Chosen, Running, Service, find_record, image_url, wait_for
from tfa.service.models import BatchAnswer, ExplainFields, QueryAnswer, QueryFields
from tfa.service.problems import Refused, status_of
from tfa.service.served import Served
from tfa.service.uploads import Upload
from tfa.types import Answer, QueryOptions

query_router = reading_router("query")
query_router.responses |= refusals(400, 408, 409, 413, 415)


@query_router.post("/query", response_model=QueryAnswer, openapi_extra=body_schema(QueryFields, "image"))
async def query_photo(request: Request, service: Running, live: Chosen) -> dict[str, Any]:
    """The most likely places of one photo."""
    upload, fields = await read_photo(request, QueryFields, service.settings)
    queued = _parse_query(request, live, fields)
    return await _answer(live, await _start(service, live, upload, queued), queued)


@query_router.post("/query/batch", response_model=BatchAnswer, openapi_extra=body_schema(QueryFields, "images"))
async def query_batch(request: Request, service: Running, live: Chosen) -> dict[str, Any]:
    """The places of several photos; one that cannot be read gets an error in its place."""
    uploads, fields = await read_photos(request, QueryFields, service.settings)
    queued, answers = _parse_query(request, live, fields), list[dict[str, Any]]()
    queries: list[Future[Answer]] = []
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
            answers.append(await _answer(live, query, queued))
        except TfaError as error:
            if status_of(error) == 503:
                raise
            answers.append({"error": error.public})
    return {"answers": answers}


class QueuedQuery(NamedTuple):
    """How the photos of a request are answered."""

    question: QueryOptions
    camera: CameraKey | None = None  # None: the map alone answers
    sequence: bool = False  # are the photos frames of a drive?


def _parse_query(request: Request, live: Served, fields: QueryFields) -> QueuedQuery:
    """Read what the request asks for; the impossible is refused before a photo is decoded."""
    region: Any = None if fields.region is None else tuple(fields.region)
    question = QueryOptions(
        k=fields.k,
        min_confidence=fields.min_confidence,
        sure=fields.sure,
        calibration=fields.calibration,
        rerank=fields.rerank,
        candidates=fields.candidates,
        sessions=tuple(fields.sessions),
        region=region,
    )
    live.check(question)
    if fields.camera is None:
        return QueuedQuery(question)
    if live.cameras is None:
        raise live.no_cameras()
    if make_where(question) is not None:
        raise Refused(422, "photos of a camera are answered by the whole map; leave out sessions and region")
    return QueuedQuery(question, CameraKey(who(request), fields.camera), fields.sequence)


async def _start(service: Service, live: Served, upload: Upload, queued: QueuedQuery) -> Future[Answer]:
    photo = await service.decoded(upload, live.encoder)
    return live.queries.hits(photo.image, *queued)


async def _answer(live: Served, query: Future[Answer], queued: QueuedQuery) -> dict[str, Any]:
    answer = (await wait_for(query)).withhold(queued.question)
    return {
        **answer.to_dict(),
        "hits": [  # a path may have been written on another system: this kind knows both separators
            {**hit.to_dict(), "image": PureWindowsPath(hit.image).name, "image_url": image_url(live, hit.id)}
            for hit in answer.hits
        ],
        "calibration": answer.calibration,
        "camera": None if queued.camera is None else queued.camera.name,
        "adaptation_photos": answer.adaptation_photos or 0,
        "lost": answer.lost,
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
