"""Vocabularies: K visual words fitted to the database's own patches, once for each construction.

Lloyd k-means on row-normalised patches, with the result of the plain form (`reference.kmeans`). The three
constructions share one sample and one matrix product over it an iteration (`lloyd`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.base.backend import Backend, l2_normalize, to_numpy
from tfa.base.half import NOT_FINITE, widen
from tfa.base.progress import Progress, SilentProgress
from tfa.base.tokens import Tokens
from tfa.errors import BadSpec, BadTokens
from tfa.method.kmeans import Lloyd, ProductThreads

CONSTRUCTIONS = (0, 1, 2)
MAX_KMEANS_ITERATIONS = 100


@dataclass(frozen=True)
class Vocabulary:
    """The words of one construction, as residuals use them."""

    centers: np.ndarray  # k d
    seed: int | None  # None: supplied from outside
    iterations: int
    distortion: float  # mean squared distance of a patch to its word, before the words were normalised
    data_used: str = "database"


def unit_patches(patches: np.ndarray, out: np.ndarray) -> bool:
    """Row-normalised `patches` in `out`, whatever their dtypes, L2(0) = 0; False if a value is not finite."""
    widen(patches, out)
    lengths = np.sqrt(np.vecdot(out, out))
    if not (lengths < NOT_FINITE).all() and not np.isfinite(patches).all():
        return False
    out /= np.where(lengths > 0, lengths, 1)[:, None]
    return True


@dataclass(frozen=True)
class DrawnPatches:
    """Which patches are the sample: at most `max_patches`, uniform without replacement over the patches of all images.

    Sorted, so the drawn patches of image `i` are those from `bounds[i]` to `bounds[i + 1]`.
    """

    tokens: Tokens
    chosen: np.ndarray  # t: numbers among all patches
    bounds: np.ndarray  # b + 1
    firsts: np.ndarray  # b + 1: the number of each image's first patch

    @classmethod
    def draw(cls, tokens: Tokens, max_patches: int) -> DrawnPatches:
        firsts = np.concatenate([[0], np.cumsum(tokens.counts)])
        total = int(firsts[-1])
        if total == 0:
            raise BadTokens("no patches to fit to; give at least one image")
        if total <= max_patches:
            chosen = np.arange(total)
        else:
            chosen = np.sort(np.random.default_rng(0).choice(total, max_patches, replace=False, shuffle=False))
        return cls(tokens, chosen, np.searchsorted(chosen, firsts), firsts)

    @property
    def counts(self) -> np.ndarray:
        """Drawn patches of each image."""
        return np.diff(self.bounds)

    def load(self, index: int, out: np.ndarray) -> None:
        """The drawn patches of one image, row-normalised, into `out`."""
        image = self.tokens.patches[index]
        drawn = self.chosen[self.bounds[index] : self.bounds[index + 1]] - self.firsts[index]
        if not unit_patches(image if len(drawn) == len(image) else image[drawn], out):
            self.tokens.load(index, index + 1)  # says which image has values that are not finite


def sample_patches(tokens: Tokens, max_patches: int, dtype: str = "float32") -> np.ndarray:
    """Row-normalised patches `t d`, at most `max_patches`, uniform without replacement over all patches.

    One image is loaded at a time, so the tokens themselves may be far larger than memory.
    """
    drawn = DrawnPatches.draw(tokens, max_patches)
    patches = np.empty((len(drawn.chosen), tokens.channels), dtype)
    for index in np.flatnonzero(drawn.counts).tolist():
        drawn.load(index, patches[drawn.bounds[index] : drawn.bounds[index + 1]])
    return patches


def fit_vocabularies(
    patches: np.ndarray,
    words: int,
    backend: Backend,
    *,
    seeds: tuple[int, ...] = CONSTRUCTIONS,
    progress: Progress | None = None,
) -> list[Vocabulary]:
    """One vocabulary per seed from row-normalised patches `t d`."""
    x = backend.put(patches)
    with (
        ProductThreads() as threads,
        (progress or SilentProgress()).task("vocabularies", MAX_KMEANS_ITERATIONS, "iterations") as task,
    ):
        lloyd = Lloyd(x, words, seeds, backend, threads)
        for _ in range(MAX_KMEANS_ITERATIONS):
            if not lloyd.step():
                break
            task.advance()
    return [
        Vocabulary(l2_normalize(lloyd.centers[s].astype(patches.dtype)), seed, lloyd.iterations[s], lloyd.distortion[s])
        for s, seed in enumerate(seeds)
    ]


def wrap_vocabularies(centers: Any, channels: int) -> list[Vocabulary]:
    """Words supplied from outside, one array `k d` for each construction, used as they are."""
    arrays = [np.asarray(to_numpy(center)) for center in centers]
    shapes = {array.shape for array in arrays}
    if len(arrays) != len(CONSTRUCTIONS) or len(shapes) != 1 or arrays[0].ndim != 2:
        raise BadSpec(f"centers must be three arrays (words, channels) of one shape, got {[a.shape for a in arrays]}")
    if arrays[0].shape[1] != channels:
        raise BadSpec(f"centers have {arrays[0].shape[1]} channels, the tokens {channels}")
    if not all(np.isfinite(array).all() for array in arrays):
        raise BadSpec("centers have non-finite values")
    return [Vocabulary(array, None, 0, float("nan"), data_used="nothing") for array in arrays]
