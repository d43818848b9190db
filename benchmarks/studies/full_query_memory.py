"""Measure the peak memory of TFA-FullQ on scaled-down copies of Nordland (27,592 × 27,592 images), and extrapolate it.

A copy has fewer images and queries; descriptors, rank, pseudo queries, subsamples and block sizes shrink in the same
proportion, so every array shrinks with the square of the size. Peaks are those of Python's allocations: arrays on disk
are not counted, because the system can drop their pages.
"""

from __future__ import annotations

import argparse
import sys
import tracemalloc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfa import pipeline
from tfa.cli.console import print_text
from tfa.core import arrays
from tfa.core.tokens import Tokens
from tfa.method import branch, evidence, pseudo_queries, spectrum, target
from tfa.types import HeadSpec

IMAGES, CHANNELS, WORDS = 27_592, 768, 64
# Constants that bound blocks, subsamples and resamples, by module, with the power of their scale. LARGE chooses the
# code of large maps, SPILL_BYTES the arrays on disk.
SCALED: tuple[tuple[Any, str, int], ...] = (
    (spectrum, "IMAGE_BLOCK", 1),
    (target, "IMAGE_BLOCK", 1),
    (spectrum, "COLUMN_BLOCK", 1),
    (spectrum, "LARGE", 1),
    (branch, "_ROW_BLOCK", 1),
    (pseudo_queries, "_GALLERY_BLOCK", 1),
    (evidence, "_LARGEST", 1),
    (evidence, "_RESAMPLES", 1),
    (arrays, "SPILL_BYTES", 2),
)


def measure(images: int) -> dict[str, float]:
    """Return the peak megabytes of fitting a map of random tokens, and of calibrating it on as many queries."""
    scale, spec = images / IMAGES, HeadSpec.paper()
    words = 8
    shape = (images, 6, max(2, round(scale * CHANNELS * WORDS / words)))
    rng = np.random.default_rng(0)
    database = rng.normal(size=shape).astype(np.float32)
    queries = database + rng.normal(0, 0.7, shape).astype(np.float32)
    spec = HeadSpec(
        words=words, max_patches=images, max_pca=images, max_rank=round(scale * spec.max_rank),
        max_pseudo=round(scale * spec.max_pseudo),
    )  # fmt: skip
    released = [(module, name, getattr(module, name)) for module, name, _ in SCALED]
    try:
        for module, name, power in SCALED:
            setattr(module, name, max(2, round(scale**power * getattr(module, name))))
        tracemalloc.start()
        head = pipeline.fit(Tokens(database, database.mean(axis=1)), spec)
        fit = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        pipeline.calibrate(head, Tokens(queries, queries.mean(axis=1)))
        return {"fit": fit / 1e6, "calibrate": tracemalloc.get_traced_memory()[1] / 1e6}
    finally:
        tracemalloc.stop()
        for module, name, value in released:
            setattr(module, name, value)


def extrapolate(measured: Mapping[int, float]) -> tuple[float, float]:
    """Fit megabytes = a + b · images² by least squares; return those of Nordland and the largest relative error."""
    sizes, peaks = np.array(list(measured)), np.array(list(measured.values()))
    factors = np.stack([np.ones(len(sizes)), (sizes / IMAGES) ** 2], axis=1)
    weights = np.linalg.lstsq(factors, peaks, rcond=None)[0]
    return float(weights.sum()), float(np.abs(factors @ weights / peaks - 1).max())


def main(argv: Sequence[str] | None = None) -> int:
    """Print the peaks of each copy, then the extrapolation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 2000, 3000], help="images of the copies")
    sizes = parser.parse_args(argv).sizes
    measure(60)  # load modules, which do not count
    measured = {images: measure(images) for images in sizes}
    for images, peaks in measured.items():
        print_text(f"{images:,} images: fit {peaks['fit']:,.1f} MB, calibrate {peaks['calibrate']:,.1f} MB\n")
    for step in ("fit", "calibrate"):
        nordland, error = extrapolate({images: peaks[step] for images, peaks in measured.items()})
        print_text(f"{IMAGES:,} images, {step}: {nordland / 1e3:.1f} GB (largest error of the fit {error:.1%})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
