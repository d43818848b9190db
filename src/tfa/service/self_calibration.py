"""Self-calibration of a served map, where it was asked for: each head learns from the scores of its own queries."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
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
from tfa.search.engine import QueryVectors
from tfa.search.exact import WeightedGalleries

SIZE = 512  # queries kept of each head
LEARNT_EVERY = 16  # queries: sorting the columns of a large map for each query would cost more than its answer
SAVED_EVERY = 64  # queries
FILES = "self-calibration-*.safetensors"
log = getLogger("tfa.service")


@dataclass(frozen=True)
class ListeningScorer(Scorer):
    """A scorer whose scores go through `listen`, which learns from them and corrects them."""

    listen: Callable[[np.ndarray], np.ndarray] | None = None

    @property
    def rows(self) -> WeightedGalleries:
        plain = super().rows
        fields = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
        return CorrectedGalleries(**fields, correct=self.listen)


@dataclass(frozen=True)
class CorrectedGalleries(WeightedGalleries):
    """Rows whose scores go through `correct`."""

    correct: Callable[[np.ndarray], np.ndarray] | None = None

    def scores(self, vectors: QueryVectors) -> np.ndarray:
        raw = super().scores(vectors)
        return raw if self.correct is None else self.correct(raw)


class HeadLearner:
    """What one head has learnt, and the bias it answers with until the next few queries were seen."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.learner = _loaded(path)
        self._bias: np.ndarray | None = None
        self._images: Sequence[ImageRecord] | None = None
        self._ids = np.zeros(0, np.int64)
        self._learnt_at = -1
        self._saved_at = self.learner.seen

    def corrected(self, raw: np.ndarray, images: Sequence[ImageRecord]) -> np.ndarray:
        """Scores with the bias of earlier queries: a photo does not change its own answer."""
        if images is not self._images:  # an edit makes a new list
            self._images, self._learnt_at = images, -1
            self._ids = np.array([record.id for record in images], np.int64)
        if self._learnt_at < 0 or self.learner.seen - self._learnt_at >= LEARNT_EVERY:
            self.learner.set_images(self._ids)
            self._bias, self._learnt_at = self.learner.bias(), self.learner.seen
        self.learner.observe(raw, self._ids)
        if self.learner.seen - self._saved_at >= SAVED_EVERY:
            self.save()
        return raw if self._bias is None else raw + self._bias.astype(raw.dtype)

    def reset(self) -> None:
        self.learner.reset()
        self._bias, self._learnt_at, self._saved_at = None, -1, 0
        self.path.unlink(missing_ok=True)

    def save(self) -> None:
        if self.learner.seen != self._saved_at:
            self.learner.save(self.path)
            self._saved_at = self.learner.seen


def file_name(state: MapState, head: NamedHead) -> str:
    """Of the file a head's learning is kept in. It names the head by its content: another head never reads it."""
    return f"self-calibration-{head.name}-{state.head_digest(head.name)[:16]}.safetensors"


def _loaded(path: Path) -> SelfCalibration:
    try:
        return SelfCalibration.load(path) if path.is_file() else SelfCalibration(SIZE)
    except (TfaError, OSError, ValueError, KeyError) as error:
        log.warning("self-calibration starts anew: %s", error)
        return SelfCalibration(SIZE)


class Learning:
    """The learners of one map, one for each head, saved in the map's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._heads: dict[str, HeadLearner] = {}
        self._listening: tuple[PlaceMap, AskableMap] | None = None

    def listening(self, current: PlaceMap) -> AskableMap:
        """The map with heads that learn; the same as long as the map is."""
        with self._lock:
            if self._listening is None or self._listening[0] is not current:
                self._drop_stale(current.state)
                heads = [self._listener(current.state, head) for head in current.state.heads]
                state = dataclasses.replace(current.state, heads=tuple(heads))
                self._listening = (current, AskableMap(state, current.path))
            return self._listening[1]

    def _listener(self, state: MapState, head: NamedHead) -> NamedHead:
        fields = {field.name: getattr(head.stored.scorer, field.name) for field in dataclasses.fields(Scorer)}
        learner = self._learner(state, head)
        scorer = ListeningScorer(**fields, listen=partial(self._listen, learner, state.images))
        return dataclasses.replace(head, stored=dataclasses.replace(head.stored, scorer=scorer))

    def _listen(self, learner: HeadLearner, images: Sequence[ImageRecord], raw: np.ndarray) -> np.ndarray:
        with self._lock:
            return learner.corrected(raw, images)

    def _learner(self, state: MapState, head: NamedHead) -> HeadLearner:
        name = file_name(state, head)
        if name not in self._heads:
            self._heads[name] = HeadLearner(self._folder / name)
        return self._heads[name]

    def _drop_stale(self, state: MapState) -> None:
        """Forget what heads have learnt that the map no longer has: a fitted-again head gives other scores."""
        wanted = {file_name(state, head) for head in state.heads}
        self._heads = {name: learner for name, learner in self._heads.items() if name in wanted}
        for path in self._folder.glob(FILES):
            if path.name not in wanted:
                log.warning(
                    "%s was learnt of a head that %s no longer has; it is removed", path.name, self._folder.name
                )
                path.unlink(missing_ok=True)

    def told(self, current: PlaceMap) -> dict[str, Any]:
        """What the head that answers has learnt."""
        with self._lock:
            return self._learner(current.state, current.state.chosen()).learner.to_dict()

    def reset(self) -> None:
        """Forget what every head has learnt."""
        with self._lock:
            for learner in self._heads.values():
                learner.reset()
            for path in self._folder.glob(FILES):
                path.unlink(missing_ok=True)

    def save(self) -> None:
        with self._lock:
            for learner in self._heads.values():
                learner.save()
