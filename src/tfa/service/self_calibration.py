"""Self-calibration of a live map, where it was switched on: each head learns from the scores of its own queries.

Files are read and written outside of queries: a disk that is full or read-only costs the log a line, no query.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np

from tfa.errors import TfaError
from tfa.maps import PlaceMap
from tfa.maps.query import AskableMap
from tfa.maps.records import ImageRecord
from tfa.maps.state import MapState, NamedHead
from tfa.method.scorer import Scorer
from tfa.online.self_calibration import SelfCalibration
from tfa.search.engine import ImageVectors, QueryVectors
from tfa.search.exact import WeightedGalleries

SIZE = 512  # queries kept of each head
LEARNT_EVERY = 16  # queries: sorting the columns of a large map for each query would cost more than its answer
SAVED_EVERY = 64  # queries
FILES = "self-calibration-*.safetensors"
log = getLogger("tfa.service")


@dataclass(frozen=True)
class SelfCalibratingScorer(Scorer):
    """A scorer whose scores go through `correct`, which learns from them and corrects them."""

    correct: Callable[[np.ndarray], np.ndarray] | None = None

    @property
    def rows(self) -> WeightedGalleries:
        return CorrectedGalleries(**vars(super().rows), correct=self.correct)


@dataclass(frozen=True)
class CorrectedGalleries(WeightedGalleries):
    """Rows whose scores go through `correct`."""

    correct: Callable[[np.ndarray], np.ndarray] | None = None

    def scores(self, vectors: QueryVectors) -> np.ndarray:
        raw = super().scores(vectors)
        return raw if self.correct is None or isinstance(vectors, ImageVectors) else self.correct(raw)


class HeadSelfCalibration:
    """What one head has learnt, and the bias it answers with until the next few queries were seen."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sample = _loaded(path)
        self._bias: np.ndarray | None = None
        self._images: Sequence[ImageRecord] | None = None
        self._ids = np.zeros(0, np.int64)
        self._learnt_at = -1
        self.saved_at = self._tried_at = self.sample.seen

    def corrected(self, raw: np.ndarray, images: Sequence[ImageRecord]) -> np.ndarray:
        """Scores with the bias of earlier queries: a photo does not change its own answer."""
        if images is not self._images:  # an edit makes a new list
            self._images, self._learnt_at = images, -1
            self._ids = np.array([record.id for record in images], np.int64)
        if self._learnt_at < 0 or self.sample.seen - self._learnt_at >= LEARNT_EVERY:
            self.sample.set_images(self._ids)
            self._bias, self._learnt_at = self.sample.bias(), self.sample.seen
        self.sample.observe(raw, self._ids)
        return raw if self._bias is None else raw + self._bias.astype(raw.dtype)

    def due(self) -> bool:
        """Is it time to save? True once for so many queries, also where the last attempt failed."""
        if self.sample.seen - self._tried_at < SAVED_EVERY:
            return False
        self._tried_at = self.sample.seen
        return True

    def reset(self) -> None:
        self.sample.reset()
        self._bias, self._learnt_at, self.saved_at, self._tried_at = None, -1, 0, 0


def file_name(state: MapState, head: NamedHead) -> str:
    """Of the file a head's self-calibration is kept in. It names the head by its content: no other head reads it."""
    return f"self-calibration-{head.name}-{state.head_digest(head.name)[:16]}.safetensors"


def _loaded(path: Path) -> SelfCalibration:
    try:
        return SelfCalibration.load(path) if path.is_file() else SelfCalibration(SIZE)
    except (TfaError, OSError, ValueError, KeyError) as error:
        log.warning("self-calibration starts anew: %s", error)
        return SelfCalibration(SIZE)


class MapSelfCalibration:
    """The self-calibrations of one map, one for each head, saved in the map's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()  # held within queries: no file is touched under it
        self._files = threading.Lock()  # held to read and write files, never within a query
        self._heads: dict[str, HeadSelfCalibration] = {}
        self._saver = ThreadPoolExecutor(1, thread_name_prefix="tfa-self-calibration")

    def calibrating(self, current: PlaceMap) -> AskableMap:
        """The map with heads that learn. Reads and removes files: to be called where the map changes."""
        state = current.state
        with self._files:
            wanted = {file_name(state, head): head for head in state.heads}
            fresh = {name: HeadSelfCalibration(self._folder / name) for name in wanted if name not in self._heads}
            with self._lock:
                self._heads = {name: self._heads.get(name) or fresh[name] for name in wanted}
            self._remove_files(except_for=set(wanted))
        heads = [self._calibrating_head(self._heads[name], head, state) for name, head in wanted.items()]
        return AskableMap(dataclasses.replace(state, heads=tuple(heads)), current.path)

    def _calibrating_head(self, learner: HeadSelfCalibration, head: NamedHead, state: MapState) -> NamedHead:
        correct = partial(self._correct, learner, state.images)
        scorer = SelfCalibratingScorer(**vars(head.stored.scorer), correct=correct)
        return head.with_scorer(scorer)

    def _correct(self, learner: HeadSelfCalibration, images: Sequence[ImageRecord], raw: np.ndarray) -> np.ndarray:
        with self._lock:
            scores, due = learner.corrected(raw, images), learner.due()
        if due:
            self._saver.submit(self.save)
        return scores

    def _remove_files(self, *, except_for: set[str]) -> None:
        """Forget what heads have learnt that the map no longer has: a fitted-again head gives other scores."""
        try:
            for path in self._folder.glob(FILES):
                if path.name not in except_for:
                    map_name = self._folder.name
                    log.warning("%s was learnt by a head that %s no longer has; it is removed", path.name, map_name)
                    path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("old self-calibrations of %s cannot be removed: %s", self._folder.name, error)

    def summary(self, current: PlaceMap) -> dict[str, Any]:
        """What the head that answers has learnt."""
        name = file_name(current.state, current.state.chosen())
        with self._lock:
            return (self._heads[name].sample if name in self._heads else SelfCalibration(SIZE)).to_dict()

    def reset(self) -> None:
        """Forget what every head has learnt."""
        with self._files:
            with self._lock:
                for learner in self._heads.values():
                    learner.reset()
            for path in self._folder.glob(FILES):
                path.unlink(missing_ok=True)

    def save(self) -> None:
        """Write what is new. What cannot be written is logged and tried again after some queries, and at the end."""
        with self._files:
            for learner in self._heads.values():
                with self._lock:
                    if learner.sample.seen == learner.saved_at:
                        continue
                    snapshot = learner.sample.snapshot()  # queries go on while it is written
                try:
                    snapshot.save(learner.path)
                except OSError as error:
                    log.warning("%s cannot be saved, which is tried again later: %s", learner.path.name, error)
                else:
                    learner.saved_at = snapshot.seen

    def close(self) -> None:
        """Save what was learnt, once queries have ended."""
        self._saver.shutdown(wait=True)
        self.save()
