"""How a sharded build is divided, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfa.errors import BadSpec
from tfa.maps.sharded.executors import Executor, SerialExecutor
from tfa.maps.sharded.pass_runner import PassReport
from tfa.maps.sharded.photo_list import SHARD_SIZE
from tfa.maps.store.header import StoreHeader
from tfa.maps.store.skeleton import BLOCK, SAMPLE

DIMS = 1024


@dataclass(frozen=True)
class BuildReport:
    """What a build did."""

    url: str
    header: StoreHeader
    skipped: list[tuple[str, str]]
    notes: list[str]
    passes: list[PassReport]

    def to_dict(self) -> dict[str, Any]:
        facts = {"url": self.url, "images": self.header.count, "revision": self.header.revision}
        return {**facts, "notes": self.notes, "passes": [vars(one) for one in self.passes]}


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """How a build is divided, and what its store searches. `work` is a folder that all workers see."""

    executor: Executor = field(default_factory=SerialExecutor)
    shard_size: int = SHARD_SIZE
    sample: int = SAMPLE  # photos that decisions are taken on, at most
    work: str | Path | None = None  # beside the token cache if None
    dims: int = DIMS
    index: str | None = None  # of the store; None searches exactly
    patches_at: str | None = None  # URL of another store for the patches; None keeps them in the map's own

    def __post_init__(self) -> None:
        if type(self.shard_size) is not int or self.shard_size < 1:
            raise BadSpec(f"shard_size={self.shard_size!r} is out of range: must be a whole number from 1, better 1000")
        if type(self.sample) is not int or self.sample < BLOCK:
            raise BadSpec(
                f"sample={self.sample!r} is out of range: must be a whole number from {BLOCK}, since a sample is made "
                f"of blocks of {BLOCK} neighbouring photos; leave it out for {SAMPLE}"
            )
