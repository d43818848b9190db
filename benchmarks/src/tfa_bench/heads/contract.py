"""Interface of benchmark heads: fit on a database, score queries, state the data used.

A head is fitted only on `Photos` of the database. A head that calibrates gets unlabeled target photos afterwards, drawn
by its protocol; no argument can pass positives. Most heads use the tokens of the run's encoder; a trained system has
its own encoder, image → one vector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from tfa.core.progress import Progress, SilentProgress
from tfa.core.tokens import Tokens
from tfa.encoders import Encoder
from tfa.encoders.released_words import load_vocabulary
from tfa.errors import BadSpec
from tfa.types import EncoderOptions, HeadSpec
from tfa_bench.protocols import NO_CALIBRATION, Plan
from tfa_bench.provenance import METHOD

PEER_STAGES = ("kmeans", "residuals", "peers")  # stages of heads of other papers
ONLY = "only"  # replica name of a head without a seed
T = TypeVar("T")


@dataclass(frozen=True)
class Photos:
    """Input of a head: tokens, and the files if it segments them."""

    tokens: Tokens
    paths: tuple[Path, ...] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def select(self, indices: Any) -> Photos:
        chosen = np.arange(len(self))[indices]
        paths = None if self.paths is None else tuple(self.paths[i] for i in chosen)
        return Photos(self.tokens.select(chosen), paths)


class Fitted(Protocol):
    """A fitted head, with `decisions` and `calibrate` if it decides or calibrates something."""

    @property
    def replicas(self) -> tuple[str, ...]:
        """Names of replicas; reported recall is the mean over them."""
        ...

    @property
    def data_used(self) -> str:
        """ "nothing" | "database" | "target" | "labels" (used to train a system elsewhere)."""
        ...

    def scores(self, queries: Photos, replica: str) -> np.ndarray:
        """Return scores `(q, m)`: larger is more similar; rows are independent."""
        ...


@runtime_checkable
class Calibratable(Protocol):
    def calibrate(self, target: Photos) -> Fitted:
        """Return a new fitted head; the old one is unchanged."""
        ...


@runtime_checkable
class Confident(Protocol):
    """A head with its own confidence, the probability that its best answer is right.

    The confidence of other heads is the z-score of the best answer in its row. Records name the kind.
    """

    def scores_and_confidence(self, queries: Photos, replica: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Return scores `(q, m)` and confidences `(q,)`, or None if it has none after all."""
        ...


@runtime_checkable
class InOrder(Protocol):
    """A head that learns from queries it has answered: answers depend on earlier queries."""

    def in_order(self, queries: Photos, replica: str) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Yield `scores_and_confidence` of all queries in batches. Every call starts without adaptation."""
        ...


@runtime_checkable
class TwoSided(Protocol):
    """A head with a decision that may rest on less than one photo."""

    def other_side(self) -> tuple[dict[str, Any], Fitted] | None:
        """Return the flip of the closest decision and the head after it; None if no decision is that close."""
        ...


class Shared:
    """Work shared by several heads on one database, done once: a fitted TFA head, a vocabulary."""

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
    sees: str  # most data its fitted form used: nothing < database < target < labels
    fit: Fit
    plan: Plan = NO_CALIBRATION  # which queries calibrate and which are evaluated
    settings: Mapping[str, Any] = field(default_factory=dict)  # for the record: everything that affects the scores
    stages: tuple[str, ...] = METHOD  # keys of provenance.ALGORITHM whose revisions its records store
    note: str = ""  # "reconstruction", "ours, beyond the paper", …
    needs_files: bool = False  # it reads the photos themselves
    # replaces the run's encoder; opened when the head runs
    encoder_opener: Callable[[EncoderOptions], Encoder] | None = None
    needs_order: bool = False  # database and queries must be in driving order
    needs_depths: bool = False  # the encoder must read two blocks
    budget_per_condition: bool = False  # if the dataset says so, each condition calibrates its own head


@dataclass(frozen=True)
class Supplied:
    """Files that some heads need: a released vocabulary, a segmenter's weights, checkpoints by head."""

    vocabulary: Path | None = None
    sam: Path | None = None
    sam_model: str = "vit-h"
    sam_points: int = 32  # points per side, as published
    checkpoints: Mapping[str, Path] = field(default_factory=dict)
    antialias: bool = False  # for trained systems whose published resizing is unknown


def read_vocabulary(path: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """Read released words `(k, d)`, and describe the file for the record."""
    words = load_vocabulary(path)
    digest = hashlib.blake2b(words.tobytes(), digest_size=16).hexdigest()
    return words, {"vocabulary": path.name, "vocabulary_blake2b": digest}


@dataclass(frozen=True)
class NeedsFile:
    """A head whose card needs a file of the user."""

    title: str
    sees: str
    option: str  # option of tfa bench run, with its value
    why: str
    instead: str  # alternative without the file
    make: Callable[[Supplied], HeadCard | None]  # None without the file

    def card(self, name: str, supplied: Supplied) -> HeadCard:
        card = self.make(supplied)
        if card is None:
            raise BadSpec(f"{name} {self.why}; pass {self.option}{self.instead}")
        return card
