"""Time fits of maps of several sizes, whole and sampled."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from studies.speed.measure import Bar, Line, compared, measure, resident, thread_count
from studies.speed.synthetic import lazy_tokens
from tfa.core.arrays import Spill, backend_for, l2_normalize, release
from tfa.core.progress import Progress, as_progress, track_progress
from tfa.errors import BadSpec
from tfa.method.branch import DatabaseSplit
from tfa.method.carriers import SIGMAS, KernelTerm, carrier_terms
from tfa.method.head import Head
from tfa.method.residuals import ASSIGNMENT_KINDS, HARD, Described, describe_residuals
from tfa.method.scorer import Scorer
from tfa.method.second_order import DIRECTION_COUNT, descriptor_width
from tfa.method.second_order_head import limit_pseudo_queries, measure_spread
from tfa.method.second_order_space import SecondOrderSpace, fit_space
from tfa.method.vocabulary import fit_vocabularies, grid_patches, sample_patches
from tfa.pipeline import decide_head, fit, fit_spectra
from tfa.types import HeadSpec

FIT = Bar(1.3)
_WARM_UP = 8  # images
_GRAMS, SPECTRA = "six Gram matrices", "six eigendecompositions"


@dataclass(frozen=True)
class FitSize:
    """A fit at one size."""

    images: int
    words_seconds: float  # drawing patches, three vocabularies
    describe_seconds: float  # six descriptor sets
    seconds: float  # after the descriptors: products, spectra, evidence, decisions, head
    floor_parts: Mapping[str, float]  # empty if the floor was not timed
    peak_bytes: int | None  # peak resident memory of the process after the descriptors
    whole_peak_bytes: int | None  # peak from the tokens on
    descriptor_bytes: int  # six sets
    spilled_bytes: int  # in mapped files after the fit, including descriptors
    zero_blocks: float  # share of hard descriptor blocks without patches
    decisions: dict[str, Any]

    @property
    def whole_seconds(self) -> float:
        return self.words_seconds + self.describe_seconds + self.seconds

    @property
    def floor(self) -> float | None:
        return sum(self.floor_parts.values()) if self.floor_parts else None

    @property
    def ratio(self) -> float | None:
        """Time after the descriptors over the floor."""
        return self.seconds / self.floor if self.floor else None

    @property
    def whole_ratio(self) -> float | None:
        """Time of the whole fit over its words, its descriptors and the floor."""
        return self.whole_seconds / (self.whole_seconds - self.seconds + self.floor) if self.floor else None

    def to_dict(self) -> dict[str, Any]:
        derived = ("whole_seconds", "floor", "ratio", "whole_ratio")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


@dataclass(frozen=True)
class FitGrowthBenchmark:
    patches: int
    channels: int
    words: int
    threads: int
    sizes: tuple[FitSize, ...]
    machine: str

    @property
    def exponents(self) -> dict[str, float | None]:
        """Exponent b of time ∝ N^b, by least squares of logarithms; None for a single size."""
        images = [size.images for size in self.sizes]
        floors = [size.floor for size in self.sizes if size.floor is not None]
        return {
            "from descriptors": exponent(images, [size.seconds for size in self.sizes]),
            "whole": exponent(images, [size.whole_seconds for size in self.sizes]),
            "floor": exponent(images, floors) if len(floors) == len(images) else None,
        }

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "sizes": [size.to_dict() for size in self.sizes], "exponents": self.exponents}

    def lines(self) -> list[Line]:
        lines = []
        for size in self.sizes:
            what, at, on = f"{size.images:,} images, from the descriptors on", size.peak_bytes, size.spilled_bytes
            if size.floor is None:
                lines.append(Line(what, size.seconds, peak_bytes=at, disk_bytes=on))
            else:
                lines.append(compared(what, size.seconds, size.floor, FIT, peak_bytes=at, disk_bytes=on))
            lines.append(
                Line(f"{size.images:,} images, whole fit", size.whole_seconds, peak_bytes=size.whole_peak_bytes)
            )
        for name, value in self.exponents.items():
            if value is not None:
                lines.append(Line(f"growth exponent, {name}", note=f"time ∝ N^{value:.2f}"))
        return lines

    def __str__(self) -> str:
        head = f"{self.patches} patches × {self.channels} channels, {self.words} words, {self.threads} threads"
        columns = ("images", "words", "descriptors", "the rest", "floor", "ratio", "whole", "peak GiB", "files GiB")
        rows = [f"{head}, {self.machine}", "", "".join(f"{name:>12}" for name in columns)]
        for size in self.sizes:
            numbers = (size.words_seconds, size.describe_seconds, size.seconds, size.floor, size.ratio)
            rest = (size.whole_seconds, _gib(size.whole_peak_bytes), _gib(size.spilled_bytes))
            rows.append(f"{size.images:>12,}" + "".join(_cell(number) for number in (*numbers, *rest)))
        grown = [f"{name} {value:.2f}" for name, value in self.exponents.items() if value is not None]
        return "\n".join([*rows, "", f"growth exponent: {', '.join(grown) or 'needs two sizes'}"])


def _cell(number: float | None) -> str:
    return f"{'–' if number is None else f'{number:.2f}':>12}"


def _gib(count: int | None) -> float | None:
    return None if count is None else count / 2**30


def exponent(images: Sequence[int], seconds: Sequence[float]) -> float | None:
    if len(set(images)) < 2:
        return None
    x, y = np.log(np.asarray(images, np.float64)), np.log(np.asarray(seconds, np.float64))
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())


def run_fit_growth_benchmark(
    *,
    sizes: Sequence[int] = (600, 2000, 5000),
    patches: int = 529,
    channels: int = 768,
    spec: HeadSpec | None = None,
    floor: bool = True,
    repeats: int = 1,
    progress: bool | Progress | None = None,
) -> FitGrowthBenchmark:
    """Time the stages of `fit` on synthetic tokens of each size, then Gram matrices and spectra separately.

    The shortest of `repeats` alternating runs counts. Making the tokens is not counted. `floor=False` skips the floor,
    for sizes where only completion matters.
    """
    spec, bar = spec or HeadSpec(), as_progress(progress)
    if not sizes or min(sizes) < 2 or repeats < 1:
        raise BadSpec(
            f"sizes={tuple(sizes)}, repeats={repeats}; sizes must be at least 2 images and repeats at least 1"
        )
    fit(lazy_tokens(_WARM_UP, patches, channels)[0], HeadSpec(words=4))  # warm up thread pools and page tables
    done = [
        fit_size(images, patches, channels, spec, floor=floor, repeats=repeats)
        for images in track_progress(sorted(sizes), len(sizes), "sizes", bar)
    ]
    machine = f"{os.cpu_count()} cores, {platform.machine()}"
    return FitGrowthBenchmark(patches, channels, spec.words, thread_count(), tuple(done), machine)


def fit_size(
    images: int, patches: int, channels: int, spec: HeadSpec, *, floor: bool = True, repeats: int = 1
) -> FitSize:
    """Run the stages of one fit as `pipeline.fit` calls them."""
    tokens, maker = lazy_tokens(images, patches, channels)
    backend, spill, peaks = backend_for("cpu"), Spill(), []

    def staged(call: Any) -> tuple[Any, float, int | None]:
        maker.seconds = 0.0
        measured = measure(call)
        peaks.append(resident("VmHWM"))
        return measured.result, measured.seconds - maker.seconds, peaks[-1]

    def words() -> Any:
        return fit_vocabularies(sample_patches(tokens, spec.max_patches, normalize=grid_patches), spec.words, backend)

    vocabularies, words_seconds, _ = staged(words)
    centers = [vocabulary.centers for vocabulary in vocabularies]
    described, describe_seconds, _ = staged(
        lambda: describe_residuals(tokens, centers, ASSIGNMENT_KINDS, spec.temperature, backend, spill=spill)
    )

    def rest() -> tuple[dict[str, Any], int]:
        head = decide_head(fit_spectra(described, vocabularies, spec, tokens.cls, backend, Spill()), backend)
        return head.decisions.to_dict(), spilled_bytes(head)  # the head is released here

    seconds, parts, peak = math.inf, {_GRAMS: math.inf, SPECTRA: math.inf} if floor else {}, 0
    for _ in range(repeats):
        (decisions, spilled), took, most = staged(rest)
        seconds, peak = min(seconds, took), max(peak, most or 0)
        if floor:
            parts = {name: min(parts[name], value) for name, value in geometry_floor(described).items()}
    return FitSize(
        images=images,
        words_seconds=words_seconds,
        describe_seconds=describe_seconds,
        seconds=seconds,
        floor_parts=parts,
        peak_bytes=peak or None,
        whole_peak_bytes=max((most for most in peaks if most is not None), default=None),
        descriptor_bytes=sum(one.descriptors.nbytes for one in described.values()),
        spilled_bytes=spilled,
        zero_blocks=float(np.mean([(described[HARD, s].mass == 0).mean() for s in range(len(centers))])),
        decisions=decisions,
    )


def geometry_floor(described: Mapping[tuple[str, int], Described]) -> dict[str, float]:
    """Return seconds of `V Vᵀ` and its eigendecomposition, over all sets; casting to float64 is not counted."""
    seconds = {_GRAMS: 0.0, SPECTRA: 0.0}
    for one in described.values():
        wide = np.array(one.descriptors, np.float64)
        release(one.descriptors)
        started = time.perf_counter()
        gram = wide @ wide.T
        seconds[_GRAMS] += time.perf_counter() - started
        del wide
        started = time.perf_counter()
        np.linalg.eigh(gram)
        seconds[SPECTRA] += time.perf_counter() - started
    return seconds


def spilled_bytes(head: Head) -> int:
    """Return bytes of the mapped files that a fitted head uses."""
    arrays: list[np.ndarray | None] = []
    for branch in head.branches.values():
        arrays += [branch.described.descriptors, branch.products, branch.geometry.vectors, branch.projected]
    for scorer in head.scorers.values():
        arrays += [chunk for part in scorer.terms for chunk in part.gallery.chunks if isinstance(chunk, np.ndarray)]
    return sum({id(array): array.nbytes for array in arrays if isinstance(array, np.memmap)}.values())


_MIB = 2**20


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
        """Exponent b of time ∝ N^b after the descriptors; a sampled fit grows linearly with the map."""
        return exponent([size.images for size in self.sizes], [size.seconds for size in self.sizes])

    @property
    def bytes_per_image(self) -> float | None:
        """Peak resident bytes per additional image, from the smallest size to the largest."""
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
            peak = "–" if size.peak_bytes is None else f"{size.peak_bytes / _MIB:.0f}"
            files, stored = f"{size.spilled_bytes / _MIB:.0f}", f"{size.descriptor_bytes / _MIB:.0f}"
            cells = (f"{size.images:,}", f"{size.seconds:.2f}", f"{size.whole_seconds:.2f}", peak, files, stored)
            rows.append("".join(f"{cell:>13}" for cell in cells))
        return "\n".join(rows)


MAX_PATCHES = 20_000  # patches used to fit the vocabularies


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
    """Fit synthetic maps of each size with a sampled PCA; tokens are made lazily and not counted."""
    sizes = sorted([images] if isinstance(images, int) else images)
    if not sizes or sizes[0] <= max_pca:
        raise BadSpec(f"images={tuple(sizes)} with max_pca={max_pca}: the PCA is sampled only above max_pca images")
    spec = HeadSpec(words=words, max_pca=max_pca, pca_sample=pca_sample, max_pseudo=max_pseudo, max_patches=MAX_PATCHES)
    fit(lazy_tokens(_WARM_UP, patches, channels)[0], HeadSpec(words=4))  # warm up thread pools and page tables
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


_LINEAR = Bar(1.0)  # for an exponent
CARRIER = "tempered"
BLOCK = 1024  # descriptors made per step
_SPACE_WARM_UP = 50  # images


@dataclass(frozen=True)
class SpaceSize:
    """One construction of a map of one size."""

    images: int
    form: str  # form of the PCA
    rank: int
    seconds: float
    peak_bytes: int | None  # peak resident memory of the process
    descriptor_bytes: int  # in a mapped file


@dataclass(frozen=True)
class SecondOrderGrowth:
    directions: int
    threads: int
    sizes: tuple[SpaceSize, ...]
    machine: str

    @property
    def exponents(self) -> list[tuple[int, int, float]]:
        """Exponent b of time ∝ N^b from one size to the next."""
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
            bar = _LINEAR if start > beyond else None
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
    """Return unit rows `(m, D)` that share most of their length, with a falling spectrum, made block by block."""
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
    """Build one construction from its descriptors: PCA, coordinates, spreads, rows of the head."""
    spec, spill = HeadSpec(), Spill()
    split = DatabaseSplit.of(len(descriptors), limit_pseudo_queries(spec))
    space = fit_space(descriptors, directions, split, spec.max_rank, backend_for("cpu"), spill)
    sigmas = {
        name: measure_spread(space.pseudo_scores([KernelTerm(1.0, sigma.gamma)]), space)
        for name, sigma in SIGMAS.items()
    }
    kernel = carrier_terms(CARRIER, sigmas=sigmas)
    return space, space.scorer(kernel, "float32", spill)


def run_second_order_growth(
    *,
    sizes: Sequence[int] = (5000, 20_000, 50_000),
    directions: int = DIRECTION_COUNT,
    progress: bool | Progress | None = None,
) -> SecondOrderGrowth:
    """Time one construction at each size; making its descriptors is not counted."""
    if not sizes or min(sizes) < 3 or directions < 1:
        raise BadSpec(
            f"sizes={tuple(sizes)}, directions={directions}; sizes must be at least 3 and directions at least 1"
        )
    onto, width = np.eye(directions), descriptor_width(directions)
    head_of(made_descriptors(_SPACE_WARM_UP, width, Spill()), onto)  # warm up thread pools and page tables
    done = []
    for images in track_progress(sorted(sizes), len(sizes), "sizes", as_progress(progress)):
        rows = made_descriptors(images, width, Spill())
        measured = measure(lambda rows=rows: len(head_of(rows, onto)[0].side.eigenvalues))  # type: ignore[misc]
        form = "dual" if images <= width else "covariance"
        done.append(SpaceSize(images, form, measured.result, measured.seconds, resident("VmHWM"), rows.nbytes))
    machine = f"{os.cpu_count()} cores, {platform.machine()}"
    return SecondOrderGrowth(directions, thread_count(), tuple(done), machine)
