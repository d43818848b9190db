"""`tfa bench fit`: the time of a whole fit over the time of its unavoidable parts, each called on its own."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.arrays import backend_for
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.method.head import Head
from tfa.method.residuals import ASSIGNMENT_KINDS, describe_residuals
from tfa.method.spectrum import gram_matrix
from tfa.method.vocabulary import fit_vocabularies, sample_patches
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
    """Tokens with structure: images of recurring things, a share of them particular to the place."""
    rng = np.random.default_rng(0)
    things = rng.normal(size=(400, channels)).astype(np.float32)
    tokens = np.empty((images, patches, channels), np.float16)
    for image in range(images):
        own = things[rng.integers(0, len(things), 12)]
        tokens[image] = own[rng.integers(0, len(own), patches)] + rng.normal(0, 0.7, (patches, channels))
    return Tokens(tokens, tokens.mean(axis=1, dtype=np.float32))


def tokens_of_photos(photos: Path, progress: bool | Progress | None = None) -> Tokens:
    """Tokens of real photos by the default encoder, in memory: disks are not timed."""
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
    """Time `fit`, then k-means, the six descriptor sets, six Gram matrices and six eigendecompositions alone."""
    tokens = synthetic_tokens(images, patches, channels) if photos is None else tokens_of_photos(photos, progress)
    fit(tokens.select(slice(0, min(len(tokens), 8))), HeadSpec(words=4))  # thread pools and page tables warm up
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

    patches = sample_patches(tokens, spec.max_patches)
    vocabularies = timed("k-means of three vocabularies", fit_vocabularies, patches, spec.words, backend)
    for vocabulary in vocabularies:
        for assignment in ASSIGNMENT_KINDS:
            alone = (tokens, [vocabulary.centers], [assignment], spec.temperature, backend)
            described = np.array(timed("six descriptor passes", describe_residuals, *alone)[assignment, 0].descriptors)
            gram = timed("six Gram matrices, float64", gram_matrix, described, backend)
            timed("six eigendecompositions, float64", np.linalg.eigh, gram)
    return parts
