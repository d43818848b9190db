"""Time reranking against its unavoidable matrix products.

Measured is everything that a map does for a query after its head: compacting the query's patches, reading and restoring
the candidates' patches, comparing and voting. The products are one for compacting and one per candidate.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from studies.speed.fit import seen_again, synthetic_tokens
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.types import RerankSpec
from tfa.verification.patches import CompactTokens

REPEATS = 5  # runs per measurement; the shortest counts, the others were disturbed


@dataclass(frozen=True)
class VerifyBenchmark:
    """Seconds per query, single and in a batch, each with the bare products of the same shapes."""

    candidates: int
    patches: int
    dimensions: int
    bytes_per_image: int  # read per candidate
    queries: int  # batch size
    threads: int  # threads that share the batch
    seconds: float
    products_seconds: float
    batch_seconds: float
    batch_products_seconds: float
    machine: str

    @property
    def ratio(self) -> float:
        return self.seconds / self.products_seconds

    @property
    def batch_ratio(self) -> float:
        return self.batch_seconds / self.batch_products_seconds

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "ms_per_query": 1000 * self.seconds,
            "batch_ms_per_query": 1000 * self.batch_seconds,
            "ratio": self.ratio,
            "batch_ratio": self.batch_ratio,
        }

    def __str__(self) -> str:
        shape = f"{self.candidates} candidates × {self.patches} patches × {self.dimensions} dimensions"
        shape += f" in {self.bytes_per_image:,} bytes"
        batch = f"in a batch of {self.queries} queries, {self.threads} threads"
        alone = (self.seconds, self.products_seconds, self.ratio)
        together = (self.batch_seconds, self.batch_products_seconds, self.batch_ratio)
        lines = [f"{shape}, {self.machine}", "", f"{'ms a query':<44}{'evidence':>10}{'products':>10}{'ratio':>8}"]
        for name, (whole, floor, ratio) in (("one query", alone), (batch, together)):
            lines.append(f"{name:<44}{1000 * whole:10.2f}{1000 * floor:10.2f}{ratio:8.2f}")
        return "\n".join(lines)


def run_verify_benchmark(
    *,
    candidates: int = 20,
    patches: int = 529,
    channels: int = 384,
    dimensions: int = 128,
    small: bool = False,
    queries: int = 16,
    threads: int = 2,
    progress: bool | Progress | None = None,
) -> VerifyBenchmark:
    """Time reranking of synthetic photos: queries are the candidates with other noise.

    Products are numpy's, which divides each among the threads.
    """
    grid = squarest(patches)
    images = synthetic_tokens(candidates, patches, channels)
    spec = RerankSpec(dimensions=dimensions, patches="small" if small else "full")
    known = CompactTokens.fit(Tokens(images.patches, grid=grid), spec)
    tokens = seen_again(images, queries)
    photos = [tokens.load(index, index + 1) for index in range(queries)]
    rows, floor = np.arange(candidates), known.rows(range(candidates))

    def verify(some: Sequence[np.ndarray]) -> None:
        compact = [known.compaction.compact(photo)[0] for photo in some]
        known.match_each(compact, grid, [rows] * len(some), threads)

    def multiply(some: Sequence[np.ndarray]) -> None:
        for photo in some:
            query = photo[0].astype(np.float32) @ known.compaction.projection
            for candidate in floor:
                query @ candidate.T

    with as_progress(progress).task("timing", 2 * REPEATS) as task:
        alone, together = (
            _shortest({"whole": lambda: verify(some), "floor": lambda: multiply(some)}, task.advance)  # noqa: B023
            for some in (photos[:1], photos)
        )
    return VerifyBenchmark(
        candidates=candidates,
        patches=patches,
        dimensions=known.compaction.dimensions,
        bytes_per_image=known.bytes_per_image,
        queries=queries,
        threads=threads,
        seconds=alone["whole"],
        products_seconds=alone["floor"],
        batch_seconds=together["whole"] / queries,
        batch_products_seconds=together["floor"] / queries,
        machine=f"{os.cpu_count()} cores, {platform.machine()}",
    )


def squarest(patches: int) -> tuple[int, int]:
    """Return rows and columns of a grid of `patches` patches, as square as possible."""
    rows = next(rows for rows in range(math.isqrt(patches), 0, -1) if patches % rows == 0)
    return rows, patches // rows


def _shortest(calls: dict[str, Callable[[], Any]], advance: Callable[[], None]) -> dict[str, float]:
    """Return the shortest of several alternating runs of each call, so that a busy machine slows all."""
    shortest = dict.fromkeys(calls, math.inf)
    for call in calls.values():
        call()  # warm up thread pools and page tables
    for _ in range(REPEATS):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            shortest[name] = min(shortest[name], time.perf_counter() - started)
        advance()
    return shortest
