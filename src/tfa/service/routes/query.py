"""Where was this photo taken, and why there?"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends, Request

from tfa.errors import TfaError
from tfa.explain.why import why as explain
from tfa.maps.state import DATABASE
from tfa.maps.verification import Question, wanted_candidates
from tfa.service.auth import reader
from tfa.service.bodies import body_schema, read_photo, read_photos
from tfa.service.context import Chosen, Service, answer_of, file_name_of, image_url, record_of, service_of
from tfa.service.live_map import LiveMap
from tfa.service.models import BatchAnswer, Problem, QueryAnswer, QueryFields, WhyFields
from tfa.service.problems import Refused
from tfa.service.query_queue import QueryResult
from tfa.service.uploads import Upload

router = APIRouter(
    prefix="/v1",
    tags=["query"],
    dependencies=[Depends(reader)],
    responses={status: {"model": Problem} for status in (401, 413, 415, 422, 503)},
)


@dataclass(frozen=True)
class StartedQuery:
    """A query that waits for its answer, and when it began to."""

    result: Future[QueryResult]
    started: float


@router.post("/query", response_model=QueryAnswer, openapi_extra=body_schema(QueryFields, "image"))
async def query(request: Request, live: Chosen) -> dict[str, Any]:
    """The most likely places of one photo."""
    service = service_of(request)
    upload, fields = await read_photo(request, QueryFields, service.settings)
    return await _answer(live, await _start(service, live, upload, _question(live, fields)), fields.min_confidence)


@router.post("/query/batch", response_model=BatchAnswer, openapi_extra=body_schema(QueryFields, "images"))
async def query_batch(request: Request, live: Chosen) -> dict[str, Any]:
    """The places of several photos; one that cannot be read gets an error in its place."""
    service = service_of(request)
    uploads, fields = await read_photos(request, QueryFields, service.settings)
    question, answers = _question(live, fields), list[dict[str, Any]]()
    queries: list[StartedQuery | Refused] = []
    for upload in uploads:  # decoded one after the other, encoded together as they come
        try:
            queries.append(await _start(service, live, upload, question))
        except Refused as refusal:
            if refusal.status == 503:
                raise
            queries.append(refusal)
    for one in queries:
        if isinstance(one, Refused):
            answers.append({"error": one.sentence})
            continue
        try:
            answers.append(await _answer(live, one, fields.min_confidence))
        except TfaError as error:
            answers.append({"error": error.public})
    return {"answers": answers}


def _question(live: LiveMap, fields: QueryFields) -> Question:
    """The question of the request; an impossible one is refused before a photo is decoded."""
    question, state = Question(fields.k, fields.calibration, fields.verify, fields.candidates), live.current.state
    wanted_candidates(question, state.chosen(question.calibration), state.compact)
    return question


async def _start(service: Service, live: LiveMap, upload: Upload, question: Question) -> StartedQuery:
    image = await service.decoded(upload, live.encoder)
    return StartedQuery(live.queries.hits(image, question), time.perf_counter())


async def _answer(live: LiveMap, query: StartedQuery, min_confidence: float) -> dict[str, Any]:
    result = await answer_of(query.result)
    confidence = result.hits[0].confidence if result.hits else 0.0
    return {
        "hits": [
            {**hit.to_dict(), "image": file_name_of(hit.image), "image_url": image_url(live, hit.id)}
            for hit in (result.hits if confidence >= min_confidence else [])
        ],
        "confidence": confidence,
        "calibration": None if result.head == DATABASE else result.head,
        "seconds": time.perf_counter() - query.started,
    }


@router.post("/why", openapi_extra=body_schema(WhyFields, "image"))
async def why(request: Request, live: Chosen) -> dict[str, Any]:
    """What carried the match of a photo with an image of the map: patches, words and terms of the score."""
    service = service_of(request)
    upload, fields = await read_photo(request, WhyFields, service.settings)
    record = record_of(live, fields.id)
    image = await service.decoded(upload, live.encoder)
    tokens, current = await answer_of(live.queries.tokens(image)), live.current
    explanation = await service.work(lambda: explain(current, tokens, record.id, calibration=fields.calibration))
    return {**explanation, "image_url": image_url(live, record.id)}
