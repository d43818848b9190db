"""Fitting a map too large for a PCA of all its images: is memory the same for any size?

What grows with the map (descriptors, products with the sample, coordinates, galleries) is in mapped files. Resident
memory is given beside them, at two sizes or more; that of the pages of mapped files counts while they are in use.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfa.bench.speed.fit_growth import FitSize, exponent, fit_size
from tfa.bench.speed.measure import thread_count
from tfa.bench.speed.result_line import Line
from tfa.bench.speed.synthetic_tokens import lazy_tokens
from tfa.core.progress import Progress, as_progress, track_progress
from tfa.errors import BadSpec
from tfa.pipeline import fit
from tfa.types import HeadSpec

MIB = 2**20
WARM_UP = 8  # images


@dataclass(frozen=True)
class SampledFitBenchmark:
    patches: int
    channels: int
    words: int
    pca_sample: int
    max_pseudo: int
    threads: int
    sizes: tuple[FitSize, ...]
    machine: str

    @property
    def exponent(self) -> float | None:
        """b of time ∝ N^b, from the descriptors on; a sampled fit grows with the map, not with its square."""
        return exponent([size.images for size in self.sizes], [size.seconds for size in self.sizes])

    @property
    def bytes_per_image(self) -> float | None:
        """Resident memory an image more takes at the peak of the fit: from the smallest size to the largest."""
        one, other = self.sizes[0], self.sizes[-1]
        if one.images == other.images or one.peak_bytes is None or other.peak_bytes is None:
            return None
        return (other.peak_bytes - one.peak_bytes) / (other.images - one.images)

    def to_dict(self) -> dict[str, Any]:
        derived = {"exponent": self.exponent, "bytes_per_image": self.bytes_per_image}
        return {**asdict(self), "sizes": [size.to_dict() for size in self.sizes], **derived}

    def lines(self) -> list[Line]:
        lines = [
            Line(
                f"{size.images:,} images, PCA of {self.pca_sample:,}, from the descriptors on",
                size.seconds,
                peak_bytes=size.peak_bytes,
                disk_bytes=size.spilled_bytes,
            )
            for size in self.sizes
        ]
        if self.bytes_per_image is not None:
            stored = self.sizes[-1].descriptor_bytes / self.sizes[-1].images
            note = (
                f"{self.bytes_per_image:,.0f} resident bytes an image more; its descriptors on disk take {stored:,.0f}"
            )
            lines.append(Line("growth of memory", note=note))
        return lines

    def __str__(self) -> str:
        shape = f"{self.patches} patches × {self.channels} channels, {self.words} words, {self.threads} threads"
        sample = f"PCA of {self.pca_sample:,} images, {self.max_pseudo:,} pseudo queries"
        columns = ("images", "seconds", "whole", "peak MiB", "files MiB", "descriptors")
        rows = [f"{shape}, {self.machine}", sample, "", "".join(f"{name:>13}" for name in columns)]
        for size in self.sizes:
            peak = "–" if size.peak_bytes is None else f"{size.peak_bytes / MIB:.0f}"
            files, stored = f"{size.spilled_bytes / MIB:.0f}", f"{size.descriptor_bytes / MIB:.0f}"
            cells = (f"{size.images:,}", f"{size.seconds:.2f}", f"{size.whole_seconds:.2f}", peak, files, stored)
            rows.append("".join(f"{cell:>13}" for cell in cells))
        return "\n".join(rows)


MAX_PATCHES = 20_000  # the vocabularies are fitted on


def run_sampled_fit_benchmark(
    *,
    images: int | Sequence[int] = (25_000, 50_000),
    channels: int = 64,
    patches: int = 16,
    words: int = 16,
    max_pca: int = 2000,
    pca_sample: int = 1000,
    max_pseudo: int = 1000,
    progress: bool | Progress | None = None,
) -> SampledFitBenchmark:
    """Fit made-up maps of each size with a sampled PCA; tokens are made as they are read and not counted."""
    sizes = sorted([images] if isinstance(images, int) else images)
    if not sizes or sizes[0] <= max_pca:
        raise BadSpec(f"images={tuple(sizes)} with max_pca={max_pca}: the PCA is sampled above max_pca images only")
    spec = HeadSpec(words=words, max_pca=max_pca, pca_sample=pca_sample, max_pseudo=max_pseudo, max_patches=MAX_PATCHES)
    fit(lazy_tokens(WARM_UP, patches, channels)[0], HeadSpec(words=4))  # thread pools and page tables
    bar = as_progress(progress)
    done = [
        fit_size(count, patches, channels, spec, floor=False)
        for count in track_progress(sizes, len(sizes), "sizes", bar)
    ]
    return SampledFitBenchmark(
        patches=patches,
        channels=channels,
        words=words,
        pca_sample=pca_sample,
        max_pseudo=max_pseudo,
        threads=thread_count(),
        sizes=tuple(done),
        machine=f"{os.cpu_count()} cores, {platform.machine()}",
    )
