"""Micro-batching: encode and score queries together that arrive within a few milliseconds."""

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
from tfa.maps.confidence import WINDOW_PHOTOS, DomainShiftMonitor, blame_flaw, estimate_answer_recall, reject_outside
from tfa.maps.state import MapState
from tfa.photos.images import NOTHING_SHOWN, find_flaw
from tfa.service.cameras import CameraKey, MapCameras
from tfa.service.middleware import Metrics
from tfa.service.problems import Refused, refuse_busy
from tfa.service.settings import ServiceSettings
from tfa.types import Answer, QueryOptions

_HEADS = 8  # most recently queried heads to keep statistics of


@dataclass
class _Recent:
    shift_monitor: DomainShiftMonitor
    answers: deque[Answer] = field(default_factory=lambda: deque(maxlen=WINDOW_PHOTOS))


class RecentQueries:
    """Confidences of the last queries of each head; photos and scores are not kept, and nothing is saved."""

    def __init__(self, name: str) -> None:
        self._name = name  # map name, for advice
        self._heads: dict[str, _Recent] = {}  # by head digest, most recently queried last
        self._lock = threading.Lock()

    def answer(self, current: PlaceMap, tokens: Tokens, options: QueryOptions) -> list[Answer]:
        """Answer photos and keep the confidence of each answer."""
        head = current.state.chosen(options.calibration)
        key = current.state.head_digest(head.name)
        with self._lock:
            recent = self._heads.pop(key, None) or _Recent(DomainShiftMonitor.for_head(head))
            self._heads[key] = recent
            while len(self._heads) > _HEADS:
                del self._heads[next(iter(self._heads))]
            answers = current.answer_tokens(tokens, options, recent.shift_monitor)
            recent.answers.extend(replace(answer, hits=[], place=None) for answer in answers if answer)
            return [reject_outside(one) for one in answers] if recent.shift_monitor.is_outside else answers

    def summary(self, state: MapState) -> dict[str, Any]:
        """Summarize the last queries of the active head as JSON."""
        with self._lock:
            recent = self._heads.get(state.head_digest(state.active))
            expected = notice = None
            if recent is not None:
                shift = recent.shift_monitor
                expected = estimate_answer_recall(recent.answers, outside=shift.is_outside)
                notice = shift.warning(self._name)
        return {
            "photos": 0 if expected is None else expected.photos,
            "expected_recall": None if expected is None else expected.to_dict(),
            "text": None if expected is None else str(expected),
            "notice": notice,
        }


# --- queue -----------------------------------------------------------------------------------------------------------

FAILED_SECONDS = 10.0  # time that /readyz reports a failure, unless a batch succeeds
_log = getLogger("tfa.service")


@dataclass
class WaitingQuery:
    """A queued photo."""

    image: Image.Image
    options: QueryOptions | None  # None if only the photo's tokens are needed
    camera: CameraKey | None = None
    future: Future[Any] = field(default_factory=Future)
    since: float = field(default_factory=time.perf_counter)


class QueryQueue:
    """A thread that answers the queries of one map; `current` returns the map at the start of a batch.

    A failed batch fails only its own queries; the thread continues.
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
        self._confirm = confirm  # called with every answer
        self._waiting: queue.SimpleQueue[WaitingQuery | None] = queue.SimpleQueue()
        # Held to enqueue and to close, so that nothing is enqueued after the thread ended.
        self._lock = threading.Lock()
        self._closed = False
        self._since: float | None = None  # start time of the running batch
        self._failed = -FAILED_SECONDS  # time of the last failure, reset by a success
        self._thread = threading.Thread(target=self._run, name=f"tfa-queries-{name}", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Return the number of waiting queries."""
        return self._waiting.qsize()

    @property
    def state(self) -> Literal["ready", "failed", "stalled"]:
        """State of the thread: failed if the last batch failed recently, stalled if a batch takes too long."""
        since, now = self._since, time.monotonic()
        if since is not None and now - since > self._settings.stall_seconds:
            return "stalled"
        return "failed" if now - self._failed < FAILED_SECONDS else "ready"

    def check(self) -> None:
        """Refuse queries that would not be answered."""
        if self._closed:
            raise refuse_busy("the service is stopping; retry the query when it is back")
        if self.state == "stalled":
            limit = f"{self._settings.stall_seconds:g} s"
            raise refuse_busy(f"a query batch of {self.name} has been running for more than {limit}; retry later")

    def submit(
        self, image: Image.Image, options: QueryOptions | None = None, camera: CameraKey | None = None
    ) -> Future[Any]:
        """Queue a photo for its `Answer` or, without options, its `Tokens`; photos of one camera stay in order."""
        query = WaitingQuery(image, options, camera)
        with self._lock:
            self.check()
            self._waiting.put(query)
        return query.future

    def close(self) -> None:
        """Answer all waiting queries, then stop."""
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
            except BaseException:  # unexpected: exceptions of a batch go to its queries
                self._failed = time.monotonic()
                _log.exception("the query thread of %s failed on a batch and continues", self.name)
            finally:
                self._since = None
                for query in batch:
                    if not query.future.done():
                        query.future.set_exception(_make_failure())

    def _collect(self, batch: list[WaitingQuery]) -> bool:
        """Fill the next batch until it is full or the wait is over; return True if it is the last batch."""
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
        """Ensure that every query of the batch has an answer or an error afterwards."""
        failure: Exception = _make_failure()
        try:
            yield
        except Exception as error:
            failure = error
            if not isinstance(error, TfaError):
                _log.exception("batch of %d queries of %s failed", len(batch), self.name)
        # An exception that ends the thread's work passes on: `_run` notes it before it answers.
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
            for query in batch:  # retry one by one: one bad photo must not fail the others
                with self._settled([query]):
                    self._answer_batch([query])
            return
        current, flaws = self._current(), [find_flaw(query.image) for query in batch]
        groups: dict[QueryOptions, list[int]] = {}
        for row, query in enumerate(batch):
            if query.options is None:
                query.future.set_result(tokens.select([row]))
            elif query.camera is not None:  # in order of arrival, since each photo adapts the next ones
                with self._settled([query]):
                    assert self._cameras is not None, "a query without cameras is refused before"
                    answer = self._cameras.answer(query.camera, tokens.select([row]), query.options, flaws[row])
                    self._metrics.camera_photos.labels(self.name).inc()
                    self._settle(query, answer)
            elif flaws[row] in NOTHING_SHOWN:
                self._settle(query, Answer(reason=str(flaws[row]), place_missing=flaws[row]))
            else:
                # Queries of one group may differ in k, of which the largest is used, and the confidence limits.
                kind = replace(query.options, k=1, min_confidence=0.0, sure=False)
                groups.setdefault(kind, []).append(row)
        for kind, rows in groups.items():
            group = [batch[row] for row in rows]
            with self._settled(group):
                counts = [query.options.k for query in group if query.options is not None]
                answers = self.recent.answer(current, tokens.select(rows), replace(kind, k=max(counts)))
                for row, query, k, answer in zip(rows, group, counts, answers, strict=True):
                    self._settle(query, blame_flaw(replace(answer, hits=answer.hits[:k]), flaws[row]))

    def _settle(self, query: WaitingQuery, answer: Answer) -> None:
        query.future.set_result(replace(answer, seconds=time.perf_counter() - query.since))
        self._confirm(answer)


def _make_failure() -> Refused:
    return refuse_busy("the service failed on this query; retry, and see the service log for details")
