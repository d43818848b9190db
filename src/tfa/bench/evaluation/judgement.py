"""A judgement: queries, what one or several heads answered to each, and which answers are right.

Every answer carries its own verdict, so that judgements of two maps can stand side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from tfa.errors import TfaError
from tfa.types import Position


class BadEvaluation(TfaError):
    """Truth, queries or a saved evaluation cannot be used, or do not fit each other."""


@dataclass(frozen=True)
class JudgedHit:
    """An image that a head gave, and whether it shows the place of the query."""

    image: str
    right: bool
    confidence: float | None = None  # None where only that of the best is recorded
    inliers: int | None = None  # patches that match in one arrangement; None if it was not verified
    distance: float | None = None  # metres from the query; None where positions are not known
    lines: tuple[int, ...] = field(default=(), repr=False)  # patches of query and image in turn, to draw; not saved


@dataclass(frozen=True)
class JudgedPlace:
    """The position that all verified images together gave, and how far it is from the truth, in metres."""

    position: Position
    radius: float
    distance: float
    share: float  # of the answers' shares that lie there


@dataclass(frozen=True)
class JudgedAnswer:
    """What one head gave for one query, best first."""

    hits: tuple[JudgedHit, ...]
    confidence: float | None  # of the best; None where there is none
    sure: bool = False
    reranked: bool = False
    place: JudgedPlace | None = None  # None where there is none, or no distance can be told

    @property
    def right(self) -> bool:
        return bool(self.hits) and self.hits[0].right

    @property
    def first_right(self) -> int | None:
        """Rank of the first right image, from 1; None if none was given."""
        return next((rank for rank, hit in enumerate(self.hits, 1) if hit.right), None)


@dataclass(frozen=True)
class JudgedQuery:
    """A photo whose place is known."""

    number: int  # among all photos that were given
    query: str
    in_map: bool  # does any image of the map show its place?
    position: Position | None = None
    true_image: str | None = None  # an image of its place: the nearest, or the middle one of those listed
    condition: str = ""


@dataclass(frozen=True)
class Run:
    """One head: its answers in the order of the queries, None where a query was not evaluated."""

    name: str
    title: str
    kind: str  # of its confidences: PROBABILITY or Z_SCORE of `tfa.bench.records`
    depth: int
    answers: tuple[JudgedAnswer | None, ...]
    grid: tuple[int, int] | None = None  # of the patches that lines join

    @cached_property
    def evaluated(self) -> np.ndarray:
        """Queries that have an answer, by their place in the list."""
        return np.array([at for at, answer in enumerate(self.answers) if answer is not None], np.int64)

    @property
    def given(self) -> list[JudgedAnswer]:
        """The answers of evaluated queries."""
        return [answer for answer in self.answers if answer is not None]


@dataclass(frozen=True)
class Judgement:
    """All that is known of an evaluation."""

    title: str
    rule: str  # what makes an answer right, in words
    images: Mapping[str, Position | None]  # every image that may answer, by name, in the order of the map
    queries: tuple[JudgedQuery, ...]
    runs: tuple[Run, ...]
    files: Mapping[str, Path] = field(default_factory=dict)  # name of a query or an image → its photo

    @property
    def not_in_map(self) -> int:
        return sum(not query.in_map for query in self.queries)
