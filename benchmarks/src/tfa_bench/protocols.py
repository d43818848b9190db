"""Plans: which queries calibrate a head and which are evaluated. Query counts in, index lists out.

    no calibration   evaluate all queries with the head as fitted
    C-N              calibrate on N queries, evaluate the others; ten splits
    FullQ            calibrate on all queries and evaluate all
    cross-fit        evaluate each half with a head calibrated on the other half
    online           evaluate all queries in file order or shuffled; a head may learn from queries it has answered
                     (ours, beyond the paper)

Conditions (day, night, …) are parts of one query list. A budget is drawn over all conditions for one head, or per
condition with one head each, as the plan says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.errors import BadSpec

SPLITS = 10  # seeds 0 to 9
HALVES = ("even-odd", "contiguous")


@dataclass(frozen=True)
class Fold:
    """A head's calibration queries (in the order drawn) and evaluation queries."""

    calibration: np.ndarray
    evaluated: np.ndarray
    condition: str | None = None  # set if each condition has its own head


@dataclass(frozen=True)
class Split:
    """One draw. A cross-fit has two folds in its only split; most plans have one fold."""

    seed: int | None
    folds: tuple[Fold, ...]

    @property
    def evaluated(self) -> np.ndarray:
        return np.concatenate([fold.evaluated for fold in self.folds])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A protocol. `conditions` in `splits` maps each condition to its queries; {} without conditions."""

    kind: str  # "none" | "budget" | "full" | "cross-fit" | "online"
    n: int = 0  # number of calibration queries of a budget
    count: int = 1  # number of splits
    halves: str = "even-odd"
    specific: bool = False  # one budget per condition instead of one shared by all
    shuffled: bool = False  # online: use the order of seed 0 instead of file order

    @property
    def name(self) -> str:
        own = " for each condition" if self.specific else ""
        return {
            "none": "no calibration",
            "budget": f"C{self.n}{own}",
            "full": f"FullQ{own}",
            "cross-fit": f"cross-fit {self.halves}{own}",
            "online": "online, shuffled" if self.shuffled else "online",
        }[self.kind]

    @property
    def calibrates(self) -> bool:
        """True if a head is calibrated on target photos before it is queried."""
        return self.kind not in ("none", "online")

    @property
    def sees_target(self) -> bool:
        return self.kind != "none"

    def to_dict(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"kind": self.kind, "name": self.name}
        if self.kind == "budget":
            facts |= {"n": self.n, "splits": self.count}
        if self.kind == "cross-fit":
            facts |= {"halves": self.halves}
        return facts | ({"specific": True} if self.specific else {})

    def splits(self, queries: int, conditions: Mapping[str, np.ndarray] | None = None) -> list[Split]:
        if queries < 1:
            raise BadSpec("there are no queries to evaluate")
        everyone = np.arange(queries)
        groups: dict[str | None, np.ndarray] = {None: everyone}
        if self.specific and conditions:
            groups = {name: own for name, own in conditions.items()}  # noqa: C416  # its keys are never None
        seeds = range(self.count) if self.kind == "budget" else [0] if self.shuffled else [None]
        return [
            Split(seed, tuple(fold for name, own in groups.items() for fold in self._folds(own, seed, name)))
            for seed in seeds
        ]

    def _folds(self, queries: np.ndarray, seed: int | None, condition: str | None) -> list[Fold]:
        nobody = queries[:0]
        if self.kind == "none":
            return [Fold(nobody, queries, condition)]
        if self.kind == "online":
            order = np.arange(len(queries)) if seed is None else np.random.default_rng(seed).permutation(len(queries))
            return [Fold(nobody, queries[order], condition)]
        if self.kind == "full":
            return [Fold(queries, queries, condition)]
        if self.kind == "budget":
            check_budget(self.n, len(queries), condition)
            drawn = np.random.default_rng(seed).permutation(len(queries))
            return [Fold(queries[drawn[: self.n]], queries[np.sort(drawn[self.n :])], condition)]
        if len(queries) < 2:
            raise BadSpec(
                f"{len(queries)} queries cannot be split in halves; cross-fitting needs at least 2, better 32"
            )
        if self.halves == "even-odd":
            one, other = queries[0::2], queries[1::2]
        else:
            one, other = np.array_split(queries, 2)
        return [Fold(other, one, condition), Fold(one, other, condition)]


NO_CALIBRATION = Plan(kind="none")
FULL_QUERY = Plan(kind="full")
ONLINE = Plan(kind="online")
ONLINE_SHUFFLED = Plan(kind="online", shuffled=True)


def budget(n: int, *, splits: int = SPLITS, specific: bool = False) -> Plan:
    """C-N: in split `seed`, `default_rng(seed).permutation(queries)[:n]` calibrate and the others are evaluated."""
    if splits < 1:
        raise BadSpec(f"splits={splits} is out of range: must be at least 1")
    return Plan(kind="budget", n=n, count=splits, specific=specific)


def cross_fit(halves: str = "even-odd") -> Plan:
    if halves not in HALVES:
        raise BadSpec(f"halves={halves!r} is unknown; use {' or '.join(map(repr, HALVES))}")
    return Plan(kind="cross-fit", halves=halves)


def check_budget(n: int, available: int, condition: str | None = None) -> None:
    what = "queries" if condition is None else f"queries of {condition!r}"
    if not 1 <= n < available:
        raise BadSpec(
            f"a budget of {n} of {available} {what} is out of range: at least 1 must calibrate and 1 be evaluated"
        )
