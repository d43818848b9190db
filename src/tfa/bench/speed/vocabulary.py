"""Three vocabularies of one sample, over the time of the matrix products of as many iterations."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from tfa.bench.speed.measure import Bars, fastest, thread_count
from tfa.bench.speed.result_line import Bar, Line, OverFloor, cells, compared, format_bytes, listed
from tfa.core.arrays import backend_for, l2_normalize
from tfa.core.progress import Progress, as_progress
from tfa.method.vocabulary import BLOCKS_A_TURN, CONSTRUCTIONS, MAX_KMEANS_ITERATIONS, ROWS, Lloyd, ProductThreads

BAR = Bar(1.3)
THINGS = 400


@dataclass(frozen=True, kw_only=True)
class VocabularyBenchmark(OverFloor):
    """Seconds of three constructions, their start included, and of the products patches · wordsᵀ of their iterations.

    The products have the same blocks and dtype; the start, the sums and the choice of the nearest are not in the floor.
    """

    patches: int
    channels: int
    words: int
    iterations: list[int]  # of each construction
    threads: int
    peak_bytes: int | None  # resident beyond the patches, which are there before
    patch_bytes: int

    def lines(self) -> list[Line]:
        what = f"three vocabularies of {self.words} words, {self.patches:,} × {self.channels} patches"
        patches = format_bytes(self.patch_bytes)
        note = f"{', '.join(map(str, self.iterations))} iterations; the patches themselves {patches}"
        return [compared(what, self.seconds, self.floor, BAR, peak_bytes=self.peak_bytes, note=note)]

    def __str__(self) -> str:
        what, seconds, floor, ratio, bar, met, peak, _ = cells(self.lines()[0])
        rows = [("time", seconds), ("products of as many iterations", floor), ("ratio", f"{ratio} ({bar}: {met})")]
        rows += [("peak memory beyond the patches", peak), ("threads of matrix products", str(self.threads))]
        return listed(what, rows)


def run_vocabulary_benchmark(
    *, patches: int = 300_000, channels: int = 768, words: int = 64, repeats: int = 1, progress: Bars = None
) -> VocabularyBenchmark:
    """Time three constructions and the products they cannot do without; the fastest of `repeats` counts."""
    sample, bars = synthetic_patches(patches, channels), as_progress(progress)
    _in_turn(sample[: 4 * words], 2, as_progress(None))  # thread pools and page tables warm up
    seconds, floor, iterations, peak = fastest(range(repeats), lambda: _in_turn(sample, words, bars))
    return VocabularyBenchmark(
        patches=patches,
        channels=channels,
        words=words,
        iterations=iterations,
        threads=thread_count(),
        seconds=seconds,
        floor=floor,
        peak_bytes=peak,
        patch_bytes=sample.nbytes,
    )


def _in_turn(sample: np.ndarray, words: int, progress: Progress) -> tuple[float, float, list[int]]:
    """Seconds of the start and of every iteration, seconds of their products alone, and the iterations.

    An iteration and its bare product follow each other: a machine that others use slows both alike.
    """
    with ProductThreads() as threads, progress.task("vocabularies", MAX_KMEANS_ITERATIONS, "iterations") as task:
        started = time.perf_counter()
        lloyd = Lloyd(sample, words, CONSTRUCTIONS, backend_for("cpu"), threads)
        seconds, floor, moving = time.perf_counter() - started, 0.0, True
        for _ in range(MAX_KMEANS_ITERATIONS):
            if not moving:
                break
            centers = np.concatenate(lloyd.centers[lloyd.active]).astype(sample.dtype)
            started = time.perf_counter()
            moving = lloyd.step()
            seconds += time.perf_counter() - started
            started = time.perf_counter()
            _product(sample, centers, threads)
            floor += time.perf_counter() - started
            task.advance()
    return seconds, floor, lloyd.iterations


def synthetic_patches(patches: int, channels: int) -> np.ndarray:
    """Unit patches of things that recur, under noise; both fade along the channels, as spectra of tokens do."""
    rng = np.random.default_rng(0)
    spread = (1 / np.sqrt(1 + np.arange(channels))).astype(np.float32)
    things = rng.standard_normal((THINGS, channels), np.float32) * spread
    made = np.empty((patches, channels), np.float32)
    for low in range(0, patches, ROWS):
        block = made[low : low + ROWS]
        noise = rng.standard_normal(block.shape, np.float32) * spread
        block[...] = l2_normalize(things[rng.integers(0, THINGS, len(block))] + noise)
    return made


def _product(sample: np.ndarray, words: np.ndarray, threads: ProductThreads) -> None:
    """Every patch with every word of the constructions that still move, block by block as an assignment has it."""

    def multiply(start: int) -> None:
        product = np.empty((ROWS, len(words)), sample.dtype)
        for low in range(start, min(start + ROWS * BLOCKS_A_TURN, len(sample)), ROWS):
            block = sample[low : low + ROWS]
            np.matmul(block, words.T, out=product[: len(block)])

    threads.each(multiply, range(0, len(sample), ROWS * BLOCKS_A_TURN))
