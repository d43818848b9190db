"""The running service, and the dependencies that routes share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args
from urllib.parse import quote

from fastapi import Depends, Query, Request
from fastapi import Path as PathParameter
from PIL import Image
from pydantic import BeforeValidator

from tfa.errors import BadMap
from tfa.maps import PlaceMap
from tfa.service.auth import AuditLog, RateLimit
from tfa.service.bodies import Upload
from tfa.service.cameras import CameraKey
from tfa.service.decoders import DECODER_COUNT, Decoded, FairTurns, SharedEncoder, shared_decoders
from tfa.service.jobs import JobBoard, JobState
from tfa.service.live import Copies, LiveMap
from tfa.service.middleware import Metrics
from tfa.service.problems import Refused, refuse_busy
from tfa.service.settings import ServiceSettings
from tfa.types import ImageRecord, QueryOptions

_T = TypeVar("_T")
_log = getLogger("tfa.service")
MOST_DIGITS = 18  # longest image id
WORKERS = 3  # threads of a map for lists, explanations and evidence, at most two for one caller


class Service:
    """Maps by name with their encoders and threads; the first map is the default."""

    def __init__(self, maps: Sequence[PlaceMap], settings: ServiceSettings) -> None:
        if not maps:
            raise BadMap("no map to serve; pass one or more maps")
        self.settings, self.metrics, self.copies = settings, Metrics(), Copies(settings)
        self.jobs, self.rates = JobBoard(), RateLimit(settings.limited_rate)
        self.audit = AuditLog(None if settings.audit_log is None else Path(settings.audit_log))
        self._warm = False
        # One caller leaves a decoder and a core free for others.
        self._turns = FairTurns(DECODER_COUNT, min(DECODER_COUNT, os.cpu_count() or 1) - 1, settings.max_waiting)
        self.maps: dict[str, LiveMap] = {}
        encoders: dict[str, SharedEncoder] = {}
        for place_map in maps:
            fingerprint = place_map.encoder.fingerprint  # also differs by the numeric precision of a model
            if fingerprint not in encoders:
                encoders[fingerprint] = SharedEncoder(place_map.encoder)
            live = LiveMap(place_map, encoders[fingerprint], settings, self.metrics)
            if live.name in self.maps:
                raise BadMap(f"two maps are named {live.name!r}; rename one folder")
            self.maps[live.name] = live
        self._encoders = list(encoders.values())
        self._decoders = ThreadPoolExecutor(DECODER_COUNT, thread_name_prefix="tfa-decode")
        # A store that hangs stops only the threads of its map.
        self._workers = {name: ThreadPoolExecutor(WORKERS, thread_name_prefix=f"tfa-work-{name}") for name in self.maps}
        self._work_turns = {name: FairTurns(WORKERS, WORKERS - 1, settings.max_waiting) for name in self.maps}
        self._checker, self._check = ThreadPoolExecutor(1, thread_name_prefix="tfa-check"), Future[str | None]()
        self._check.set_result(None)
        for state in get_args(JobState):
            self.metrics.jobs.labels(state).set_function(partial(self.jobs.count, state))

    @property
    def status(self) -> str:
        """State of the service: loading, ready, or the first problem of a query thread (failed, stalled)."""
        troubles = [live.queries.state for live in self.maps.values() if live.queries.state != "ready"]
        return troubles[0] if troubles else "ready" if self._warm else "loading"

    async def find_trouble(self) -> str | None:
        """Return a message about the first map that cannot answer, such as one whose store is down.

        Requests that arrive during a check share its result: a store that hangs holds one thread.
        """
        if self._check.done():
            troubles = (live.trouble for live in self.maps.values())
            self._check = self._checker.submit(lambda: next((one for one in troubles if one is not None), None))
        return await asyncio.shield(asyncio.wrap_future(self._check))

    def warm_up(self) -> None:
        """Run every encoder once and pack every map, so that the first queries are not slow."""
        try:
            shared_decoders().warm_up()
            for encoder in self._encoders:
                encoder.encode([encoder.prepare(Image.new("RGB", (64, 64)))])
            for live in self.maps.values():
                live.prepare()
            self._warm = True
        except Exception:
            _log.exception("warm-up failed: the service will not become ready")

    async def decode(self, upload: Upload, encoder: SharedEncoder, request: Request) -> Decoded:
        """Decode a photo at the encoder's input size, in another process, when it is the caller's turn."""
        if not self._warm:
            raise refuse_busy("the service is loading its encoder; retry in a moment")

        def decode() -> Decoded:
            photo = shared_decoders().decode(upload, self.settings, encoder.reads)
            return replace(photo, image=encoder.prepare(photo.image))

        async with self._turns.take(request.state.caller):
            return await asyncio.get_running_loop().run_in_executor(self._decoders, decode)

    async def copy_image(self, request: Request, live: LiveMap, record: ImageRecord, size: int) -> bytes:
        """Return a JPEG copy of a map image, from the cache or when it is the caller's turn."""
        copy = self.copies.find(record, size)
        if copy is None:
            uploaded, caller = live.is_uploaded(record), request.state.caller
            async with self._work_turns[live.name].take(caller):  # limits the photos in memory
                content = await wait_for(self._workers[live.name].submit(live.read_photo, record))
                async with self._turns.take(caller):
                    make = partial(self.copies.make, record, content, size, uploaded=uploaded)
                    copy = await wait_for(self._decoders.submit(make))
        return copy

    async def queue(
        self,
        request: Request,
        live: LiveMap,
        upload: Upload,
        options: QueryOptions | None = None,
        camera: CameraKey | None = None,
    ) -> Future[Any]:
        """Decode a photo and queue it in the caller's turn; without options, the result is its tokens."""
        photo = await self.decode(upload, live.encoder, request)
        live.queries.check()
        await live.turns.acquire(caller := request.state.caller)
        release = partial(asyncio.get_running_loop().call_soon_threadsafe, live.turns.release, caller)
        try:
            query = live.queries.submit(photo.image, options, camera)
        except BaseException:
            live.turns.release(caller)
            raise
        query.add_done_callback(lambda _: release())
        return query

    async def edit(
        self, request: Request, live: LiveMap, kind: str, change: Callable[[PlaceMap], _T]
    ) -> tuple[_T, int]:
        """Edit a map when it is the caller's turn; return the result of `change` and the new revision."""
        async with live.edit_turns.take(request.state.caller):
            return await wait_for(live.edit(kind, change))

    async def work(self, request: Request, live: LiveMap, call: Callable[[], _T]) -> _T:
        """Run a slow call in a thread of this map, when it is the caller's turn."""
        async with self._work_turns[live.name].take(request.state.caller):
            return await wait_for(self._workers[live.name].submit(call))

    def close(self) -> None:
        """Finish accepted work in order: jobs first, since they end in edits."""
        self.jobs.close()
        for live in self.maps.values():
            live.close()
        for pool in (self._decoders, self._checker, *self._workers.values()):
            pool.shutdown(wait=True, cancel_futures=True)
        self.audit.close()


