"""Passes run one after the other, each timed and its shards counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tfa.base.progress import Progress
from tfa.maps.sharded.executors import Executor
from tfa.maps.sharded.work_items import Done, Item

T = TypeVar("T")


@dataclass(frozen=True)
class PassReport:
    """How one pass went."""

    name: str
    shards: int
    before: int  # shards that an earlier run had done
    images: int
    seconds: float


@dataclass
class PassRunner:
    """Where passes run, and how they went so far."""

    executor: Executor
    progress: Progress
    passes: list[PassReport] = field(default_factory=list)

    def run(
        self,
        name: str,
        work: Callable[[Item], Done],
        items: Sequence[Item],
        images: Sequence[int],
        executor: Executor | None = None,
    ) -> dict[int, Done]:
        """Every item once, in any order; what was heard of each, by its number. `images` are in each, for progress."""
        started, heard = time.monotonic(), dict[int, Done]()
        with self.progress.task(name, sum(images), "images") as task:
            for done in (executor or self.executor).map(work, items):
                heard[done.number] = done
                task.advance(done.images + len(done.skipped))
        before, count = sum(one.before for one in heard.values()), sum(one.images for one in heard.values())
        self.passes.append(PassReport(name, len(items), before, count, time.monotonic() - started))
        return {item.number: heard[item.number] for item in items}

    def timed(self, name: str, call: Callable[[], T]) -> T:
        """A step of the driver's own."""
        started = time.monotonic()
        result = call()
        self.passes.append(PassReport(name, 0, 0, 0, time.monotonic() - started))
        return result

    def notes(self) -> list[str]:
        """What was done before, and how long everything took."""
        photos = [one for one in self.passes if one.name in ("sample", "descriptors")]
        shards, before = sum(one.shards for one in photos), sum(one.before for one in photos)
        took = ", ".join(f"{one.name} {one.seconds:.1f} s" for one in self.passes)
        workers = f"{self.executor.workers} worker{'s' * (self.executor.workers != 1)} ({self.executor.name})"
        known = [f"{before} of {shards} shards were done by an earlier run"] if before else []
        return [*known, f"built by {workers}: {took}"]
