"""Time the fit of a head, its vocabularies, descriptors and calibration against their unavoidable parts."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from studies.speed.measure import (
    Bar,
    Bars,
    Line,
    OverFloor,
    cells,
    compared,
    fastest,
    format_bytes,
    listed,
    thread_count,
)
from tfa import pipeline
from tfa.core.arrays import backend_for, l2_normalize, map_in_threads
from tfa.core.progress import Progress, SilentProgress, as_progress, track_progress
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec
from tfa.method.head import Head
from tfa.method.residuals import ASSIGNMENT_KINDS, describe_residuals
from tfa.method.spectrum import gram_matrix
from tfa.method.vocabulary import (
    BLOCKS_A_TURN,
    CONSTRUCTIONS,
    MAX_KMEANS_ITERATIONS,
    ROWS,
    Lloyd,
    ProductThreads,
    fit_vocabularies,
    grid_patches,
    sample_patches,
)
from tfa.pipeline import encode, fit
from tfa.types import HeadSpec


@dataclass(frozen=True)
class FitBenchmark:
    """Seconds of the fit and of its parts."""

    images: int
    patches: int
    channels: int
    seconds: float
    parts: dict[str, float]
    iterations: list[int]
    decisions: dict[str, Any]
    machine: str

    @property
    def floor(self) -> float:
        return sum(self.parts.values())

    @property
    def ratio(self) -> float:
        return self.seconds / self.floor

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "floor": self.floor, "ratio": self.ratio}

    def __str__(self) -> str:
        lines = [f"{self.images} images × {self.patches} patches × {self.channels} channels, {self.machine}", ""]
        lines += [f"{name:<44}{seconds:8.2f} s" for name, seconds in self.parts.items()]
        lines += [f"{'sum of the unavoidable parts':<44}{self.floor:8.2f} s"]
        lines += [f"{'the whole fit, with evidence and decisions':<44}{self.seconds:8.2f} s"]
        lines += [f"{'ratio':<44}{self.ratio:8.2f}"]
        return "\n".join(lines)


def synthetic_tokens(images: int, patches: int, channels: int) -> Tokens:
    """Return structured tokens: images of recurring things, some specific to the place."""
    rng = np.random.default_rng(0)
    things = rng.normal(size=(400, channels)).astype(np.float32)
    tokens = np.empty((images, patches, channels), np.float16)
    for image in range(images):
        own = things[rng.integers(0, len(things), 12)]
        tokens[image] = own[rng.integers(0, len(own), patches)] + rng.normal(0, 0.7, (patches, channels))
    return Tokens(tokens, tokens.mean(axis=1, dtype=np.float32))


def tokens_of_photos(photos: Path, progress: bool | Progress | None = None) -> Tokens:
    """Encode real photos with the default encoder into memory: disk access is not timed."""
    from tfa.encoders import DEFAULT_ENCODER, load_encoder

    lazy = encode(photos, load_encoder(DEFAULT_ENCODER), progress=as_progress(progress)).tokens
    return Tokens([np.array(image) for image in lazy.patches], lazy.cls)


def run_fit_benchmark(
    *,
    images: int = 607,
    patches: int = 529,
    channels: int = 384,
    photos: Path | None = None,
    progress: bool | Progress | None = None,
) -> FitBenchmark:
    """Time `fit`, then k-means, the six descriptor sets, six Gram matrices and six eigendecompositions separately."""
    tokens = synthetic_tokens(images, patches, channels) if photos is None else tokens_of_photos(photos, progress)
    fit(tokens.select(slice(0, min(len(tokens), 8))), HeadSpec(words=4))  # warm up thread pools and page tables
    started = time.perf_counter()
    head = fit(tokens, progress=progress)
    seconds = time.perf_counter() - started
    return FitBenchmark(
        images=len(tokens),
        patches=int(np.median(tokens.counts)),
        channels=tokens.channels,
        seconds=seconds,
        parts=_parts(tokens, head),
        iterations=[vocabulary.iterations for vocabulary in head.vocabularies],
        decisions=head.decisions.to_dict(),
        machine=f"{os.cpu_count()} cores, {platform.machine()}",
    )


def _parts(tokens: Tokens, head: Head) -> dict[str, float]:
    backend, spec = backend_for("cpu"), head.spec
    parts: dict[str, float] = {}

    def timed(name: str, call: Callable[..., Any], *args: Any) -> Any:
        started = time.perf_counter()
        result = call(*args)
        parts[name] = parts.get(name, 0.0) + time.perf_counter() - started
        return result

    patches = sample_patches(tokens, spec.max_patches, normalize=grid_patches)
    vocabularies = timed("k-means of three vocabularies", fit_vocabularies, patches, spec.words, backend)
    for vocabulary in vocabularies:
        for assignment in ASSIGNMENT_KINDS:
            alone = (tokens, [vocabulary.centers], [assignment], spec.temperature, backend)
            described = np.array(timed("six descriptor passes", describe_residuals, *alone)[assignment, 0].descriptors)
            gram = timed("six Gram matrices, float64", gram_matrix, described, backend)
            timed("six eigendecompositions, float64", np.linalg.eigh, gram)
    return parts


_WARM_UP = 8  # images


@dataclass(frozen=True)
class CalibrateBenchmark:
    """Seconds of the fit, of a calibration on a few target images, and of one on all of them."""

    images: int
    patches: int
    channels: int
    target: int
    full: int
    fit_seconds: float
    target_seconds: float
    full_seconds: float
    decisions: dict[str, Any]  # of the calibration on few images
    machine: str

    @property
    def target_ratio(self) -> float:
        return self.target_seconds / self.fit_seconds

    @property
    def full_ratio(self) -> float:
        return self.full_seconds / self.fit_seconds

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "target_ratio": self.target_ratio, "full_ratio": self.full_ratio}

    def __str__(self) -> str:
        few, many = f"calibration on {self.target} images", f"calibration on {self.full} images"
        return "\n".join(
            [
                f"{self.images} images × {self.patches} patches × {self.channels} channels, {self.machine}",
                "",
                f"{'':<44}{'seconds':>10}{'of the fit':>12}",
                f"{'the database-only fit':<44}{self.fit_seconds:10.2f}",
                f"{few:<44}{self.target_seconds:10.2f}{self.target_ratio:12.2f}",
                f"{many:<44}{self.full_seconds:10.2f}{self.full_ratio:12.2f}",
            ]
        )


def run_calibrate_benchmark(
    *,
    images: int = 607,
    target: int = 64,
    full: int = 607,
    patches: int = 529,
    channels: int = 384,
    photos: Path | None = None,
    progress: bool | Progress | None = None,
) -> CalibrateBenchmark:
    """Time `fit`, then `calibrate` on `target` and on `full` images, all in this process.

    Synthetic target images are the map images with other noise. With `photos`, every second one is a map image and all
    others are target images.
    """
    if photos is None:
        database = synthetic_tokens(images, patches, channels)
        others = seen_again(database, max(target, full))
    else:
        everything = tokens_of_photos(photos, progress)
        database, others = everything.select(slice(0, None, 2)), everything.select(slice(1, None, 2))
    if min(len(database), len(others), target, full) < 2:
        raise BadSpec(f"{len(database)} map images and {len(others)} target images; at least 2 of each are needed")
    _warm_up(database, others)
    fit_seconds, head = _timed_fit(database, progress)
    target_seconds, calibrated = _timed_calibration(head, others.select(slice(0, target)), progress)
    full_seconds, _ = _timed_calibration(head, others.select(slice(0, full)), progress)
    return CalibrateBenchmark(
        images=len(database),
        patches=int(np.median(database.counts)),
        channels=database.channels,
        target=min(target, len(others)),
        full=min(full, len(others)),
        fit_seconds=fit_seconds,
        target_seconds=target_seconds,
        full_seconds=full_seconds,
        decisions=calibrated.decisions.to_dict(),
        machine=f"{os.cpu_count()} cores, {platform.machine()}",
    )


def seen_again(tokens: Tokens, count: int, noise: float = 0.5) -> Tokens:
    """Return `count` images of the same places with other noise, spread over the database cyclically."""
    rng = np.random.default_rng(1)
    order = rng.permutation(len(tokens))[np.arange(count) % len(tokens)]
    patches = np.empty((count, *tokens.shapes[0]), np.float16)
    for row, image in enumerate(order):
        patches[row] = tokens.patches[image] + noise * rng.standard_normal(patches.shape[1:], np.float32)
    return Tokens(patches, patches.mean(axis=1, dtype=np.float32))


def _warm_up(database: Tokens, others: Tokens) -> None:
    """Warm up thread pools and page tables, with enough images to avoid the small-calibration warning."""
    few = np.arange(_WARM_UP)
    head = pipeline.fit(database.select(few % len(database)), HeadSpec(words=4))
    pipeline.calibrate(head, others.select(few % len(others)))


def _timed_fit(tokens: Tokens, progress: bool | Progress | None) -> tuple[float, Head]:
    started = time.perf_counter()
    head = pipeline.fit(tokens, progress=progress)
    return time.perf_counter() - started, head


def _timed_calibration(head: Head, target: Tokens, progress: bool | Progress | None) -> tuple[float, Head]:
    started = time.perf_counter()
    calibrated = pipeline.calibrate(head, target, progress=progress)
    return time.perf_counter() - started, calibrated


_VOCABULARY_BAR = Bar(1.3)
THINGS = 400


@dataclass(frozen=True, kw_only=True)
class VocabularyBenchmark(OverFloor):
    """Seconds of three constructions including initialization, and of the products patches · wordsᵀ of their
    iterations.

    The products have the same blocks and dtype; initialization, sums and choosing the nearest are not in the floor.
    """

    patches: int
    channels: int
    words: int
    iterations: list[int]  # per construction
    threads: int
    peak_bytes: int | None  # resident memory beyond the existing patches
    patch_bytes: int

    def lines(self) -> list[Line]:
        what = f"three vocabularies of {self.words} words, {self.patches:,} × {self.channels} patches"
        patches = format_bytes(self.patch_bytes)
        note = f"{', '.join(map(str, self.iterations))} iterations; the patches themselves {patches}"
        return [compared(what, self.seconds, self.floor, _VOCABULARY_BAR, peak_bytes=self.peak_bytes, note=note)]

    def __str__(self) -> str:
        what, seconds, floor, ratio, bar, met, peak, _ = cells(self.lines()[0])
        rows = [("time", seconds), ("products of as many iterations", floor), ("ratio", f"{ratio} ({bar}: {met})")]
        rows += [("peak memory beyond the patches", peak), ("threads of matrix products", str(self.threads))]
        return listed(what, rows)


def run_vocabulary_benchmark(
    *, patches: int = 300_000, channels: int = 768, words: int = 64, repeats: int = 1, progress: Bars = None
) -> VocabularyBenchmark:
    """Time three constructions and their unavoidable products; the fastest of `repeats` counts."""
    sample, bars = synthetic_patches(patches, channels), as_progress(progress)
    _in_turn(sample[: 4 * words], 2, as_progress(None))  # warm up thread pools and page tables
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
    """Return seconds of initialization and iterations, seconds of only their products, and the iterations.

    An iteration and its bare product alternate, so that a busy machine slows both.
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
    """Return unit patches of recurring things with noise; both fade along the channels, like token spectra."""
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
    """Multiply every patch with every word of unfinished constructions, in the blocks of an assignment."""

    def multiply(start: int) -> None:
        product = np.empty((ROWS, len(words)), sample.dtype)
        for low in range(start, min(start + ROWS * BLOCKS_A_TURN, len(sample)), ROWS):
            block = sample[low : low + ROWS]
            np.matmul(block, words.T, out=product[: len(block)])

    threads.each(multiply, range(0, len(sample), ROWS * BLOCKS_A_TURN))


