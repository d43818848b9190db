"""The last queries of a map: how many photos like them are recognised, and whether they are unlike its own."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tfa.base.tokens import Tokens
from tfa.maps.asking import answer_of
from tfa.maps.expected_recall import in_words, recall_of_answers
from tfa.maps.likeness import KEPT, Likeness
from tfa.maps.query import Asking
from tfa.maps.records import Answer, Hits
from tfa.maps.state import MapState
from tfa.maps.verification import Question

_HEADS = 8  # whose queries are kept: those that were queried last


@dataclass
class _Recent:
    likeness: Likeness
    answers: deque[Answer] = field(default_factory=lambda: deque(maxlen=KEPT))


class RecentQueries:
    """Of each head of a map. Neither photos nor scores are kept, and nothing outlives the service."""

    def __init__(self, name: str) -> None:
        self._name = name  # of the map, for advice
        self._heads: dict[str, _Recent] = {}  # by what a head is known by; the one queried last is the last
        self._lock = threading.Lock()

    def hits(self, current: Asking, tokens: Tokens, question: Question) -> list[Hits]:
        """The hits of some photos, which are looked at."""
        head = current.state.chosen(question.calibration)
        key = current.state.head_digest(head.name)
        with self._lock:
            recent = self._heads.pop(key, None) or _Recent(Likeness.of(head))
            self._heads[key] = recent
            while len(self._heads) > _HEADS:
                del self._heads[next(iter(self._heads))]
            answers = current.hits(tokens, question, recent.likeness)
            recent.answers.extend(answer_of("", Hits(hits[:1])) for hits in answers if hits)
        return answers

    def summary(self, state: MapState) -> dict[str, Any]:
        """What the last queries of the active head say, in JSON."""
        with self._lock:
            recent = self._heads.get(state.head_digest(state.active))
            expected = None if recent is None else recall_of_answers(recent.answers)
            notice = None if recent is None else recent.likeness.notice(self._name)
        return {
            "photos": 0 if expected is None else expected.photos,
            "expected_recall": None if expected is None else expected.to_dict(),
            "in_words": None if expected is None else in_words(expected),
            "notice": notice,
        }