async def get_service(request: Request) -> Service:  # async: no thread, which a store that hangs may hold
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


Running = Annotated[Service, Depends(get_service)]
MapName = Annotated[str | None, Query(description="Map to use. [default: the first map of the service]")]


def choose_map(service: Running, map: MapName = None) -> LiveMap:
    """Return the map of a request, reloaded if it changed on disk. Not async: reloading takes a moment."""
    name = next(iter(service.maps)) if map is None else map
    if name not in service.maps:
        raise Refused(404, f"map {map!r} not found. Available: {', '.join(service.maps)}")
    service.maps[name].look()
    return service.maps[name]


def _check_digits(value: object) -> object:
    """Refuse text that is not an id; Python would read 1.0, +1 and 1_0 as numbers."""
    if isinstance(value, str) and not (value.isascii() and value.isdecimal() and len(value) <= MOST_DIGITS):
        raise ValueError(f"{value[:40]!r} is not an image id; /v1/images lists all images")
    return value


ImageId = Annotated[int, BeforeValidator(_check_digits), PathParameter(ge=0, description="Id of a map image.")]
Chosen = Annotated[LiveMap, Depends(choose_map)]


async def wait_for(future: Future[_T]) -> _T:
    """Wait for another thread without blocking the event loop."""
    try:
        return await asyncio.wrap_future(future)
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:  # such as SystemExit, which would end the event loop
        raise RuntimeError(f"a service thread raised {error!r}") from error


def image_url(live: LiveMap, image_id: int) -> str:
    """Return the URL of an image, relative to the service so that it works behind a proxy with a prefix."""
    return f"v1/images/{image_id}/file?map={quote(live.name)}"


async def find_record(request: Request, service: Service, live: LiveMap, image_id: int) -> ImageRecord:
    record = await service.work(request, live, lambda: live.current.storage.record(image_id))
    if record is None:
        raise Refused(404, f"image {image_id} not found in {live.name}; /v1/images lists all images")
    return record
