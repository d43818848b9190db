"""The running service as routes see it, and what they share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Annotated, TypeVar, get_args
from urllib.parse import quote

from fastapi import Depends, Query, Request
from fastapi import Path as PathParameter
from PIL import Image
from pydantic import BeforeValidator

from tfa.errors import BadMap
from tfa.maps import PlaceMap
from tfa.service.auth import AuditLog, RateLimit
from tfa.service.bodies import Upload
from tfa.service.decoders import DECODER_COUNT, Decoded, SharedEncoder, shared_decoders
from tfa.service.jobs import JobBoard, JobState
from tfa.service.live import Copies, LiveMap
from tfa.service.middleware import Metrics
from tfa.service.problems import Refused, refuse_busy
from tfa.service.settings import ServiceSettings
from tfa.types import ImageRecord

_T = TypeVar("_T")
_log = getLogger("tfa.service")
MOST_DIGITS = 18  # of an id
WORKERS = 2  # copies, explanations and evidence made at once


class Service:
    """Maps by name, the first of them the one that answers when none is named."""

    def __init__(self, maps: Sequence[PlaceMap], settings: ServiceSettings) -> None:
        if not maps:
            raise BadMap("there is no map to serve; give one or more")
        self.settings, self.metrics, self.copies = settings, Metrics(), Copies()
        self.jobs, self.rates = JobBoard(), RateLimit(settings.limited_rate)
        self.audit = AuditLog(None if settings.audit_log is None else Path(settings.audit_log))
        self._warm = False
        self._decoding = 0  # photos that wait to be decoded, counted in the one thread that takes requests
        self.maps: dict[str, LiveMap] = {}
        encoders: dict[str, SharedEncoder] = {}
        for place_map in maps:
            fingerprint = place_map.encoder.fingerprint  # which also distinguishes the arithmetic of one model
            if fingerprint not in encoders:
                encoders[fingerprint] = SharedEncoder(place_map.encoder)
            live = LiveMap(place_map, encoders[fingerprint], settings, self.metrics)
            if live.name in self.maps:
                raise BadMap(f"two maps are called {live.name!r}; rename the folder of one of them")
            self.maps[live.name] = live
        self._encoders = list(encoders.values())
        self._decoders = ThreadPoolExecutor(DECODER_COUNT, thread_name_prefix="tfa-decode")
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="tfa-work")
        for state in get_args(JobState):
            self.metrics.jobs.labels(state).set_function(partial(self.jobs.count, state))

    @property
    def status(self) -> str:
        """loading, ready, or what is wrong: failed or stalled, as the query thread of a map is."""
        troubles = [live.queries.state for live in self.maps.values() if live.queries.state != "ready"]
        return troubles[0] if troubles else "ready" if self._warm else "loading"

    @property
    def trouble(self) -> str | None:
        """What keeps a map from answering, such as a store that is away; it may take a moment to know."""
        return next((trouble for live in self.maps.values() if (trouble := live.trouble) is not None), None)

    def warm_up(self) -> None:
        """Run every encoder once and pack every map: the first queries would be slower than all others."""
        try:
            shared_decoders().warm_up()
            for encoder in self._encoders:
                encoder.encode([encoder.prepare(Image.new("RGB", (64, 64)))])
            for live in self.maps.values():
                live.prepare()
            self._warm = True
        except Exception:
            _log.exception("an encoder does not run, or a map cannot be read: the service will not be ready")

    async def decode(self, upload: Upload, encoder: SharedEncoder) -> Decoded:
        """The photo at the size the encoder reads; decoded in another process, a few at a time."""
        if not self._warm:
            raise refuse_busy("the service is loading its encoder; send the request again in a moment")
        if self._decoding >= self.settings.max_waiting:  # each holds its photo in memory
            raise refuse_busy(f"{self._decoding} photos wait to be decoded already; send this one again in a moment")

        def decode() -> Decoded:
            photo = shared_decoders().decode(upload, self.settings, encoder.reads)
            return replace(photo, image=encoder.prepare(photo.image))

        self._decoding += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._decoders, decode)
        finally:
            self._decoding -= 1

    async def work(self, call: Callable[[], _T]) -> _T:
        """Run something slow in a thread."""
        return await wait_for(self._workers.submit(call))

    def close(self) -> None:
        """Finish what was accepted, in order: jobs end in edits, edits and queries in answers."""
        self.jobs.close()
        for live in self.maps.values():
            live.close()
        for pool in (self._decoders, self._workers):
            pool.shutdown(wait=True, cancel_futures=True)
        self.audit.close()


def get_service(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


Running = Annotated[Service, Depends(get_service)]
MapName = Annotated[str | None, Query(description="Which map; the first of the service if not given.")]


def choose_map(service: Running, map: MapName = None) -> LiveMap:
    """The map of a request, as it is on disk now. Not async: reading a map again takes a moment, in a thread."""
    name = next(iter(service.maps)) if map is None else map
    if name not in service.maps:
        raise Refused(404, f"there is no map {map!r} here; this service has {', '.join(service.maps)}")
    service.maps[name].look()
    return service.maps[name]


def _check_digits(value: object) -> object:
    """Refuse what is not an id in a path: 1.0, +1 and 1_0 are numbers to Python."""
    if isinstance(value, str) and not (value.isascii() and value.isdecimal() and len(value) <= MOST_DIGITS):
        raise ValueError(f"{value[:40]!r} is not the id of an image; /v1/images lists those there are")
    return value


ImageId = Annotated[int, BeforeValidator(_check_digits), PathParameter(ge=0, description="Of an image of the map.")]
Chosen = Annotated[LiveMap, Depends(choose_map)]


async def wait_for(future: Future[_T]) -> _T:
    """Wait for another thread without holding this one."""
    try:
        return await asyncio.wrap_future(future)
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:  # such as SystemExit, which would end the loop that takes requests
        raise RuntimeError(f"a thread of the service raised {error!r}") from error


def image_url(live: LiveMap, image_id: int) -> str:
    """Relative to the service's own address, so that it holds behind a proxy with a prefix too."""
    return f"v1/images/{image_id}/file?map={quote(live.name)}"


async def find_record(service: Service, live: LiveMap, image_id: int) -> ImageRecord:
    """An image that answers, by its id."""
    record = await service.work(lambda: live.current.storage.record(image_id))
    if record is None:
        raise Refused(404, f"there is no image {image_id} in {live.name}; /v1/images lists those there are")
    return record
