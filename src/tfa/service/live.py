"""A live map: queries read one immutable map, edits make the next one and then put it in its place."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from tfa.core.progress import Progress
from tfa.core.tokens import Tokens
from tfa.encoders import Encoder
from tfa.errors import BadMap, BadTokens, TfaError
from tfa.explain.why import explain_score
from tfa.maps import PlaceMap
from tfa.maps.folder.format import HEADER_FILE, read_map_header
from tfa.maps.folder.writer import MAX_SEGMENTS
from tfa.maps.state import MapState, reuse_prepared_arrays, share_first_files
from tfa.maps.storage import MemoryStorage
from tfa.maps.store import StoreStorage
from tfa.photos.find_positions import read_photo_position
from tfa.photos.token_cache import EncodedImages
from tfa.service.cameras import ANONYMOUS, Confirmations, MapCameras
from tfa.service.decoders import SharedEncoder
from tfa.service.middleware import Metrics
from tfa.service.photo_files import UPLOADS, discard_upload, read_map_photo, write_upload
from tfa.service.problems import Refused, refuse_busy
from tfa.service.query_queue import QueryQueue, refuse_cameras
from tfa.service.settings import ServiceSettings
from tfa.types import (
    Answer,
    CalibrateOptions,
    CalibrationReport,
    EditReport,
    EncoderOptions,
    ImageRecord,
    Position,
    QueryOptions,
)

_T = TypeVar("_T")
_log = getLogger("tfa.service")
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)  # a map that is served from where nobody may write
_ENCODING = EncoderOptions(batch_size=1, skip_bad=True)  # of a calibration: queries are let in between


@dataclass(frozen=True)
class NewPhoto:
    """An upload that was decoded and may be added."""

    name: str  # of the file it is stored under
    content: bytes
    image: Image.Image
    position: Position | None = None


def encode_uploads(images: Sequence[Image.Image], encoder: Encoder) -> Tokens:
    """Encode photos one by one: queries are let in between."""
    encoded = [encoder.encode([image]) for image in images]
    patches = np.concatenate([patches for patches, _ in encoded])
    cls = None if encoded[0][1] is None else np.concatenate([token for _, token in encoded if token is not None])
    if not np.isfinite(patches).all():
        raise BadTokens(f"{encoder.id} gives tokens that are not finite for one of these photos; leave it out")
    return Tokens(patches, cls, grid=encoder.grid)


class LiveMap(ABC):
    """One served map. Queries wait for no edit; edits wait for each other in the map's one editing thread.

    The two kinds, in a folder and in a store, differ in where images and photos are, and in how an edit is published.
    """

    current: PlaceMap
    cameras: MapCameras | None = None
    confirmations: Confirmations | None = None

    def __init__(self, name: str, encoder: SharedEncoder, settings: ServiceSettings, metrics: Metrics) -> None:
        self.name, self.encoder = name, encoder
        path = self.current.path
        self.path_name = name if path is None else path.name  # a map in a store has its name only
        self._settings, self._metrics = settings, metrics
        self.queries = QueryQueue(
            name, lambda: self.current_map, encoder, settings, metrics, self.cameras, self._confirm
        )
        self._editor = ThreadPoolExecutor(1, thread_name_prefix=f"tfa-edits-{name}")
        self._waiting, self._lock, self._closed = 0, threading.Lock(), False
        metrics.queue_length.labels(name).set_function(lambda: len(self.queries))
        metrics.map_images.labels(name).set_function(lambda: self.size[0])
        metrics.map_revision.labels(name).set_function(lambda: self.size[1])
        metrics.cameras.labels(name).set_function(lambda: 0 if self.cameras is None else len(self.cameras))
        # Evidence and report as last computed, and the state of the map they belong to.
        self.report_cache: tuple[str, dict[str, dict[str, Any]]] | None = None

    # --- what differs between a folder and a store -----------------------------------------------------------------

    @property
    @abstractmethod
    def version(self) -> str:
        """Text that differs after every edit."""

    @property
    @abstractmethod
    def trouble(self) -> str | None:
        """Why it cannot answer now, in a sentence; None if it can. It may take a moment to know."""

    @abstractmethod
    def read_photo(self, record: ImageRecord) -> bytes:
        """Read the file an image was made of; refused if it is not there any more."""

    @abstractmethod
    def calibrate(
        self, files: Sequence[Path], options: CalibrateOptions, progress: Progress
    ) -> tuple[CalibrationReport, dict[str, Any], int]:
        """Calibrate by photos: the report, what was decided without a calibration, and the revision."""

    @abstractmethod
    def _edit(self, kind: str, change: Callable[[PlaceMap], _T]) -> tuple[_T, int]:
        """Run an edit in the editing thread; its result and the revision that queries see from then on."""

    @abstractmethod
    def _add_new(
        self, place_map: PlaceMap, photos: Mapping[str, NewPhoto], tokens: Tokens, session: str | None
    ) -> EditReport:
        """Store the photos, by digest, and add them to the map."""

    def look(self) -> None:  # noqa: B027  # a store's map looks for itself
        """See what another process has done to it; refused if it is gone."""

    # --- the map ---------------------------------------------------------------------------------------------------

    @property
    def current_map(self) -> PlaceMap:
        """The map as it is now."""
        self.look()
        return self.current

    @property
    def in_store(self) -> bool:
        """Whether a store, which may take a moment to answer, holds the rows."""
        return not self.current.storage.has_all_rows

    @property
    def size(self) -> tuple[int, int]:
        """Images and revision, as far as is known without asking a store."""
        count, state = self.current.storage.last_seen
        return count, state.revision

    def prepare(self) -> None:
        """Make ready for queries, in turn with edits: the first ones would be slow otherwise."""
        self._editor.submit(lambda: self.current.prepare()).result()

    def check(self, options: QueryOptions) -> None:
        """Refuse what is known at once to be impossible, before a photo is decoded. A store is not asked."""
        if not self.in_store:
            self.current.check(options)

    def refuse_cameras(self) -> Refused:
        """Refuse a camera if there are none."""
        if not self.in_store:
            return refuse_cameras()
        sentence = "needs the scores of all images, and a store gives the best; query without a camera"
        return Refused(409, f"{self.name} is in a store and remembers no cameras: adapting to a camera {sentence}")

    def explain(self, tokens: Tokens, image_id: int, calibration: str | None) -> dict[str, Any]:
        """Explain a match."""
        if self.in_store:
            raise Refused(501, f"matches are not explained for {self.name}: it is in a store, which keeps no tokens")
        return explain_score(self.current, tokens, image_id, calibration=calibration)

    # --- images ----------------------------------------------------------------------------------------------------

    def images(self, offset: int, limit: int, name_filter: str) -> tuple[int, list[ImageRecord]]:
        """Count the images with `name_filter` in their file name, case aside, and return some of them."""
        name_filter, shown, matching = name_filter.casefold(), list[ImageRecord](), 0
        for record in self.current.records():
            if name_filter and name_filter not in Path(record.path).name.casefold():
                continue
            if offset <= matching < offset + limit:
                shown.append(record)
            matching += 1
            if not name_filter and matching >= offset + limit:
                return self.size[0], shown
        return matching, shown

    def last_confirmed(self, image: ImageRecord) -> int | None:
        """When a sure answer last named the image, in seconds since 1970; None if none did, or nobody notes it."""
        return None if self.confirmations is None else self.confirmations.last_of(image)

    def _confirm(self, answer: Answer) -> None:
        if self.confirmations is not None:
            self.confirmations.confirm(answer)

    # --- edits -----------------------------------------------------------------------------------------------------

    def edit(self, kind: str, change: Callable[[PlaceMap], _T]) -> Future[tuple[_T, int]]:
        """Run `change` on the map, in turn; its result and the revision that queries see from then on."""
        with self._lock:
            if self._closed:
                raise refuse_busy("the service is stopping; send the edit again when it is back")
            if self._waiting >= self._settings.max_waiting:
                raise refuse_busy(f"{self._waiting} edits wait already; send this one again in a moment")
            self._waiting += 1
            return self._editor.submit(self._edit_in_turn, kind, change)

    def _edit_in_turn(self, kind: str, change: Callable[[PlaceMap], _T]) -> tuple[_T, int]:
        try:
            return self._edit(kind, change)
        finally:
            with self._lock:
                self._waiting -= 1

    def add(self, photos: Sequence[NewPhoto], session: str | None = None) -> Future[tuple[EditReport, int]]:
        """Add uploads, of a session perhaps; they are durable and visible to the next query when it is done."""
        return self.edit("add", partial(self._add, photos, session))

    def _add(self, photos: Sequence[NewPhoto], session: str | None, place_map: PlaceMap) -> EditReport:
        """Describe the photos by the map's frozen head; a photo the map holds is skipped."""
        fresh: dict[str, NewPhoto] = {}
        skipped: list[tuple[str, str]] = []
        digests = [hashlib.sha256(photo.content).hexdigest() for photo in photos]
        storage = place_map.storage
        # A photo that was removed may be added again.
        held = {one: id for one, id in storage.find_digests(digests).items() if storage.record(id) is not None}
        for digest, photo in zip(digests, photos, strict=True):
            if digest in held:
                skipped.append((photo.name, f"the map already holds this photo as image {held[digest]}"))
            elif digest in fresh:
                skipped.append((photo.name, f"it is the same photo as {fresh[digest].name}"))
            else:
                fresh[digest] = photo
        if not fresh:
            return EditReport(skipped=skipped)
        tokens = encode_uploads([photo.image for photo in fresh.values()], place_map.encoder)
        return replace(self._add_new(place_map, fresh, tokens, session), skipped=skipped)

    def close(self) -> None:
        """Answer and write what was taken, take no more."""
        with self._lock:
            self._closed = True
        self._editor.shutdown(wait=True)
        self.queries.close()
        if self.cameras is not None:
            self.cameras.close()
        if self.confirmations is not None:
            self.confirmations.close()


