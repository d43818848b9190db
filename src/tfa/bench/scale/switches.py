"""The part `switches`: a map that is replaced thirty times while two processes ask it, and servers that are killed.

Every switch is a new publication or takes the last one back. The two maps hold photos of two folders, so an answer
that mixes them, and one that is old, are seen by the paths of its images.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfa.bench.scale.each_engine import row_for_each
from tfa.bench.scale.kept_rows import KeptRows
from tfa.bench.scale.local_servers import AnyServer
from tfa.bench.scale.small_town import DIMS, SmallTown
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.maps import PlaceMap
from tfa.maps.store import StoreStorage

PART = "switches"
ENGINES = ("postgres", "lance", "milvus")
ASKERS = 2
PUBLISHED_EVERY = 3  # switches; the others take the last one back
WATCHED = 1.6  # seconds between two switches
LATE = 1.0  # seconds after which no old answer may begin
K = 10
NAMES = ("first", "second")


@dataclass(frozen=True)
class Seen:
    """One answer."""

    began: float  # time.time()
    ended: float
    names: tuple[str, ...]  # of the maps its images are of
    error: str = ""


@dataclass(frozen=True)
class Switched:
    began: float
    ended: float
    name: str  # of the map that answers since


def run_switches(
    engines: Sequence[str],
    kept: KeptRows,
    progress: Progress | bool | None,
    *,
    switches: int = 30,
    watched: float = WATCHED,
) -> Iterator[dict[str, Any]]:
    """A row for each engine."""

    def measure(town: SmallTown, server: AnyServer) -> dict[str, Any]:
        return _switched(town, f"{server.start().url}/town", switches, watched, progress)

    return row_for_each(PART, engines, kept, measure)


def _switched(
    town: SmallTown, url: str, switches: int, watched: float, progress: Progress | bool | None
) -> dict[str, Any]:
    maps = [town.map(name, first) for name, first in zip(NAMES, (0, 30), strict=True)]
    tokens = town.tokens(town.photo("asked", 40, 0.8))  # a place that both maps have
    for one in maps:
        opened = one.publish(url, dims=DIMS)
    context = multiprocessing.get_context("spawn")
    stop, ready = context.Event(), context.Semaphore(0)
    results = context.Queue()
    askers = [
        context.Process(target=_ask, args=(url, tokens, stop, ready, results), daemon=True) for _ in range(ASKERS)
    ]
    for asker in askers:
        asker.start()
    for _ in askers:
        ready.acquire(timeout=120)
    done: list[Switched] = []
    with as_progress(progress).task("switching", switches, "switches") as task:
        for number in range(switches):
            began, shown = time.time(), number % 2  # the second one answers at first
            if number % PUBLISHED_EVERY:
                assert isinstance(opened.storage, StoreStorage)
                opened.storage.rollback()
            else:
                maps[shown].publish(url, dims=DIMS)
            done.append(Switched(began, time.time(), NAMES[shown]))
            time.sleep(watched)
            task.advance()
    stop.set()
    seen = [one for _ in askers for one in results.get(timeout=60)]
    for asker in askers:
        asker.join()
    return judged(seen, done)


def _ask(url: str, tokens: Tokens, stop: Any, ready: Any, results: Any) -> None:
    """A process that asks until it is told to stop."""
    opened, seen = PlaceMap.load(url), []
    opened.query_tokens(tokens, K)
    ready.release()
    while not stop.is_set():
        began = time.time()
        try:
            [hits] = opened.query_tokens(tokens, K)
            names = tuple(sorted({Path(hit.image).parent.name for hit in hits}))
            seen.append(Seen(began, time.time(), names))
        except Exception as error:  # whatever it is, somebody who asked was not answered
            seen.append(Seen(began, time.time(), (), f"{type(error).__name__}: {error}"))
    results.put(seen)


def judged(seen: Sequence[Seen], switched: Sequence[Switched]) -> dict[str, Any]:
    """What went wrong, and how long the old map was still seen."""
    late, longest = 0, 0.0
    ends = [*(one.began for one in switched[1:]), float("inf")]
    for one, end in zip(switched, ends, strict=True):
        between = [s for s in seen if one.ended < s.began and s.ended < end and s.names]
        old = [s.began - one.ended for s in between if one.name not in s.names]
        late += sum(delay > LATE for delay in old)
        longest = max([longest, *old])
    answers = [one for one in seen if not one.error]
    errors = [one.error for one in seen if one.error]
    return {
        "switches": len(switched),
        "publications": -(-len(switched) // PUBLISHED_EVERY),
        "switch_seconds": float(np.median([one.ended - one.began for one in switched])),
        "queries": len(seen),
        "p50_ms": 1000 * float(np.median([one.ended - one.began for one in answers])),
        "errors": len(errors),
        "error": errors[0] if errors else None,
        "mixed": sum(len(one.names) > 1 for one in answers),
        "late": late,
        "old_seconds": longest,
    }
