"""What is computed at a time, a shard or a group of shards, and what the driver hears of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfa.maps.sharded.encoding import Skipped

GROUPS = 16  # sums that are kept at most: those of descriptors are as large as 270 MB each


@dataclass(frozen=True)
class Done:
    """What the driver hears of a shard or a group."""

    number: int
    images: int
    before: bool = False  # was the result there already?
    skipped: Skipped = field(default_factory=list)
    placed: int = 0  # images with a position

    @classmethod
    def of(cls, number: int, facts: Mapping[str, Any], *, before: bool) -> Done:
        """Of photos that were encoded."""
        placed = sum(one["position"] is not None for one in facts["payload"])
        skipped = [(uri, reason) for uri, reason in facts["skipped"]]
        return cls(number, len(facts["payload"]), before, skipped, placed)


@dataclass(frozen=True)
class Group:
    """A fixed run of shards: sums are over groups, in their order, whoever computes them."""

    number: int
    shards: tuple[int, ...]

    @classmethod
    def all_of(cls, shards: int) -> list[Group]:
        size = -(-shards // GROUPS)
        starts = range(0, shards, size)
        return [cls(n, tuple(range(start, min(start + size, shards)))) for n, start in enumerate(starts)]


def named(kind: str, number: int) -> str:
    return f"{kind}-{number:06d}"
