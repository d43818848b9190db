"""Vocabularies: K visual words fitted to the database's own patches, once for each construction.

Lloyd k-means on row-normalised patches. The three constructions share one sample and one pass over it an
iteration; only patches that changed their word are moved between sums, so late iterations cost little more
than the distances. Both leave the result as plain Lloyd gives it (`reference.kmeans`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from tfa.arrays import Array, Backend, l2, to_numpy
from tfa.errors import BadSpec, BadTokens
from tfa.progress import Progress, SilentProgress
from tfa.tokens import Tokens

CONSTRUCTIONS = (0, 1, 2)
MAX_ITERATIONS = 100
STOP_DECREASE = 1e-4  # ours: stop when the mean squared distance falls by less than this share of itself
BLOCK = 8192  # patches whose similarities to all words fit the second-level cache


@dataclass(frozen=True)
class Vocabulary:
    """The words of one construction, as residuals use them."""

    centers: np.ndarray  # k d
    seed: int | None  # None: supplied from outside
    iterations: int
    distortion: float  # mean squared distance of a patch to its word, before the words were normalised
    saw: str = "database"


def sample_patches(tokens: Tokens, max_patches: int, dtype: str = "float32") -> np.ndarray:
    """Row-normalised patches `t d`, at most `max_patches`, uniform without replacement over all patches.

    One image is loaded at a time, so the tokens themselves may be far larger than memory.
    """
    counts = tokens.counts
    total = int(counts.sum())
    if total == 0:
        raise BadTokens("no patches to fit a vocabulary on; give at least one image")
    if total <= max_patches:
        chosen = np.arange(total)
    else:
        chosen = np.sort(np.random.default_rng(0).choice(total, max_patches, replace=False, shuffle=False))
    bounds = np.searchsorted(chosen, np.concatenate([[0], np.cumsum(counts)]))
    patches = np.empty((len(chosen), tokens.channels), dtype)
    first = 0
    for index, count in enumerate(counts):
        low, high = bounds[index], bounds[index + 1]
        if low < high:
            image = tokens.load(index, index + 1)[0]
            patches[low:high] = l2(image[chosen[low:high] - first].astype(dtype))
        first += int(count)
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
    centers = _start(x, words, seeds)
    lloyd = _Lloyd(x, centers, backend)
    with (progress or SilentProgress()).task("vocabularies", MAX_ITERATIONS, "iterations") as task:
        for _ in range(MAX_ITERATIONS):
            if not lloyd.step():
                break
            task.advance()
    return [
        Vocabulary(
            centers=to_numpy(l2(xp_cast(lloyd.centers[s], x))),
            seed=seed,
            iterations=lloyd.iterations[s],
            distortion=lloyd.distortion[s],
        )
        for s, seed in enumerate(seeds)
    ]


def given_vocabularies(centers: Any, channels: int) -> list[Vocabulary]:
    """Words supplied from outside, one array `k d` for each construction, used as they are."""
    arrays = [np.asarray(to_numpy(center)) for center in centers]
    shapes = {array.shape for array in arrays}
    if len(arrays) != len(CONSTRUCTIONS) or len(shapes) != 1 or arrays[0].ndim != 2:
        raise BadSpec(f"centers must be three arrays (words, channels) of one shape, got {[a.shape for a in arrays]}")
    if arrays[0].shape[1] != channels:
        raise BadSpec(f"centers have {arrays[0].shape[1]} channels, the tokens {channels}")
    if not all(np.isfinite(array).all() for array in arrays):
        raise BadSpec("centers have non-finite values")
    return [Vocabulary(array, None, 0, float("nan"), saw="nothing") for array in arrays]


def xp_cast(values: Array, like: Array) -> Array:
    return array_namespace(like).astype(values, like.dtype)


def squared_norms(x: Array) -> np.ndarray:
    """‖x‖² of each row in float64, in blocks: `x * x` at once would be a second copy of the sample."""
    xp = array_namespace(x)
    blocks = [x[low : low + BLOCK, :] for low in range(0, x.shape[0], BLOCK)]
    return np.concatenate([to_numpy(xp.sum(block * block, axis=1)) for block in blocks]).astype(np.float64)


def _start(x: Array, words: int, seeds: tuple[int, ...]) -> Array:
    """k-means++: each next word is a patch drawn with probability ∝ squared distance to the words so far."""
    xp = array_namespace(x)
    rngs = [np.random.default_rng(seed) for seed in seeds]
    squared = squared_norms(x)
    drawn = [[int(rng.integers(len(squared)))] for rng in rngs]
    nearest = np.full((len(seeds), len(squared)), np.inf)
    for _ in range(words - 1):
        newest = xp.stack([x[d[-1]] for d in drawn])  # s d: one matrix product serves all constructions
        dots = to_numpy(x @ newest.T).T.astype(np.float64)
        for s, rng in enumerate(rngs):
            distance = squared - 2 * dots[s] + squared[drawn[s][-1]]
            np.minimum(nearest[s], distance.clip(min=0), out=nearest[s])  # rounding may give −1e-8
            nearest[s, drawn[s][-1]] = 0
            mass = np.cumsum(nearest[s])
            # Fewer distinct patches than words: no mass is left, the words repeat.
            at = np.searchsorted(mass, rng.random() * mass[-1], side="right") if mass[-1] > 0 else drawn[s][-1]
            drawn[s].append(min(int(at), len(squared) - 1))
    return xp.stack([xp.stack([x[i] for i in d]) for d in drawn])  # s k d


class _Lloyd:
    """Lloyd iterations of several constructions over the same patches."""

    def __init__(self, x: Array, centers: Array, backend: Backend) -> None:
        self.x, self.xp, self.put = x, array_namespace(x), backend.put
        self.constructions, self.words, self.channels = centers.shape
        self.centers = self.xp.astype(centers, self.xp.float64)
        self.sums = self.xp.zeros_like(self.centers)
        self.counts = np.zeros((self.constructions, self.words), np.int64)
        # Label `words` means "none yet": the first iteration adds every patch and takes none away.
        self.labels = np.full((self.constructions, x.shape[0]), self.words, np.int64)
        self.squared = squared_norms(x)
        self.distances = np.empty((self.constructions, x.shape[0]))
        self.distortion = [float("inf")] * self.constructions
        self.iterations = [0] * self.constructions
        self.active = list(range(self.constructions))

    def step(self) -> bool:
        """One assignment and one update of every construction still moving; False when none is."""
        self._assign()
        still = []
        for s in self.active:
            self._update(s)
            before, after = self.distortion[s], float(self.distances[s].mean())
            self.distortion[s] = after
            self.iterations[s] += 1
            if np.isinf(before) or before - after > STOP_DECREASE * before:
                still.append(s)
        self.active = still
        return bool(still)

    def _assign(self) -> None:
        xp, x = self.xp, self.x
        stacked = xp.astype(xp.stack([self.centers[s] for s in self.active]), x.dtype)
        flat = xp.reshape(stacked, (-1, self.channels))
        # ‖x − c‖² = ‖x‖² − 2(⟨x, c⟩ − ‖c‖²/2): the nearest word has the largest bracket.
        half = xp.sum(flat * flat, axis=1) / 2
        for low in range(0, x.shape[0], BLOCK):
            block = x[low : low + BLOCK, :]
            closeness = xp.reshape(block @ flat.T - half, (block.shape[0], len(self.active), self.words))
            nearest = xp.argmax(closeness, axis=2)
            best = to_numpy(xp.take_along_axis(closeness, nearest[:, :, None], axis=2)[:, :, 0]).astype(np.float64)
            nearest = to_numpy(nearest)
            for column, s in enumerate(self.active):
                rows = slice(low, low + block.shape[0])
                self.distances[s, rows] = (self.squared[rows] - 2 * best[:, column]).clip(min=0)
                self._move(s, low, block, nearest[:, column])

    def _move(self, s: int, low: int, block: Array, labels: np.ndarray) -> None:
        """Take the patches of this block that changed their word from the old sum to the new one."""
        old = self.labels[s, low : low + len(labels)]
        changed = np.flatnonzero(old != labels)
        if not len(changed):
            return
        xp = self.xp
        kinds = np.arange(self.words)
        shift = (labels[changed, None] == kinds).astype(np.int8) - (old[changed, None] == kinds).astype(np.int8)
        rows = block if len(changed) == block.shape[0] else xp.take(block, self.put(changed), axis=0)
        self.sums[s] += xp.astype(xp.astype(self.put(shift), block.dtype).T @ rows, xp.float64)
        self.counts[s] += shift.sum(axis=0, dtype=np.int64)
        self.labels[s, low : low + len(labels)] = labels

    def _update(self, s: int) -> None:
        counts = self.put(np.maximum(self.counts[s], 1)[:, None], "float64")
        self.centers[s] = self.sums[s] / counts
        empty = np.flatnonzero(self.counts[s] == 0)
        if len(empty):
            # Ours: an emptied word restarts at the patch farthest from its own word (the next one, the next).
            farthest = np.argsort(-self.distances[s], kind="stable")[: len(empty)]
            for word, patch in zip(empty, farthest, strict=False):
                self.centers[s, int(word)] = self.xp.astype(self.x[int(patch)], self.xp.float64)
