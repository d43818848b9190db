"""What the benchmark needs of a head: fit on a database, score queries, say what was seen.

A head is fitted on `Photos` of the database alone. A head that calibrates takes unlabeled target photos
afterwards, drawn by its protocol; there is no argument positives could come in by. There are two kinds: most heads
take the tokens of the run's encoder; a trained system brings an encoder of its own, image → one vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from tfa.core.progress import Progress, SilentProgress
from tfa.core.tokens import Tokens
from tfa.encoders import Encoder
from tfa.errors import BadSpec
from tfa.types import EncoderOptions, HeadSpec
from tfa_bench.protocols import NO_CALIBRATION, Plan
from tfa_bench.provenance import METHOD

PEER_STAGES = ("kmeans", "residuals", "peers")  # of heads of other papers
ONLY = "only"  # the replica of a head that has no seed
T = TypeVar("T")


@dataclass(frozen=True)
class Photos:
    """What a head may look at: tokens always, the files themselves where it segments them."""

    tokens: Tokens
    paths: tuple[Path, ...] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def select(self, indices: Any) -> Photos:
        chosen = np.arange(len(self))[indices]
        paths = None if self.paths is None else tuple(self.paths[i] for i in chosen)
        return Photos(self.tokens.select(chosen), paths)


class Fitted(Protocol):
    """A fitted head. `decisions` and `calibrate` where there is something to decide or to calibrate."""

    @property
    def replicas(self) -> tuple[str, ...]:
        """Reported recall is the mean over them."""
        ...

    @property
    def data_used(self) -> str:
        """ "nothing" | "database" | "target" | "labels", those a system was trained with elsewhere"""
        ...

    def scores(self, queries: Photos, replica: str) -> np.ndarray:
        """`q m`: larger is more similar; rows do not depend on each other."""
        ...


@runtime_checkable
class Calibratable(Protocol):
    def calibrate(self, target: Photos) -> Fitted:
        """A new fitted head; the old one is unchanged."""
        ...


@runtime_checkable
class Confident(Protocol):
    """A head with a confidence of its own, the probability that its best answer is right.

    Of other heads the confidence is the z-score of the best answer in its row. Records name which it is.
    """

    def scores_and_confidence(self, queries: Photos, replica: str) -> tuple[np.ndarray, np.ndarray | None]:
        """`q m` scores and `q`; None if it has none of its own after all."""
        ...


@runtime_checkable
class InOrder(Protocol):
    """A head that learns from queries it has answered: what it answers depends on those before."""

    def in_order(self, queries: Photos, replica: str) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """`scores_and_confidence` of all queries, some at a time. Every call begins with nothing learnt."""
        ...


class Shared:
    """Work that several heads share on one database, done once: a fitted TFA head, a vocabulary."""

    def __init__(self, *, spec: HeadSpec | None = None, device: str = "cpu", progress: Progress | None = None) -> None:
        self.spec, self.device, self.progress = spec or HeadSpec(), device, progress or SilentProgress()
        self._made: dict[str, Any] = {}

    def once(self, name: str, make: Callable[[], T]) -> T:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]


Fit = Callable[[Photos, Shared], Fitted]


@dataclass(frozen=True, kw_only=True)
class HeadCard:
    """A head of the benchmark: its name on the command line, in file names and in tables."""

    name: str
    title: str
    sees: str  # the most its fitted form has seen: nothing < database < target < labels
    fit: Fit
    plan: Plan = NO_CALIBRATION  # which queries calibrate and which are evaluated
    settings: Mapping[str, Any] = field(default_factory=dict)  # for the record: all that shapes the scores
    stages: tuple[str, ...] = METHOD  # keys of provenance.ALGORITHM: whose revisions its records carry
    note: str = ""  # "reconstruction", "ours, beyond the paper", …
    needs_files: bool = False  # it reads the photos themselves
    # in place of the run's; opened when it is its turn
    encoder_opener: Callable[[EncoderOptions], Encoder] | None = None
    needs_order: bool = False  # database and queries must be in driving order
    budget_per_condition: bool = False  # where a dataset says so, each condition calibrates a head of its own


@dataclass(frozen=True)
class Supplied:
    """Files that some heads need: a released vocabulary, a segmenter's weights, checkpoints by head."""

    vocabulary: Path | None = None
    sam: Path | None = None
    sam_model: str = "vit-h"
    sam_points: int = 32  # a side, as published
    checkpoints: Mapping[str, Path] = field(default_factory=dict)
    antialias: bool = False  # for trained systems of which that is not on record


@dataclass(frozen=True)
class NeedsFile:
    """A head whose card can be made only from a file of the user's."""

    title: str
    sees: str
    option: str  # of tfa bench run, with its value
    why: str
    instead: str  # what does without
    make: Callable[[Supplied], HeadCard | None]  # None where the file was not given

    def card(self, name: str, supplied: Supplied) -> HeadCard:
        card = self.make(supplied)
        if card is None:
            raise BadSpec(f"{name} {self.why}; give {self.option}{self.instead}")
        return card
