"""A map of the service, in a folder or in a store: what routes ask of it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tfa.core.progress import Progress
from tfa.core.tokens import Tokens
from tfa.maps import PlaceMap
from tfa.service.cameras import MapCameras
from tfa.service.edits import NewPhoto
from tfa.service.metrics import Metrics
from tfa.service.problems import Refused, refuse_busy
from tfa.service.query_queue import QueryQueue
from tfa.service.settings import ServiceSettings
from tfa.service.shared_encoder import SharedEncoder
from tfa.types import CalibrationReport, EditReport, Hit, ImageRecord, MapInfo, QueryOptions

_T = TypeVar("_T")


class Served(ABC):
    """One map: queries wait for no edit, edits wait for each other in the map's one editing thread."""

    cameras: MapCameras | None = None

    def __init__(self, name: str, encoder: SharedEncoder, settings: ServiceSettings, metrics: Metrics) -> None:
        self.name, self.encoder = name, encoder
        self._settings, self._metrics = settings, metrics
        self.queries = QueryQueue(
            name, lambda: self.current_map, encoder, settings, metrics, self.cameras, self._confirm
        )
        self._editor = ThreadPoolExecutor(1, thread_name_prefix=f"tfa-edits-{name}")
        self._waiting, self._lock, self._closed = 0, threading.Lock(), False
        metrics.queue_length.labels(name).set_function(lambda: len(self.queries))
        metrics.map_images.labels(name).set_function(lambda: self.count)
        metrics.map_revision.labels(name).set_function(lambda: self.revision)
        metrics.cameras.labels(name).set_function(lambda: 0 if self.cameras is None else len(self.cameras))
        # Evidence and report as last computed, and the state of the map they belong to.
        self.report_cache: tuple[object, dict[str, dict[str, Any]]] | None = None

    # --- what a kind of map brings ------------------------------------------------------------------------------

    @property
    @abstractmethod
    def current_map(self) -> PlaceMap:
        """The map as it is now."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Images, as far as is known without asking anybody."""

    @property
    @abstractmethod
    def revision(self) -> int:
        """The same of the revision."""

    @property
    @abstractmethod
    def path_name(self) -> str:
        """What it is called where it lies."""

    @property
    def trouble(self) -> str | None:
        """Why it cannot answer now, in a sentence; None if it can. It may take a moment to know."""
        return None

    def look(self) -> None:  # noqa: B027  # a store's map looks by itself
        """See what another process has done to it; refused if it is gone."""

    @abstractmethod
    def check(self, question: QueryOptions) -> None:
        """Refuse what is known at once to be impossible, before a photo is decoded."""

    @abstractmethod
    def no_cameras(self) -> Refused:
        """The refusal of a camera, where there are none."""

    @abstractmethod
    def info(self) -> MapInfo:
        """`PlaceMap.info()`."""

    @abstractmethod
    def images(self, offset: int, limit: int, name_filter: str) -> tuple[int, list[ImageRecord]]:
        """How many have `name_filter` in their file name, case aside, and some of them."""

    @abstractmethod
    def record(self, image_id: int) -> ImageRecord | None:
        """An image that answers, by its id."""

    @abstractmethod
    def placed(self) -> list[ImageRecord]:
        """The images with a position."""

    @abstractmethod
    def photo(self, record: ImageRecord) -> bytes:
        """The file an image was made of; refused if it is not there any more."""

    @abstractmethod
    def evidence_map(self) -> tuple[object, PlaceMap]:
        """The map that decisions were judged on, and something that is another after an edit."""

    @abstractmethod
    def explain(self, tokens: Tokens, image_id: int, calibration: str | None) -> dict[str, Any]:
        """What carried a match."""

    @abstractmethod
    def add(self, photos: Sequence[NewPhoto], session: str | None = None) -> Future[tuple[EditReport, int]]:
        """Add uploads, of a session perhaps; they are durable and visible to the next query when it is done."""

    @abstractmethod
    def calibrate(
        self, files: Sequence[Path], name: str, score: bool | None, progress: Progress
    ) -> tuple[CalibrationReport, dict[str, Any], int]:
        """Calibrate by photos: the report, what was decided without a calibration, and the revision."""

    @abstractmethod
    def _edit(self, kind: str, change: Callable[[Any], _T]) -> tuple[_T, int]:
        """Run an edit in the editing thread; its answer and the revision that queries see from then on."""

    @abstractmethod
    def prepare(self) -> None:
        """Make ready for queries."""

    def last_confirmed(self, image: ImageRecord) -> int | None:
        """When a sure answer last named the image, in seconds since 1970; None if none did, or nobody notes it."""
        return None

    def _confirm(self, hits: Sequence[Hit]) -> None:
        """Note what an answer confirms, where that is kept."""
        return

    # --- edits --------------------------------------------------------------------------------------------------

    def edit(self, kind: str, change: Callable[[Any], _T]) -> Future[tuple[_T, int]]:
        """Run `change` on the map, in turn; its answer and the revision that queries see from then on."""
        with self._lock:
            if self._closed:
                raise refuse_busy("the service is stopping; send the edit again when it is back")
            if self._waiting >= self._settings.max_waiting:
                raise refuse_busy(f"{self._waiting} edits wait already; send this one again in a moment")
            self._waiting += 1
            return self._editor.submit(self._in_turn, kind, change)

    def _in_turn(self, kind: str, change: Callable[[Any], _T]) -> tuple[_T, int]:
        try:
            return self._edit(kind, change)
        finally:
            with self._lock:
                self._waiting -= 1

    def close(self) -> None:
        """Answer and write what was taken, take no more."""
        with self._lock:
            self._closed = True
        self._editor.shutdown(wait=True)
        self.queries.close()
