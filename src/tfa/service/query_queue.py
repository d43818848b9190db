"""Micro-batches: queries that come within a few milliseconds are encoded and scored together."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from PIL import Image

from tfa.base.tokens import Tokens
from tfa.encoders import Encoder
from tfa.maps.query import AskableMap
from tfa.maps.records import Hit
from tfa.maps.verification import Question
from tfa.service.metrics import Metrics
from tfa.service.problems import busy
from tfa.service.settings import ServiceSettings


@dataclass
class Asked:
    """A photo that waits: for hits, or without a question for its tokens."""

    image: Image.Image
    question: Question | None
    future: Future[Any] = field(default_factory=Future)


class Batcher:
    """A thread that answers the queries of one map. `current` gives the map as it is when a batch begins."""

    def __init__(
        self,
        name: str,
        current: Callable[[], AskableMap],
        encoder: Encoder,
        settings: ServiceSettings,
        metrics: Metrics,
    ) -> None:
        self.name, self._current, self._encoder = name, current, encoder
        self._settings, self._metrics = settings, metrics
        self._waiting: queue.Queue[Asked | None] = queue.Queue(settings.max_waiting)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"tfa-queries-{name}", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Queries that wait."""
        return self._waiting.qsize()

    def hits(self, image: Image.Image, question: Question) -> Future[list[Hit]]:
        return self._submit(Asked(image, question))

    def tokens(self, image: Image.Image) -> Future[Tokens]:
        return self._submit(Asked(image, None))

    def _submit(self, asked: Asked) -> Future[Any]:
        if self._closed:
            raise busy("the service is stopping; ask again when it is back")
        try:
            self._waiting.put_nowait(asked)
        except queue.Full:
            raise busy(f"{self._settings.max_waiting} queries wait already; ask again in a moment") from None
        return asked.future

    def close(self) -> None:
        """Answer what waits, then stop."""
        self._closed = True
        self._waiting.put(None)
        self._thread.join()

    # --- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            batch, last = self._collect()
            batch = [asked for asked in batch if asked.future.set_running_or_notify_cancel()]
            if batch:
                self._metrics.count("tfa_batches_total", map=self.name)
                self._metrics.count("tfa_batch_photos_total", len(batch), map=self.name)
                self._answer(batch)
            if last:
                return

    def _collect(self) -> tuple[list[Asked], bool]:
        """The next batch: the first query, and what comes until the wait is over or the batch is full."""
        first = self._waiting.get()
        if first is None:
            return [], True
        batch, deadline = [first], time.monotonic() + self._settings.batch_wait
        while len(batch) < self._settings.batch_size:
            try:
                left = deadline - time.monotonic()
                asked = self._waiting.get(timeout=left) if left > 0 else self._waiting.get_nowait()
            except queue.Empty:
                break
            if asked is None:
                return batch, True
            batch.append(asked)
        return batch, False

    def _answer(self, batch: Sequence[Asked]) -> None:
        try:
            patches, cls = self._encoder.encode([asked.image for asked in batch])
            tokens = Tokens(patches, cls, grid=self._encoder.grid)
        except Exception as error:
            if len(batch) == 1:
                batch[0].future.set_exception(error)
            else:  # one photo must not spoil the answers of others
                for asked in batch:
                    self._answer([asked])
            return
        current = self._current()
        groups: dict[tuple[Any, ...], list[int]] = {}
        for row, asked in enumerate(batch):
            if asked.question is None:
                asked.future.set_result(tokens.select([row]))
            else:
                kind = (asked.question.calibration, asked.question.verify, asked.question.candidates)
                groups.setdefault(kind, []).append(row)
        for rows in groups.values():
            self._ask(current, tokens.select(rows), [batch[row] for row in rows])

    def _ask(self, current: AskableMap, tokens: Tokens, group: Sequence[Asked]) -> None:
        """Queries of one kind, which differ in k alone: the best k are the first k of the best of any larger k."""
        questions = [asked.question for asked in group if asked.question is not None]
        widest = replace(questions[0], k=max(question.k for question in questions))
        try:
            found = current.query_tokens(
                tokens,
                k=widest.k,
                calibration=widest.calibration,
                verify=widest.verify,
                candidates=widest.candidates,
            )
        except Exception as error:
            for asked in group:
                asked.future.set_exception(error)
            return
        for asked, question, hits in zip(group, questions, found, strict=True):
            asked.future.set_result(hits[: question.k])
