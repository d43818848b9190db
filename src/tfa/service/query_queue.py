"""Micro-batches: queries that arrive within a few milliseconds are encoded and scored together."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from logging import getLogger
from typing import Any, Literal

from PIL import Image

from tfa.core.tokens import Tokens
from tfa.encoders import Encoder
from tfa.errors import TfaError
from tfa.maps import PlaceMap
from tfa.maps.confidence import WINDOW_PHOTOS, DomainShiftMonitor, estimate_answer_recall
from tfa.maps.state import MapState
from tfa.service.cameras import CameraKey, MapCameras
from tfa.service.middleware import Metrics
from tfa.service.problems import Refused, refuse_busy
from tfa.service.settings import ServiceSettings
from tfa.types import Answer, QueryOptions

# --- the last queries ------------------------------------------------------------------------------------------------

_HEADS = 8  # whose queries are kept: those that were queried last


@dataclass
class _Recent:
    shift_monitor: DomainShiftMonitor
    answers: deque[Answer] = field(default_factory=lambda: deque(maxlen=WINDOW_PHOTOS))


class RecentQueries:
    """The last queries of each head of a map. Neither photos nor scores are kept, and nothing outlives the service."""

    def __init__(self, name: str) -> None:
        self._name = name  # of the map, for advice
        self._heads: dict[str, _Recent] = {}  # by what a head is known by; the one queried last is the last
        self._lock = threading.Lock()

    def answer(self, current: PlaceMap, tokens: Tokens, options: QueryOptions) -> list[Answer]:
        """Answer photos and remember how sure the answers are."""
        head = current.state.chosen(options.calibration)
        key = current.state.head_digest(head.name)
        with self._lock:
            recent = self._heads.pop(key, None) or _Recent(DomainShiftMonitor.for_head(head))
            self._heads[key] = recent
            while len(self._heads) > _HEADS:
                del self._heads[next(iter(self._heads))]
            answers = current.answer_tokens(tokens, options, recent.shift_monitor)
            recent.answers.extend(replace(answer, hits=[], place=None) for answer in answers if answer)
        return answers

    def summary(self, state: MapState) -> dict[str, Any]:
        """What the last queries of the active head say, in JSON."""
        with self._lock:
            recent = self._heads.get(state.head_digest(state.active))
            expected = None if recent is None else estimate_answer_recall(recent.answers)
            notice = None if recent is None else recent.shift_monitor.warning(self._name)
        return {
            "photos": 0 if expected is None else expected.photos,
            "expected_recall": None if expected is None else expected.to_dict(),
            "text": None if expected is None else str(expected),
            "notice": notice,
        }


# --- queue -----------------------------------------------------------------------------------------------------------

FAILED_SECONDS = 10.0  # that /readyz tells of a failure, unless a batch succeeds before
_log = getLogger("tfa.service")


@dataclass
class WaitingQuery:
    """A photo that waits: for its answer, or without options for its tokens."""

    image: Image.Image
    options: QueryOptions | None
    camera: CameraKey | None = None  # the camera it is of, if that has a name
    future: Future[Any] = field(default_factory=Future)
    since: float = field(default_factory=time.perf_counter)


class QueryQueue:
    """A thread that answers the queries of one map. `current` gives the map as it is when a batch begins.

    A batch that fails fails its own queries and no others, whatever it fails of: the thread goes on.
    """

    def __init__(
        self,
        name: str,
        current: Callable[[], PlaceMap],
        encoder: Encoder,
        settings: ServiceSettings,
        metrics: Metrics,
        cameras: MapCameras | None = None,
        confirm: Callable[[Answer], None] = lambda answer: None,
    ) -> None:
        self.name, self._current, self._encoder = name, current, encoder
        self.recent = RecentQueries(f"{name}.tfa")
        self._settings, self._metrics, self._cameras = settings, metrics, cameras
        self._confirm = confirm  # is called with the answer to every photo
        self._waiting: queue.SimpleQueue[WaitingQuery | None] = queue.SimpleQueue()
        # Held to put a query in and to end: after the end nothing is put in that nobody would take out.
        self._lock = threading.Lock()
        self._closed = False
        self._since: float | None = None  # when the batch under way was begun
        self._failed = -FAILED_SECONDS  # when the thread last failed, until it succeeds
        self._thread = threading.Thread(target=self._run, name=f"tfa-queries-{name}", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Queries that wait."""
        return self._waiting.qsize()

    @property
    def state(self) -> Literal["ready", "failed", "stalled"]:
        """failed: the thread failed on a batch a moment ago, and on none since; stalled: a batch takes far too long."""
        since, now = self._since, time.monotonic()
        if since is not None and now - since > self._settings.stall_seconds:
            return "stalled"
        return "failed" if now - self._failed < FAILED_SECONDS else "ready"

    def answer(self, image: Image.Image, options: QueryOptions, camera: CameraKey | None = None) -> Future[Answer]:
        """Answer a photo, doubtful answers too; photos of one camera are answered in the order of these calls."""
        return self._submit(WaitingQuery(image, options, camera))

    def tokens(self, image: Image.Image) -> Future[Tokens]:
        """Encode a photo."""
        return self._submit(WaitingQuery(image, None))

    def _submit(self, query: WaitingQuery) -> Future[Any]:
        with self._lock:
            if self._closed:
                raise refuse_busy("the service is stopping; send the query again when it is back")
            if self.state == "stalled":
                limit = f"{self._settings.stall_seconds:g} s"
                raise refuse_busy(
                    f"{self.name} has been at one batch of queries for more than {limit}; try again later"
                )
            if len(self) >= self._settings.max_waiting:
                raise refuse_busy(f"{self._settings.max_waiting} queries wait already; send this one again in a moment")
            self._waiting.put(query)
        return query.future

    def close(self) -> None:
        """Answer what waits, then stop."""
        with self._lock:
            self._closed = True
            self._waiting.put(None)
        self._thread.join()

    # --- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        last = False
        while not last:
            batch: list[WaitingQuery] = []
            try:
                last = self._collect(batch)
                self._since = time.monotonic()
                self._work(batch)
                self._failed = -FAILED_SECONDS
            except BaseException:  # nothing we know of comes here: a batch keeps its exceptions to itself
                self._failed = time.monotonic()
                _log.exception("the query thread of %s failed on a batch and goes on; /readyz says so", self.name)
            finally:
                self._since = None
                for query in batch:
                    if not query.future.done():
                        query.future.set_exception(_make_failure())

    def _collect(self, batch: list[WaitingQuery]) -> bool:
        """Fill the next batch: the first query, and what comes until the wait is over or it is full. Is it the last?"""
        first = self._waiting.get()
        if first is None:
            return True
        batch.append(first)
        deadline = time.monotonic() + self._settings.batch_wait
        while len(batch) < self._settings.batch_size:
            try:
                left = deadline - time.monotonic()
                query = self._waiting.get(timeout=left) if left > 0 else self._waiting.get_nowait()
            except queue.Empty:
                break
            if query is None:
                return True
            batch.append(query)
        return False

    def _work(self, batch: Sequence[WaitingQuery]) -> None:
        batch = [query for query in batch if query.future.set_running_or_notify_cancel()]
        if batch:
            self._metrics.batches.labels(self.name).inc()
            self._metrics.batch_photos.labels(self.name).inc(len(batch))
            with self._settled(batch):
                self._answer_batch(batch)

    @contextmanager
    def _settled(self, batch: Sequence[WaitingQuery]) -> Iterator[None]:
        """Every query of the batch has an answer or an error afterwards, whatever happens."""
        failure: Exception = _make_failure()
        try:
            yield
        except Exception as error:
            failure = error
            if not isinstance(error, TfaError):
                _log.exception("a batch of %d queries of %s failed", len(batch), self.name)
        finally:
            for query in batch:
                if not query.future.done():
                    query.future.set_exception(failure)

    def _answer_batch(self, batch: Sequence[WaitingQuery]) -> None:
        try:
            patches, cls = self._encoder.encode([query.image for query in batch])
            tokens = Tokens(patches, cls, grid=self._encoder.grid)
        except Exception:
            if len(batch) == 1:
                raise
            for query in batch:  # one photo must not spoil the answers of others
                with self._settled([query]):
                    self._answer_batch([query])
            return
        current = self._current()
        groups: dict[QueryOptions, list[int]] = {}
        for row, query in enumerate(batch):
            if query.options is None:
                query.future.set_result(tokens.select([row]))
            elif query.camera is not None:  # now, in the order they came: each is adapted by those before it
                with self._settled([query]):
                    self._answer_camera(query, query.camera, query.options, tokens.select([row]))
            else:
                groups.setdefault(_group(query.options), []).append(row)
        for kind, rows in groups.items():
            group = [batch[row] for row in rows]
            with self._settled(group):
                self._answer_group(current, tokens.select(rows), group, kind)

    def _answer_camera(self, query: WaitingQuery, camera: CameraKey, options: QueryOptions, tokens: Tokens) -> None:
        if self._cameras is None:
            raise refuse_cameras()
        answer = self._cameras.answer(camera, tokens, options)
        self._metrics.camera_photos.labels(self.name).inc()
        self._settle(query, answer)

    def _answer_group(
        self, current: PlaceMap, tokens: Tokens, group: Sequence[WaitingQuery], options: QueryOptions
    ) -> None:
        """Answer queries that differ in k only: the best k are the first k of the best of any larger k."""
        counts = [query.options.k for query in group if query.options is not None]
        answers = self.recent.answer(current, tokens, replace(options, k=max(counts)))
        for query, k, answer in zip(group, counts, answers, strict=True):
            self._settle(query, replace(answer, hits=answer.hits[:k]))

    def _settle(self, query: WaitingQuery, answer: Answer) -> None:
        query.future.set_result(replace(answer, seconds=time.perf_counter() - query.since))
        self._confirm(answer)


def _group(options: QueryOptions) -> QueryOptions:
    """Return the options that queries share if they can be answered together: k and what is withheld may differ."""
    return replace(options, k=1, min_confidence=0.0, sure=False)


def _make_failure() -> Refused:
    return refuse_busy("the service failed on this query, its log has the details; send it again")


def refuse_cameras() -> Refused:
    """Refuse a camera if the service remembers none."""
    return Refused(409, "this service remembers no cameras; start it with --cameras N, or query without a camera")
