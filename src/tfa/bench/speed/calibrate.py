"""`tfa bench calibrate`: the time of a calibration over the time of the database-only fit it builds on."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfa import pipeline
from tfa.bench.speed.fit import synthetic_tokens, tokens_of_photos
from tfa.core.progress import Progress
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec
from tfa.method.head import Head
from tfa.types import HeadSpec

WARM_UP = 8  # images


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
    decisions: dict[str, Any]  # of the calibration on the few
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

    Made-up target images are the map's under other noise. With `photos`, every second one is the map and the
    others are the target, as many as there are.
    """
    if photos is None:
        database = synthetic_tokens(images, patches, channels)
        others = seen_again(database, max(target, full))
    else:
        everything = tokens_of_photos(photos, progress)
        database, others = everything.select(slice(0, None, 2)), everything.select(slice(1, None, 2))
    if min(len(database), len(others), target, full) < 2:
        raise BadSpec(f"{len(database)} map images and {len(others)} target images; give at least 2 of each")
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
    """`count` images of the same places under other noise, spread over the database and back to its start."""
    rng = np.random.default_rng(1)
    order = rng.permutation(len(tokens))[np.arange(count) % len(tokens)]
    patches = np.empty((count, *tokens.shapes[0]), np.float16)
    for row, image in enumerate(order):
        patches[row] = tokens.patches[image] + noise * rng.standard_normal(patches.shape[1:], np.float32)
    return Tokens(patches, patches.mean(axis=1, dtype=np.float32))


def _warm_up(database: Tokens, others: Tokens) -> None:
    """Thread pools and page tables; enough images that nobody is warned of a small calibration."""
    few = np.arange(WARM_UP)
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