class LiveFolder(LiveMap):
    """A map in a folder.

    `current` is the map as it is now and is never changed in place; whoever needs it twice keeps it, since the next
    look may give another. An edit works on a `PlaceMap` of its own, in the map's one editing thread, which writes to
    disk; only then do queries see it.

    What another process leaves on disk is seen by the next request: its header is looked at (`look`), which costs one
    `stat` while it is the same file.
    """

    def __init__(
        self, place_map: PlaceMap, encoder: SharedEncoder, settings: ServiceSettings, metrics: Metrics
    ) -> None:
        if place_map.path is None:
            raise BadMap("only a saved map can be served: edits must survive; save it first")
        self.path: Path = place_map.path
        self.encoder, self._cache = encoder, place_map.cache
        self.current = self._open_map(place_map.state, place_map.notes)
        self._header: tuple[int, ...] | None = None  # the file of the header that `current` was last compared with
        self._looking, self._unreadable = threading.Lock(), ""
        self._working: PlaceMap | None = None  # of an edit under way
        owners = [key.name for key in settings.all_api_keys] + [ANONYMOUS] * (not settings.closed)
        self.cameras = MapCameras(self.current, settings.cameras, owners) if settings.cameras else None
        self.confirmations = Confirmations(self.current)
        super().__init__(place_map.path.stem, encoder, settings, metrics)

    @property
    def version(self) -> str:
        return str(self.current.state.digest)

    @property
    def trouble(self) -> str | None:
        try:
            self._header_file()
        except Refused as refusal:
            return refusal.public
        return None

    def read_photo(self, record: ImageRecord) -> bytes:
        return read_map_photo(record, self.path)

    # --- what another process does ----------------------------------------------------------------------------------

    def look(self) -> None:
        """Put the map that is on disk in the place of `current`, if another process has changed it.

        A map that is not whole there, such as one being copied, is logged and looked at again by the next request;
        until it is whole the one before it answers.
        """
        if self._header_file() == self._header:
            return
        with self._looking:
            header = self._header_file()  # before it is read: what is written later is another file
            if header == self._header:
                return
            try:
                digest, working = read_map_header(self.path)["digest"], self._working
                if working is not None and digest == working.state.digest:
                    return  # our own edit, which is published in a moment
                fresh = None if digest == self.current.state.digest else self._read()
            except (BadMap, OSError) as error:
                self._header_file()  # refuses if it was removed meanwhile
                if str(error) != self._unreadable:  # said once
                    _log.warning("%s on disk cannot be read, revision %d answers: %s", self.name, self.size[1], error)
                self._unreadable = str(error)
                return
            if fresh is not None:
                self._check_encoder(fresh)
                self._publish(self._ready(fresh))
                _log.info("revision %d of %s was made by another process", self.size[1], self.name)
            self._header, self._unreadable = header, ""

    def _header_file(self) -> tuple[int, ...]:
        """What tells one header from the next without reading it: each is a new file."""
        try:
            about = os.stat(self.path / HEADER_FILE)
        except (FileNotFoundError, NotADirectoryError):
            sentence = "is not there any more: it was moved or removed while it was served"
            remedy = "put it back, or start the service with another map"
            raise Refused(503, f"{self.path.name} {sentence}; {remedy}") from None
        return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns

    def _publish(self, place_map: PlaceMap) -> None:
        """From now on queries see this map."""
        self.current, self._header = place_map, None
        if self.cameras is not None:
            self.cameras.publish(place_map)
        if self.confirmations is not None:
            self.confirmations.publish(place_map)

    def _open_map(self, state: MapState, notes: Sequence[str]) -> PlaceMap:
        opened = PlaceMap(MemoryStorage(state, self.path), self.encoder, EncoderOptions(cache=self._cache))
        opened.notes = list(notes)
        return opened

    # --- edits -----------------------------------------------------------------------------------------------------

    def _add_new(
        self, place_map: PlaceMap, photos: Mapping[str, NewPhoto], tokens: Tokens, session: str | None
    ) -> EditReport:
        places = dict[Path, Position | None]()
        try:
            for digest, photo in photos.items():
                path = write_upload(self.path, photo.name, digest, photo.content)
                places[path] = photo.position  # before anything that can fail: what is stored is discarded then
                places[path] = photo.position or read_photo_position(path, path.name)
            return place_map.add_encoded(EncodedImages(list(places), list(photos), tokens, []), places, session)
        except BaseException:
            named = {Path(record.path) for record in place_map.state.images}
            for path in places:
                if path.resolve() not in named:  # an image that was removed may still be kept there
                    discard_upload(self.path, path)
            raise

    def calibrate(
        self, files: Sequence[Path], options: CalibrateOptions, progress: Progress
    ) -> tuple[CalibrationReport, dict[str, Any], int]:
        """Calibrate a map apart, then put the new head into the map as it is by then."""
        base = self.current
        encoding = replace(_ENCODING, cache=base.cache)
        apart = PlaceMap(MemoryStorage(base.state), self.encoder, encoding)  # no folder: nothing is written yet
        report = apart.calibrate(files, progress=progress, **vars(options))
        _, revision = self.edit("calibrate", lambda current: current.adopt_calibration(apart, options.name)).result()
        return report, base.state.database.decisions, revision

    def _edit(self, kind: str, change: Callable[[PlaceMap], _T]) -> tuple[_T, int]:
        try:
            self._working = working = self._latest()
            before = working.state.digest
            result = change(working)
            if working.state.digest != before:
                self._metrics.edits.labels(self.name, kind).inc()
            if working.state.digest != self.current.state.digest:
                ready = self._ready(working)
                with self._looking:
                    self._publish(ready)
            return result, working.state.revision
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            _log.warning("the edit '%s' of %s cannot be written: %s", kind, self.name, error)
            sentence = f"the folder of {self.name} cannot be written ({error.strerror}); nothing was changed"
            raise Refused(507, f"{sentence}. Queries are answered as before") from error
        finally:
            self._working = None  # what an edit wrote and did not publish is read from disk

    def _ready(self, edited: PlaceMap) -> PlaceMap:
        """The edited map, made ready for queries. It is on disk: what fails now may cost time, not the edit."""
        try:
            tidied = self._tidy(edited)
            tidied.prepare()  # what stayed is packed already
            return tidied
        except Exception:
            _log.exception(
                "revision %d of %s is not packed: its queries may be slower", edited.state.revision, self.name
            )
            return self._open_map(edited.state, edited.notes)

    def _latest(self) -> PlaceMap:
        """A map to edit: as queries see it, or as another process has left it on disk since."""
        if read_map_header(self.path)["digest"] != self.current.state.digest:
            return self._reload()
        return self._open_map(self.current.state, self.current.notes)

    def _reload(self) -> PlaceMap:
        fresh = self._read()
        self._check_encoder(fresh)
        return fresh

    def _read(self) -> PlaceMap:
        """The map on disk; rows that `current` has packed for queries are taken from there."""
        state, current = PlaceMap.load(self.path, encoder=self.encoder).state, self.current.state
        return self._open_map(reuse_prepared_arrays(state, current) if share_first_files(state, current) else state, ())

    def _check_encoder(self, fresh: PlaceMap) -> None:
        if fresh.state.encoder["fingerprint"] != self.encoder.model:
            raise BadMap(f"{self.path} was built again with another encoder; start the service again", self.path)

    def _tidy(self, edited: PlaceMap) -> PlaceMap:
        """Read the map anew once it has grown by many small pieces: on disk they were joined."""
        pieces = max(len(term.gallery.chunks) for term in edited.state.head.scorer.terms)
        if pieces <= MAX_SEGMENTS:
            return edited
        fresh = self._reload()
        if fresh.state.digest != edited.state.digest:  # another process was faster; the next edit reads it
            return edited
        return self._open_map(reuse_prepared_arrays(fresh.state, edited.state), edited.notes)


