"""Where was this photo taken, and why there?"""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Depends, Request

from tfa.errors import TfaError
from tfa.maps.state import DATABASE
from tfa.maps.verification import Question, wanted_candidates
from tfa.service.auth import reader
from tfa.service.bodies import body_schema, read_photo, read_photos
from tfa.service.context import Chosen, Service, answer_of, image_url, record_of, service_of
from tfa.service.live_map import ServedMap
from tfa.service.models import BatchAnswer, Problem, QueryAnswer, QueryFields, WhyFields
from tfa.service.problems import Refused, without_paths
from tfa.service.uploads import Upload

router = APIRouter(
    prefix="/v1",
    tags=["query"],
    dependencies=[Depends(reader)],
    responses={status: {"model": Problem} for status in (401, 413, 415, 422, 503)},
)


@router.post("/query", response_model=QueryAnswer, openapi_extra=body_schema(QueryFields, "image"))
async def query(request: Request, served: Chosen) -> dict[str, Any]:
    """The most likely places of one photo."""
    service = service_of(request)
    upload, fields = await read_photo(request, QueryFields, service.settings)
    return await _answer(service, served, upload, _question(served, fields), fields.min_confidence)


@router.post("/query/batch", response_model=BatchAnswer, openapi_extra=body_schema(QueryFields, "images"))
async def query_batch(request: Request, served: Chosen) -> dict[str, Any]:
    """The places of several photos; one that cannot be read gets an error in its place."""
    service = service_of(request)
    uploads, fields = await read_photos(request, QueryFields, service.settings)
    question, answers = _question(served, fields), list[dict[str, Any]]()
    started: list[tuple[Any, float] | Refused] = []
    for upload in uploads:  # decoded one after the other, encoded together as they come
        try:
            started.append(await _asked(service, served, upload, question))
        except Refused as refusal:
            if refusal.status == 503:
                raise
            started.append(refusal)
    for asked in started:
        if isinstance(asked, Refused):
            answers.append({"error": asked.sentence})
            continue
        try:
            answers.append(await _told(served, asked, question, fields.min_confidence))
        except TfaError as error:
            answers.append({"error": without_paths(str(error), service.folders)})
    return {"answers": answers}


def _question(served: ServedMap, fields: QueryFields) -> Question:
    """What is asked; what cannot be is refused before a photo is decoded."""
    question, state = Question(fields.k, fields.calibration, fields.verify), served.current.state
    wanted_candidates(question, state.chosen(question.calibration), state.compact)
    return question


async def _answer(
    service: Service, served: ServedMap, upload: Upload, question: Question, min_confidence: float
) -> dict[str, Any]:
    return await _told(served, await _asked(service, served, upload, question), question, min_confidence)


async def _asked(service: Service, served: ServedMap, upload: Upload, question: Question) -> tuple[Any, float]:
    """The answer to come, and when it was asked for."""
    image = await service.decoded(upload, served.encoder)
    return served.batcher.hits(image, question), time.perf_counter()


async def _told(
    served: ServedMap, asked: tuple[Any, float], question: Question, min_confidence: float
) -> dict[str, Any]:
    hits, started = await answer_of(asked[0]), asked[1]
    confidence = hits[0].confidence if hits else 0.0
    head = served.current.state.active if question.calibration is None else question.calibration
    return {
        "hits": [
            {**hit.to_dict(), "image": _file_name(hit.image), "image_url": image_url(served, hit.id)}
            for hit in (hits if confidence >= min_confidence else [])
        ],
        "confidence": confidence,
        "calibration": None if head == DATABASE else head,
        "seconds": time.perf_counter() - started,
    }


def _file_name(path: str) -> str:
    return path.replace("\\", "/").rsplit("/", 1)[-1]


@router.post("/why", openapi_extra=body_schema(WhyFields, "image"))
async def why(request: Request, served: Chosen) -> dict[str, Any]:
    """What carried the match of a photo with an image of the map: patches, words and terms of the score."""
    service = service_of(request)
    upload, fields = await read_photo(request, WhyFields, service.settings)
    try:
        from tfa.explain import why as contributions
    except ImportError:
        raise Refused(501, "this installation cannot explain a match; install a release with contributions") from None
    record = record_of(served, fields.id)
    image = await service.decoded(upload, served.encoder)
    tokens, current = await answer_of(served.batcher.tokens(image)), served.current
    found = await service.work(lambda: contributions.why(current, tokens, record.id, calibration=fields.calibration))
    return {**found, "image_url": image_url(served, record.id)}
