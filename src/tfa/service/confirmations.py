"""When the images of a live map were last confirmed: a verified answer that is sure confirms the image it names.

Noted within queries, in memory; written to a file of the map's folder now and then, and at the end. Nothing of it is an
edit, and a map that cannot be written costs the log a line, no query.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from logging import getLogger

from tfa.errors import TfaError
from tfa.maps import PlaceMap
from tfa.maps.confirmed import Confirmed, make_image_key
from tfa.service.log_once import LogOnce
from tfa.types import Hit, ImageRecord

WRITTEN_EVERY = 60.0  # seconds at most between a confirmation and the next one that writes them
_log = getLogger("tfa.service")


class Confirmations:
    """Of one map in a folder: a time for each of its images, so it grows no further than the map."""

    def __init__(self, place_map: PlaceMap) -> None:
        assert place_map.path is not None
        self._folder = place_map.path
        self._write_log = LogOnce(f"what was confirmed of {self._folder.name} is kept again")
        self._lock = threading.Lock()  # held within queries: no file is touched under it
        self._files = threading.Lock()
        self._keeper = ThreadPoolExecutor(1, thread_name_prefix="tfa-confirmed")
        self._changed, self._tried = False, time.monotonic()
        try:
            self._confirmed = Confirmed.read(self._folder)
        except (TfaError, OSError) as error:
            _log.warning("what was confirmed is not known and is counted anew: %s", error)
            self._confirmed = Confirmed()
        self.publish(place_map)

    def publish(self, place_map: PlaceMap) -> None:
        """From now on the images are those of this map."""
        keys = {record.id: make_image_key(record) for record in place_map.images}
        with self._lock:
            self._keys, self._confirmed = keys, self._confirmed.watched(place_map.images, int(time.time()))

    def confirm(self, hits: Sequence[Hit]) -> None:
        """Note an answer; one that is not sure, or was not verified, says nothing."""
        if not hits or not hits[0].sure or hits[0].inliers is None:
            return
        with self._lock:
            key = self._keys.get(hits[0].id)
            if key is None:  # removed since
                return
            self._confirmed.last[key] = int(time.time())
            self._changed = True
            due = time.monotonic() - self._tried >= WRITTEN_EVERY
            if due:
                self._tried = time.monotonic()
        if due:
            self._keeper.submit(self._keep)

    def last_of(self, image: ImageRecord) -> int | None:
        """When it was last confirmed, in seconds since 1970."""
        with self._lock:
            return self._confirmed.last_of(image)

    def _keep(self) -> None:
        with self._files:
            with self._lock:
                if not self._changed:
                    return
                written = Confirmed(dict(self._confirmed.since), dict(self._confirmed.last))
                self._changed = False
            problems = []
            try:
                written.with_later(self._on_disk()).write(self._folder)  # another service may serve the map, too
            except (TfaError, OSError) as error:  # a full disk, one that is read-only
                problems.append(
                    f"what was confirmed of {self._folder.name} cannot be saved, tried again later: {error}"
                )
                with self._lock:
                    self._changed = True
            self._write_log.note(problems)

    def _on_disk(self) -> Confirmed:
        try:
            return Confirmed.read(self._folder)
        except TfaError:  # damaged: it is replaced
            return Confirmed()

    def close(self) -> None:
        """Write what was noted, once queries have ended."""
        self._keeper.shutdown(wait=True)
        self._keep()
