"""The last queries of a map: how many photos like them are recognised, and whether they are unlike its own."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from tfa.core.tokens import Tokens
from tfa.maps import PlaceMap
from tfa.maps.expected_recall import estimate_answer_recall
from tfa.maps.shift import WINDOW_PHOTOS, DomainShiftMonitor
from tfa.maps.state import MapState
from tfa.types import Answer, QueryOptions

_HEADS = 8  # whose queries are kept: those that were queried last


@dataclass
class _Recent:
    shift_monitor: DomainShiftMonitor
    answers: deque[Answer] = field(default_factory=lambda: deque(maxlen=WINDOW_PHOTOS))


class RecentQueries:
    """Of each head of a map. Neither photos nor scores are kept, and nothing outlives the service."""

    def __init__(self, name: str) -> None:
        self._name = name  # of the map, for advice
        self._heads: dict[str, _Recent] = {}  # by what a head is known by; the one queried last is the last
        self._lock = threading.Lock()

    def answer(self, current: PlaceMap, tokens: Tokens, question: QueryOptions) -> list[Answer]:
        """Answer some photos, which are looked at."""
        head = current.state.chosen(question.calibration)
        key = current.state.head_digest(head.name)
        with self._lock:
            recent = self._heads.pop(key, None) or _Recent(DomainShiftMonitor.for_head(head))
            self._heads[key] = recent
            while len(self._heads) > _HEADS:
                del self._heads[next(iter(self._heads))]
            answers = current.answer_tokens(tokens, question, recent.shift_monitor)
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
            "in_words": None if expected is None else str(expected),
            "notice": notice,
        }
