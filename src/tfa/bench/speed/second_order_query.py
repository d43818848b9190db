"""One query of a judged map beside one of a map of the paper's head, in turn (ours, beyond the paper)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.bench.speed.measure import measure_in_turn
from tfa.bench.speed.result_line import Bar, Line, compared
from tfa.bench.speed.synthetic_maps import second_order_head, synthetic_head, synthetic_spaces
from tfa.core.tokens import Tokens
from tfa.method.carriers import PAPER_CARRIERS
from tfa.method.scorer import Scorer
from tfa.search.gallery import top_k

K = 10
CACHES = 96 << 20  # bytes read before each call: between two photos the encoder reads as much, and no cache keeps a map
BAR = Bar(0.6)
SECOND, DESCRIBED = "second-order", "described"
BESIDE = "adaptive"  # the carrier of the paper's head that the bar is for


@dataclass(frozen=True)
class JudgedQuery:
    """Seconds of one query of a map, by what answers it; every map is kept in integers."""

    images: int
    carrier: str  # of the second-order head
    seconds: float
    describe_seconds: float  # of which: descriptor and coordinates
    paper_seconds: dict[str, float]  # by carrier of the paper's head

    def lines(self) -> list[Line]:
        what = f"second-order, {self.carrier}, {self.images:,} images, one query"
        lines = []
        for carrier, seconds in self.paper_seconds.items():
            note = f"the floor is the paper's head, {carrier}"
            if carrier == BESIDE:
                note += f"; describing {1000 * self.describe_seconds:.2f} ms"
            lines.append(compared(what, self.seconds, seconds, BAR if carrier == BESIDE else None, note=note))
        return lines


def timed_beside_paper(images: int, tokens: Tokens, words: int, repeats: int, carrier: str = "tempered") -> JudgedQuery:
    """From the tokens of one photo to its ten best, caches emptied before every call."""
    one, channels = tokens.select([0]), tokens.channels
    scorers = {SECOND: second_order_head(synthetic_spaces(images, channels), carrier).scorer}
    scorers |= {name: synthetic_head(images, name, words=words, channels=channels).scorer for name in PAPER_CARRIERS}
    calls: dict[str, Callable[[], Any]] = {name: _question(scorer, one) for name, scorer in scorers.items()}
    calls[DESCRIBED] = lambda: scorers[SECOND].describe(one)
    measure_in_turn(calls)  # thread pools and page tables warm up
    measured = measure_in_turn(calls, repeats, before_each=np.ones(CACHES, np.uint8).sum)
    paper = {name: measured[name].seconds for name in PAPER_CARRIERS}
    return JudgedQuery(images, carrier, measured[SECOND].seconds, measured[DESCRIBED].seconds, paper)


def _question(scorer: Scorer, one: Tokens) -> Callable[[], Any]:
    scorer.prepare()
    return lambda: top_k(scorer.scores(one), K)
