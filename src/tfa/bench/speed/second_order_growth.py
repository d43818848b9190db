"""How a second-order fit grows with the map (ours, beyond the paper), from the descriptors on: time, memory, files.

Up to 8,256 images the PCA is dual and grows with their cube; beyond, it is of the covariance of the descriptors, whose
spectrum takes the same time for any map, and what is left grows with the map. One construction is timed: the others
do the same once more.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tfa.bench.speed.measure import measure, resident, thread_count
from tfa.bench.speed.result_line import Bar, Line
from tfa.core.arrays import Spill, backend_for, l2_normalize, release
from tfa.core.progress import Progress, as_progress, track_progress
from tfa.errors import BadSpec
from tfa.method.branch import DatabaseSplit
from tfa.method.carriers import TEMPERED, KernelTerm, carrier_terms
from tfa.method.scorer import Scorer
from tfa.method.second_order import DIRECTION_COUNT, descriptor_width
from tfa.method.second_order_head import measure_spread
from tfa.method.second_order_space import SecondOrderSpace, fit_space
from tfa.types import HeadSpec
from tfa.verification.judge import limit_pseudo_queries

LINEAR = Bar(1.0)  # of an exponent
CARRIER = "tempered"
BLOCK = 1024  # descriptors made at a time
WARM_UP = 50  # images


@dataclass(frozen=True)
class SpaceSize:
    """One construction of a map of one size."""

    images: int
    form: str  # of the PCA
    rank: int
    seconds: float
    peak_bytes: int | None  # resident memory of the process at most
    descriptor_bytes: int  # in a mapped file


@dataclass(frozen=True)
class SecondOrderGrowth:
    directions: int
    threads: int
    sizes: tuple[SpaceSize, ...]
    machine: str

    @property
    def exponents(self) -> list[tuple[int, int, float]]:
        """From one size to the next: b of time ∝ N^b."""
        return [
            (one.images, other.images, math.log(other.seconds / one.seconds) / math.log(other.images / one.images))
            for one, other in pairwise(self.sizes)
        ]

    def lines(self) -> list[Line]:
        lines = [
            Line(
                f"{size.images:,} images, one construction from its descriptors on",
                size.seconds,
                peak_bytes=size.peak_bytes,
                disk_bytes=size.descriptor_bytes,
                note=f"{size.form} form, {size.rank:,} directions",
            )
            for size in self.sizes
        ]
        beyond = descriptor_width(self.directions)
        for start, stop, value in self.exponents:
            bar = LINEAR if start > beyond else None
            lines.append(
                Line(f"growth exponent, {start:,} to {stop:,} images", ratio=value, bar=bar, note="time ∝ N^b")
            )
        return lines

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "exponents": self.exponents}

    def __str__(self) -> str:
        rows = [f"{self.directions} directions, {self.threads} threads, {self.machine}", ""]
        rows.append("".join(f"{name:>14}" for name in ("images", "PCA", "seconds", "peak MiB")))
        for size in self.sizes:
            peak = "–" if size.peak_bytes is None else f"{size.peak_bytes / 2**20:.0f}"
            rows.append(f"{size.images:>14,}{size.form:>14}{size.seconds:>14.2f}{peak:>14}")
        return "\n".join(
            [*rows, *(f"N^{value:.2f} from {start:,} to {stop:,}" for start, stop, value in self.exponents)]
        )


def made_descriptors(images: int, width: int, spill: Spill) -> np.ndarray:
    """Unit rows `m D` that share most of their length, with a falling spectrum, made block by block."""
    rng = np.random.default_rng(0)
    mean = rng.standard_normal(width, np.float32)
    scales = (np.arange(1, width + 1) ** -0.5).astype(np.float32)
    rows = spill.empty((images, width), np.float32)
    for start in range(0, images, BLOCK):
        stop = min(start + BLOCK, images)
        rows[start:stop] = l2_normalize(mean + scales * rng.standard_normal((stop - start, width), np.float32))
        release(rows)
    return rows


def head_of(descriptors: np.ndarray, directions: np.ndarray) -> tuple[SecondOrderSpace, Scorer]:
    """One construction from its descriptors on: PCA, coordinates, spreads, rows of the head."""
    spec, spill = HeadSpec(), Spill()
    split = DatabaseSplit.of(len(descriptors), limit_pseudo_queries(spec))
    space = fit_space(descriptors, directions, split, spec.max_rank, backend_for("cpu"), spill)
    original, partial, tempered = (
        measure_spread(space.pseudo_scores([KernelTerm(1.0, gamma)]), space) for gamma in (None, 0.5, TEMPERED)
    )
    kernel = carrier_terms(CARRIER, spreads=(original, partial, tempered))
    return space, space.scorer(kernel, "float32", spill)


def run_second_order_growth(
    *,
    sizes: Sequence[int] = (5000, 20_000, 50_000),
    directions: int = DIRECTION_COUNT,
    progress: bool | Progress | None = None,
) -> SecondOrderGrowth:
    """Time one construction at each size; making its descriptors is not counted."""
    if not sizes or min(sizes) < 3 or directions < 1:
        raise BadSpec(f"sizes={tuple(sizes)}, directions={directions}; give sizes of at least 3 and a direction")
    onto, width = np.eye(directions), descriptor_width(directions)
    head_of(made_descriptors(WARM_UP, width, Spill()), onto)  # thread pools and page tables
    done = []
    for images in track_progress(sorted(sizes), len(sizes), "sizes", as_progress(progress)):
        rows = made_descriptors(images, width, Spill())
        measured = measure(lambda rows=rows: len(head_of(rows, onto)[0].side.eigenvalues))  # type: ignore[misc]
        form = "dual" if images <= width else "covariance"
        done.append(SpaceSize(images, form, measured.result, measured.seconds, resident("VmHWM"), rows.nbytes))
    machine = f"{os.cpu_count()} cores, {platform.machine()}"
    return SecondOrderGrowth(directions, thread_count(), tuple(done), machine)
