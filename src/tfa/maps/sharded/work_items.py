"""What is computed at a time, a shard or a group of shards, and what the driver hears of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from tfa.maps.sharded.encoding import Skipped
from tfa.maps.sharded.photo_list import Shard
from tfa.maps.sharded.work_folder import WorkFolder

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
        """By what was kept: `payload` of images and photos `skipped`, or the `count` of a sum."""
        payload = facts.get("payload", ())
        placed = sum(one["position"] is not None for one in payload)
        skipped = [(uri, reason) for uri, reason in facts.get("skipped", ())]
        return cls(number, facts.get("count", len(payload)), before, skipped, placed)


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


Item = TypeVar("Item", Shard, Group)


@dataclass(frozen=True)
class KeptPass(ABC, Generic[Item]):
    """A pass whose results are files of the work folder: what is there is not computed again.

    A small object that can be sent to another process, and a function of one item.
    """

    kind: ClassVar[str]  # how its files are named
    folder: WorkFolder

    def __call__(self, item: Item) -> Done:
        known = self.known(item.number)
        if known is not None:
            return Done.of(item.number, known, before=True)
        tensors, facts = self.computed(item)
        self.folder.write(named(self.kind, item.number), tensors, facts)
        return Done.of(item.number, facts, before=False)

    def known(self, number: int) -> Mapping[str, Any] | None:
        """What was said of an item that is done."""
        kept = self.folder.read(named(self.kind, number))
        return None if kept is None else kept.facts

    @abstractmethod
    def computed(self, item: Item) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What is kept of an item: arrays, and facts as `Done.of` reads them."""


def named(kind: str, number: int) -> str:
    return f"{kind}-{number:06d}"
