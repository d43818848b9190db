"""A live map: queries read one immutable map, edits make the next one and then put it in its place."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from logging import getLogger
from pathlib import Path
from typing import Any, TypeVar

from tfa.errors import BadMap
from tfa.maps import PlaceMap
from tfa.maps.folder.header import read_header
from tfa.maps.folder.writer import MAX_SEGMENTS
from tfa.maps.state import MapState
from tfa.maps.state_changes import with_arrays_of
from tfa.service.metrics import Metrics
from tfa.service.problems import Refused, busy
from tfa.service.query_queue import QueryQueue
from tfa.service.sessions import NOBODY, MapSessions
from tfa.service.settings import ServiceSettings
from tfa.service.shared_encoder import SharedEncoder

T = TypeVar("T")
log = getLogger("tfa.service")
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)  # a map that is served from where nobody may write


class LiveMap:
    """One map of the service.

    `current` is the map as it is now and is never changed in place; whoever needs it twice keeps it, since the next
    look may give another. An edit works on a `PlaceMap` of its own, in the map's one editing thread, which writes to
    disk; only then do queries see it. Queries wait for no edit, edits wait for each other.
    """

    def __init__(
        self, place_map: PlaceMap, encoder: SharedEncoder, settings: ServiceSettings, metrics: Metrics
    ) -> None:
        if place_map.path is None:
            raise BadMap("only a saved map can be served: edits must survive; save it first")
        self.path: Path = place_map.path
        self.name, self.encoder = place_map.path.stem, encoder
        self._settings, self._metrics, self._cache = settings, metrics, place_map.cache
        self.current = self._opened(place_map.state, place_map.notes)
        owners = [token.name for token in settings.all_tokens] + [NOBODY] * (not settings.closed)
        self.sessions = MapSessions(self.current, settings.sessions, owners) if settings.sessions else None
        self.queries = QueryQueue(self.name, lambda: self.current, encoder, settings, metrics, self.sessions)
        self._editor = ThreadPoolExecutor(1, thread_name_prefix=f"tfa-edits-{self.name}")
        self._waiting, self._lock, self._closed = 0, threading.Lock(), False
        metrics.queue_length.labels(self.name).set_function(lambda: len(self.queries))
        metrics.map_images.labels(self.name).set_function(lambda: len(self.current))
        metrics.map_revision.labels(self.name).set_function(lambda: self.current.state.revision)
        metrics.sessions.labels(self.name).set_function(lambda: 0 if self.sessions is None else len(self.sessions))
        self.evidence: tuple[PlaceMap, dict[str, Any]] | None = None  # the last one computed, and of which map

    def _publish(self, place_map: PlaceMap) -> None:
        """From now on queries see this map."""
        self.current = place_map
        if self.sessions is not None:
            self.sessions.publish(place_map)

    def _opened(self, state: MapState, notes: Sequence[str]) -> PlaceMap:
        opened = PlaceMap(state, self.path, self.encoder)
        opened.cache, opened.notes = self._cache, list(notes)
        return opened

    def prepare(self) -> None:
        """Make ready for single queries, in turn with edits: the first ones would be slow otherwise."""
        self._editor.submit(lambda: self.current.prepare()).result()

    # --- edits -------------------------------------------------------------------------------------------------

    def edit(self, kind: str, change: Callable[[PlaceMap], T]) -> Future[tuple[T, int]]:
        """Run `change` on a map of its own, in turn; its answer and the revision that queries see from then on."""
        with self._lock:
            if self._closed:
                raise busy("the service is stopping; send the edit again when it is back")
            if self._waiting >= self._settings.max_waiting:
                raise busy(f"{self._waiting} edits wait already; send this one again in a moment")
            self._waiting += 1
            return self._editor.submit(self._edit, kind, change)

    def _edit(self, kind: str, change: Callable[[PlaceMap], T]) -> tuple[T, int]:
        try:
            working = self._latest()
            before = working.state.digest
            result = change(working)
            if working.state.digest != before:
                self._metrics.edits.labels(self.name, kind).inc()
            if working.state.digest != self.current.state.digest:
                self._publish(self._ready(working))
            return result, working.state.revision
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            log.warning("the edit '%s' of %s cannot be written: %s", kind, self.name, error)
            sentence = f"the folder of {self.name} cannot be written ({error.strerror}); nothing was changed"
            raise Refused(507, f"{sentence}. Queries are answered as before") from error
        finally:
            with self._lock:
                self._waiting -= 1

    def _ready(self, edited: PlaceMap) -> PlaceMap:
        """The edited map, made ready for queries. It is on disk: what fails now may cost time, not the edit."""
        try:
            tidied = self._tidy(edited)
            tidied.prepare()  # what stayed is packed already
            return tidied
        except Exception:
            log.exception(
                "revision %d of %s is not packed: its queries may be slower", edited.state.revision, self.name
            )
            return self._opened(edited.state, edited.notes)

    def _latest(self) -> PlaceMap:
        """A map to edit: as queries see it, or as another process has left it on disk since."""
        if read_header(self.path)["digest"] != self.current.state.digest:
            return self._reloaded()
        return self._opened(self.current.state, self.current.notes)

    def _reloaded(self) -> PlaceMap:
        fresh = PlaceMap.load(self.path, encoder=self.encoder)
        if fresh.state.encoder["fingerprint"] != self.encoder.model:
            raise BadMap(f"{self.path} was built again with another encoder; start the service again", self.path)
        fresh.cache = self._cache
        return fresh

    def _tidy(self, edited: PlaceMap) -> PlaceMap:
        """Read the map anew once it has grown by many small pieces: on disk they were joined."""
        pieces = max(len(term.gallery.chunks) for term in edited.state.head.scorer.terms)
        if pieces <= MAX_SEGMENTS:
            return edited
        fresh = self._reloaded()
        if fresh.state.digest != edited.state.digest:  # another process was faster; the next edit reads it
            return edited
        return self._opened(with_arrays_of(fresh.state, edited.state), edited.notes)

    def close(self) -> None:
        """Answer and write what was taken, take no more."""
        with self._lock:
            self._closed = True
        self._editor.shutdown(wait=True)
        self.queries.close()
        if self.sessions is not None:
            self.sessions.close()