class LiveStoreMap(LiveMap):
    """The store's map, which looks for edits itself: what another replica edits is seen within a second."""

    def __init__(
        self, store_map: PlaceMap, encoder: SharedEncoder, settings: ServiceSettings, metrics: Metrics
    ) -> None:
        assert isinstance(store_map.storage, StoreStorage)
        self.storage = store_map.storage
        self.current = PlaceMap(self.storage, encoder, EncoderOptions(cache=store_map.cache))
        self.current.notes = list(store_map.notes)
        self._model = self.storage.view.header.encoder["fingerprint"]  # opened before it is promised
        super().__init__(self.storage.name, encoder, settings, metrics)

    @property
    def current_map(self) -> PlaceMap:
        if self.storage.view.header.encoder["fingerprint"] != self._model:
            raise BadMap(f"{self.name} was built again with another encoder; start the service again")
        return self.current

    @property
    def version(self) -> str:
        return str(self.storage.view.content)

    @property
    def trouble(self) -> str | None:
        try:
            self.current_map  # noqa: B018  # looks at the header
        except TfaError as error:
            return error.public
        return None

    def read_photo(self, record: ImageRecord) -> bytes:
        content = self.storage.store.read(self._key(record.digest))
        return content if content is not None else read_map_photo(record, None)

    def _key(self, digest: str) -> str:
        return f"{self.name}/{UPLOADS}/{digest}"

    # --- edits -----------------------------------------------------------------------------------------------------

    def _edit(self, kind: str, change: Callable[[PlaceMap], _T]) -> tuple[_T, int]:
        before = self.version
        result = change(self.current)
        if self.version != before:
            self._metrics.edits.labels(self.name, kind).inc()
        return result, self.storage.view.header.revision

    def _add_new(
        self, place_map: PlaceMap, photos: Mapping[str, NewPhoto], tokens: Tokens, session: str | None
    ) -> EditReport:
        records = []
        for digest, photo in photos.items():
            self.storage.store.put(self._key(digest), photo.content)
            place = photo.position or read_photo_position(photo.content, photo.name)
            path = f"{UPLOADS}/{digest[:16]}/{photo.name}"
            records.append(ImageRecord(id=0, path=path, digest=digest, fitted=False, position=place, session=session))
        return place_map.add_records(tokens, records)

    def calibrate(
        self, files: Sequence[Path], options: CalibrateOptions, progress: Progress
    ) -> tuple[CalibrationReport, dict[str, Any], int]:
        apart = PlaceMap(self.storage, self.encoder, replace(_ENCODING, cache=self.current.cache))
        before = dict(apart.state.database.decisions)
        report = apart.calibrate(files, progress=progress, **vars(options))
        self._metrics.edits.labels(self.name, "calibrate").inc()
        self.current.prepare()  # which looks at the header
        return report, before, self.storage.view.header.revision
