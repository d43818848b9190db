"""The last queries of a map: how many photos like them are recognised, and whether they are unlike its own."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tfa.core.tokens import Tokens
from tfa.maps.base_map import build_answer
from tfa.maps.expected_recall import estimate_answer_recall, format_expected_recall
from tfa.maps.query import BaseMap
from tfa.maps.records import Answer, Hits
from tfa.maps.shift import WINDOW_PHOTOS, DomainShiftMonitor
from tfa.maps.state import MapState
from tfa.maps.verification import QueryParams

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

    def hits(self, current: BaseMap, tokens: Tokens, question: QueryParams) -> list[Hits]:
        """The hits of some photos, which are looked at."""
        head = current.state.chosen(question.calibration)
        key = current.state.head_digest(head.name)
        with self._lock:
            recent = self._heads.pop(key, None) or _Recent(DomainShiftMonitor.for_head(head))
            self._heads[key] = recent
            while len(self._heads) > _HEADS:
                del self._heads[next(iter(self._heads))]
            answers = current.hits(tokens, question, recent.shift_monitor)
            recent.answers.extend(build_answer("", Hits(hits[:1])) for hits in answers if hits)
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
            "in_words": None if expected is None else format_expected_recall(expected),
            "notice": notice,
        }