_DESCRIPTORS_BAR = Bar(1.5)
_IMAGES_AT_ONCE = 16  # images


@dataclass(frozen=True, kw_only=True)
class DescriptorsBenchmark(OverFloor):
    """Seconds of `describe`, and of only tokens · wordsᵀ and weightsᵀ · tokens, image by image in float32."""

    images: int
    patches: int
    channels: int
    words: int
    threads: int
    peak_bytes: int | None  # resident memory beyond the existing tokens
    disk_bytes: int  # six sets, which a fit stores in a mapped temporary file

    def lines(self) -> list[Line]:
        sets = len(ASSIGNMENT_KINDS) * len(CONSTRUCTIONS)
        what = f"{sets} descriptors of {self.images:,} images × {self.patches} × {self.channels} tokens"
        note = f"{1000 * self.seconds / self.images:.1f} ms an image"
        return [
            compared(
                what,
                self.seconds,
                self.floor,
                _DESCRIPTORS_BAR,
                peak_bytes=self.peak_bytes,
                disk_bytes=self.disk_bytes,
                note=note,
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
    """Time both assignments under three vocabularies and their products, alternating; the fastest run counts."""
    tokens, backend = synthetic_tokens(images, patches, channels), backend_for("cpu")
    rng, temperature = np.random.default_rng(0), HeadSpec().temperature
    # Words are means of patches, as in a vocabulary. The choice of patches does not affect the time.
    drawn = [rng.integers(0, (images, patches), (words, 8, 2)) for _ in CONSTRUCTIONS]
    everything = np.asarray(tokens.patches)
    centers = [l2_normalize(everything[at[..., 0], at[..., 1]].mean(axis=1, dtype=np.float32)) for at in drawn]
    describe_residuals(
        tokens.select(slice(0, 1)), centers, ASSIGNMENT_KINDS, temperature, backend
    )  # warm up page tables

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
    """Only the products of every finished image: similarities to all words, sums under all weights.

    The pass and its products alternate, so that a busy machine slows both. Both multiply several images at once, with
    one thread each.
    """

    def __init__(self, tokens: Tokens, centers: list[np.ndarray]) -> None:
        self.words = np.concatenate(centers)
        self.image = l2_normalize(np.asarray(tokens.patches[0], np.float32))
        columns = len(ASSIGNMENT_KINDS) * len(self.words)
        self.weights = np.random.default_rng(0).random((len(self.image), columns), np.float32)
        self.total, self.done, self.waiting, self.seconds = len(tokens), 0, 0, 0.0

    def advance(self, steps: int = 1) -> None:
        self.done, self.waiting = self.done + steps, self.waiting + steps
        if self.waiting < _IMAGES_AT_ONCE and self.done < self.total:
            return
        started = time.perf_counter()
        map_in_threads(self._multiply, range(self.waiting))
        self.seconds += time.perf_counter() - started
        self.waiting = 0

    def _multiply(self, _: int) -> tuple[np.ndarray, np.ndarray]:
        return self.image @ self.words.T, self.weights.T @ self.image
