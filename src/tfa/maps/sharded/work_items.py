"""What is computed at a time, a shard or a group of shards, and what the driver hears of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfa.maps.sharded.encoding import Skipped

GROUPS = 16  # sums that are kept at most: those of descriptors are as large as 270 MB each


@dataclass(frozen=True)
class Done:
    """What the driver hears of a shard or a group."""

    number: int
    images: int
    before: bool = False  # was the result there already?
    skipped: Skipped = field(default_factory=list)


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
