"""A live map: queries read one immutable map, edits make the next one and then put it in its place."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any, TypeVar

from tfa.core.progress import Progress
from tfa.core.tokens import Tokens
from tfa.errors import BadMap
from tfa.explain.why import explain_score
from tfa.maps import PlaceMap
from tfa.maps.folder.header import HEADER_FILE, read_map_header
from tfa.maps.folder.writer import MAX_SEGMENTS
from tfa.maps.state import MapState
from tfa.maps.state_changes import reuse_prepared_arrays, share_first_files
from tfa.maps.storage import MemoryStorage
from tfa.service.cameras import ANONYMOUS, MapCameras
from tfa.service.confirmations import Confirmations
from tfa.service.edits import NewPhoto, add_photos
from tfa.service.metrics import Metrics
from tfa.service.photo_files import file_of
from tfa.service.problems import Refused
from tfa.service.query_queue import no_cameras
from tfa.service.served import Served
from tfa.service.settings import ServiceSettings
from tfa.service.shared_encoder import SharedEncoder
from tfa.types import CalibrationReport, EditReport, EncoderOptions, Hit, ImageRecord, MapInfo, QueryOptions

_T = TypeVar("_T")
_log = getLogger("tfa.service")
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)  # a map that is served from where nobody may write


class LiveMap(Served):
    """A map in a folder.

    `current` is the map as it is now and is never changed in place; whoever needs it twice keeps it, since the next
    look may give another. An edit works on a `PlaceMap` of its own, in the map's one editing thread, which writes to
    disk; only then do queries see it. Queries wait for no edit, edits wait for each other.

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
        self.current = self._opened(place_map.state, place_map.notes)
        self._header: tuple[int, ...] | None = None  # the file of the header that `current` was last compared with
        self._looking, self._unreadable = threading.Lock(), ""
        self._working: PlaceMap | None = None  # of an edit under way
        owners = [key.name for key in settings.all_api_keys] + [ANONYMOUS] * (not settings.closed)
        self.cameras = MapCameras(self.current, settings.cameras, owners) if settings.cameras else None
        self.confirmations = Confirmations(self.current)
        super().__init__(place_map.path.stem, encoder, settings, metrics)

    @property
    def current_map(self) -> PlaceMap:
        self.look()
        return self.current

    @property
    def trouble(self) -> str | None:
        try:
            self._header_file()
        except Refused as refusal:
            return refusal.public
        return None

    @property
    def count(self) -> int:
        return len(self.current)

    @property
    def revision(self) -> int:
        return self.current.state.revision

    @property
    def path_name(self) -> str:
        return self.path.name

    def check(self, question: QueryOptions) -> None:
        self.current.check(question)

    def no_cameras(self) -> Refused:
        return no_cameras()

    def info(self) -> MapInfo:
        return self.current.info()

    def images(self, offset: int, limit: int, name_filter: str) -> tuple[int, list[ImageRecord]]:
        name_filter = name_filter.casefold()
        matching = [
            one for one in self.current.images if not name_filter or name_filter in Path(one.path).name.casefold()
        ]
        return len(matching), matching[offset : offset + limit]

    def record(self, image_id: int) -> ImageRecord | None:
        return next((one for one in self.current.images if one.id == image_id), None)

    def last_confirmed(self, image: ImageRecord) -> int | None:
        return self.confirmations.last_of(image)

    def _confirm(self, hits: Sequence[Hit]) -> None:
        self.confirmations.confirm(hits)

    def placed(self) -> list[ImageRecord]:
        return [record for record in self.current.images if record.position is not None]

    def photo(self, record: ImageRecord) -> bytes:
        return file_of(record, self.path)

    def evidence_map(self) -> tuple[object, PlaceMap]:
        return self.current, self.current

    def explain(self, tokens: Tokens, image_id: int, calibration: str | None) -> dict[str, Any]:
        return explain_score(self.current, tokens, image_id, calibration=calibration)

    # --- what another process does -----------------------------------------------------------------------------

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
                    _log.warning("%s on disk cannot be read, revision %d answers: %s", self.name, self.revision, error)
                self._unreadable = str(error)
                return
            if fresh is not None:
                self._check_encoder(fresh)
                self._publish(self._ready(fresh))
                _log.info("revision %d of %s was made by another process", self.revision, self.name)
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
        self.confirmations.publish(place_map)

    def _opened(self, state: MapState, notes: Sequence[str]) -> PlaceMap:
        opened = PlaceMap(MemoryStorage(state, self.path), self.encoder, EncoderOptions(cache=self._cache))
        opened.notes = list(notes)
        return opened

    def prepare(self) -> None:
        """Make ready for single queries, in turn with edits: the first ones would be slow otherwise."""
        self._editor.submit(lambda: self.current.prepare()).result()

    # --- edits -------------------------------------------------------------------------------------------------

    def add(self, photos: Sequence[NewPhoto], session: str | None = None) -> Future[tuple[EditReport, int]]:
        return self.edit("add", partial(add_photos, photos, session=session))

    def calibrate(
        self, files: Sequence[Path], name: str, score: bool | None, progress: Progress
    ) -> tuple[CalibrationReport, dict[str, Any], int]:
        """Calibrate a map apart, then put the new head into the map as it is by then."""
        base = self.current
        options = EncoderOptions(batch_size=1, skip_bad=True, cache=base.cache)
        apart = PlaceMap(MemoryStorage(base.state), self.encoder, options)  # no folder: nothing is written yet
        report = apart.calibrate(files, name, score=score, progress=progress)
        _, revision = self.edit("calibrate", lambda current: current.adopt_calibration(apart, name)).result()
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
            return self._opened(edited.state, edited.notes)

    def _latest(self) -> PlaceMap:
        """A map to edit: as queries see it, or as another process has left it on disk since."""
        if read_map_header(self.path)["digest"] != self.current.state.digest:
            return self._reloaded()
        return self._opened(self.current.state, self.current.notes)

    def _reloaded(self) -> PlaceMap:
        fresh = self._read()
        self._check_encoder(fresh)
        return fresh

    def _read(self) -> PlaceMap:
        """The map on disk; rows that `current` has packed for queries are taken from there."""
        state, current = PlaceMap.load(self.path, encoder=self.encoder).state, self.current.state
        return self._opened(reuse_prepared_arrays(state, current) if share_first_files(state, current) else state, ())

    def _check_encoder(self, fresh: PlaceMap) -> None:
        if fresh.state.encoder["fingerprint"] != self.encoder.model:
            raise BadMap(f"{self.path} was built again with another encoder; start the service again", self.path)

    def _tidy(self, edited: PlaceMap) -> PlaceMap:
        """Read the map anew once it has grown by many small pieces: on disk they were joined."""
        pieces = max(len(term.gallery.chunks) for term in edited.state.head.scorer.terms)
        if pieces <= MAX_SEGMENTS:
            return edited
        fresh = self._reloaded()
        if fresh.state.digest != edited.state.digest:  # another process was faster; the next edit reads it
            return edited
        return self._opened(reuse_prepared_arrays(fresh.state, edited.state), edited.notes)

    def close(self) -> None:
        super().close()
        if self.cameras is not None:
            self.cameras.close()
        self.confirmations.close()
