"""All six descriptor sets in one pass over the tokens, over the time of the matrix products they consist of."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from tfa.bench.speed.fit import synthetic_tokens
from tfa.bench.speed.measure import Bars, fastest, thread_count
from tfa.bench.speed.result_line import Bar, Line, OverFloor, cells, compared, listed
from tfa.core.arrays import backend_for, l2_normalize, map_in_threads
from tfa.core.progress import SilentProgress, as_progress, track_progress
from tfa.core.tokens import Tokens
from tfa.method.residuals import ASSIGNMENT_KINDS, describe_residuals
from tfa.method.vocabulary import CONSTRUCTIONS
from tfa.types import HeadSpec

BAR = Bar(1.5)
TURN = 16  # images


@dataclass(frozen=True, kw_only=True)
class DescriptorsBenchmark(OverFloor):
    """Seconds of `describe`, and of tokens · wordsᵀ and weightsᵀ · tokens alone, image by image in float32."""

    images: int
    patches: int
    channels: int
    words: int
    threads: int
    peak_bytes: int | None  # resident beyond the tokens, which are there before
    disk_bytes: int  # of the six sets, which a fit keeps in a mapped temporary file

    def lines(self) -> list[Line]:
        sets = len(ASSIGNMENT_KINDS) * len(CONSTRUCTIONS)
        what = f"{sets} descriptors of {self.images:,} images × {self.patches} × {self.channels} tokens"
        note = f"{1000 * self.seconds / self.images:.1f} ms an image"
        return [
            compared(
                what, self.seconds, self.floor, BAR, peak_bytes=self.peak_bytes, disk_bytes=self.disk_bytes, note=note
            )
        ]

    def __str__(self) -> str:
        what, seconds, floor, ratio, bar, met, peak, disk = cells(self.lines()[0])
        rows = [("time", seconds), ("their matrix products alone", floor), ("ratio", f"{ratio} ({bar}: {met})")]
        rows += [("peak memory beyond the tokens", peak), ("descriptors, in a mapped file", disk)]
        rows += [("threads of matrix products", str(self.threads))]
        return listed(what, rows)


def run_descriptors_benchmark(
    images: int = 200, patches: int = 529, channels: int = 768, words: int = 64, repeats: int = 3, progress: Bars = None
) -> DescriptorsBenchmark:
    """Time both assignments under three vocabularies, and their products in turn; the fastest run counts."""
    tokens, backend = synthetic_tokens(images, patches, channels), backend_for("cpu")
    rng, temperature = np.random.default_rng(0), HeadSpec().temperature
    # Words as a vocabulary has them: means of patches. Which patches is all the same to the time.
    drawn = [rng.integers(0, (images, patches), (words, 8, 2)) for _ in CONSTRUCTIONS]
    everything = np.asarray(tokens.patches)
    centers = [l2_normalize(everything[at[..., 0], at[..., 1]].mean(axis=1, dtype=np.float32)) for at in drawn]
    describe_residuals(
        tokens.select(slice(0, 1)), centers, ASSIGNMENT_KINDS, temperature, backend
    )  # page tables warm up

    def all_six() -> tuple[float, float, int]:
        products = _BareProducts(tokens, centers)
        started = time.perf_counter()
        made = describe_residuals(tokens, centers, ASSIGNMENT_KINDS, temperature, backend, progress=products)
        seconds = time.perf_counter() - started - products.seconds
        kept = sum(one.descriptors.nbytes + one.mass.nbytes for one in made.values())
        return seconds, products.seconds, kept

    runs = track_progress(range(repeats), repeats, "descriptors", as_progress(progress))
    seconds, floor, kept, peak = fastest(runs, all_six)
    return DescriptorsBenchmark(
        images=images,
        patches=patches,
        channels=channels,
        words=words,
        threads=thread_count(),
        seconds=seconds,
        floor=floor,
        peak_bytes=peak,
        disk_bytes=kept,
    )


class _BareProducts(SilentProgress):
    """The products of every finished image alone: similarities to all words at once, sums under all weights at once.

    The pass and its products take turns, so a machine that others use slows both alike. Both multiply several images at
    once, by one thread each.
    """

    def __init__(self, tokens: Tokens, centers: list[np.ndarray]) -> None:
        self.words = np.concatenate(centers)
        self.image = l2_normalize(np.asarray(tokens.patches[0], np.float32))
        columns = len(ASSIGNMENT_KINDS) * len(self.words)
        self.weights = np.random.default_rng(0).random((len(self.image), columns), np.float32)
        self.total, self.done, self.waiting, self.seconds = len(tokens), 0, 0, 0.0

    def advance(self, steps: int = 1) -> None:
        self.done, self.waiting = self.done + steps, self.waiting + steps
        if self.waiting < TURN and self.done < self.total:
            return
        started = time.perf_counter()
        map_in_threads(self._multiply, range(self.waiting))
        self.seconds += time.perf_counter() - started
        self.waiting = 0

    def _multiply(self, _: int) -> tuple[np.ndarray, np.ndarray]:
        return self.image @ self.words.T, self.weights.T @ self.image
