"""Visual vocabularies: patches sampled with a fixed seed, k-means++ starts and Lloyd iterations.

One matrix product per iteration serves the k-means of all constructions over the same patches:

    label(x) = argmin_k ‖x − c_k‖² = argmax_k ⟨x, c_k⟩ − ‖c_k‖²/2       product with all words still moving
    S_k = Σ x,  n_k = #{x : label(x) = k}                               updated by the patches that changed their word
    Σ_x ‖x − c_label‖² = Σ ‖x‖² − 2 Σ_k ⟨S_k, c_k⟩ + Σ_k n_k ‖c_k‖²     without distances of single patches

The start (k-means++) measures every patch against every first word, which gives the first assignment.

Unit patches, and the words they are compared with, are rounded to multiples of 2⁻¹¹. Then every product, norm and sum
above is a multiple of 2⁻²³ (of 2⁻¹¹ for S_k) that its dtype holds exactly: |⟨x, c⟩| ≤ ‖x‖ ‖c‖ bounds each partial sum
by 2, which float32 counts in 2²⁴ steps. So the order of additions does not matter, and neither do processor, device,
library, block size and number of threads. The means S_k / n_k are rounded only to compare patches with them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # loads its parts on first use

from tfa.core.arrays import (
    NOT_FINITE,
    ONE_THREAD_PRODUCTS,
    Array,
    Backend,
    array_namespace,
    count_cores,
    start_threads,
    to_numpy,
    widen,
)
from tfa.core.progress import Progress, SilentProgress
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec, BadTokens

# --- kmeans ---------------------------------------------------------------------------------------

GRID = 2.0**11  # grid steps in 1
STOP_DECREASE = 1e-4  # stop if the mean squared distance decreases by less than this share
# Patches per block. On a CPU the similarities of a block stay in the second-level cache; a GPU needs larger blocks.
ROWS, DEVICE_ROWS = 1024, 65536
BLOCKS_A_TURN = 8  # blocks per task of a thread
START_ROWS = 8192  # rows whose distances to the drawn words are summed together
MOVED_ROWS = 512  # patches summed in their own dtype before float64


class ProductThreads:
    """A thread pool in which each thread runs its own one-thread matrix products.

    Multithreaded products wait for each other, and round differently than those of one thread.
    """

    def __init__(self, count: int | None = None) -> None:
        wanted = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or ""
        cores = count_cores()
        self.count = count or (min(int(wanted), cores) if wanted.isdigit() and int(wanted) > 0 else cores)
        self.pool = start_threads(self.count, "tfa-words") if self.count > 1 else None

    def each(self, call: Callable[[Any], None], parts: Sequence[Any]) -> None:
        list(map(call, parts) if self.pool is None or len(parts) < 2 else self.pool.map(call, parts))

    def __enter__(self) -> ProductThreads:
        ONE_THREAD_PRODUCTS.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        ONE_THREAD_PRODUCTS.__exit__(*error)
        if self.pool is not None:
            self.pool.shutdown()


def squared_norms(x: Array, threads: ProductThreads) -> np.ndarray:
    """Return ‖x‖² of each row, float64."""
    if not isinstance(x, np.ndarray):
        xp = array_namespace(x)  # in blocks, because `x * x` would copy the whole sample
        blocks = [x[low : low + DEVICE_ROWS, :] for low in range(0, x.shape[0], DEVICE_ROWS)]
        return np.concatenate([to_numpy(xp.sum(block * block, axis=1)) for block in blocks]).astype(np.float64)
    squared = np.empty(len(x))

    def block(low: int) -> None:
        squared[low : low + START_ROWS] = np.vecdot(x[low : low + START_ROWS], x[low : low + START_ROWS])

    threads.each(block, range(0, len(x), START_ROWS))
    return squared


def round_to_grid(x: np.ndarray) -> np.ndarray:
    return np.rint(x * GRID) / GRID


def rows_at_a_time(x: Array) -> int:
    return ROWS if isinstance(x, np.ndarray) else DEVICE_ROWS


def moves(before: np.ndarray, after: np.ndarray, words: int, dtype: np.dtype) -> scipy.sparse.csr_array:
    """Return (k, p) with +1 at the new word of each patch and −1 at its old word; `before` is k if there is none."""
    labels, signs = np.concatenate([after, before]), np.repeat([1, -1], len(after)).astype(dtype)
    order = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[order], np.arange(words + 1))
    order = order[: bounds[-1]]
    return scipy.sparse.csr_array((signs[order], order % len(after), bounds), (words, len(after)))


class Start:
    """k-means++ start: each next word is a patch drawn with probability ∝ squared distance to the words so far."""

    def __init__(
        self, x: Array, words: int, seeds: tuple[int, ...], squared: np.ndarray, threads: ProductThreads
    ) -> None:
        self.x, self.words, self.squared, self.threads = x, words, squared, threads
        self.rngs = [np.random.default_rng(seed) for seed in seeds]
        self.drawn = [[int(rng.integers(len(squared)))] for rng in self.rngs]
        self.labels = np.zeros((len(seeds), len(squared)), np.min_scalar_type(words))
        self.closest = np.full((len(seeds), len(squared)), -np.inf, to_numpy(x[:1, :1]).dtype)  # ⟨x, c⟩ − ‖c‖²/2
        self.nearest = np.empty((len(seeds), len(squared)))  # ‖x − c‖² of the nearest word so far
        self.mass = np.empty((len(seeds), -(-len(squared) // START_ROWS)))  # sums of `nearest` over blocks of rows

    def draw(self) -> Array:
        """Return the first words (s, k, d) and set `labels` to the nearest word of each patch."""
        for word in range(self.words):
            self._measure(word)
            if word + 1 < self.words:
                for s, drawn in enumerate(self.drawn):
                    drawn.append(self._next(s))
        xp = array_namespace(self.x)
        return xp.stack([xp.stack([self.x[i] for i in drawn]) for drawn in self.drawn])

    def _measure(self, word: int) -> None:
        """Compare every patch with the newest word of each construction."""
        x = self.x
        newest = array_namespace(x).stack([x[drawn[-1]] for drawn in self.drawn])
        dots = None if isinstance(x, np.ndarray) else to_numpy(x @ newest.T)

        half = to_numpy(newest * newest).sum(axis=1) / 2

        def block(low: int) -> None:
            rows = slice(low, low + START_ROWS)
            # vecdot reads each row once for all constructions; a product with so few columns would copy it first.
            near = np.vecdot(x[rows, None, :], newest[None]) if dots is None else dots[rows]
            for s, drawn in enumerate(self.drawn):
                closeness, closest = near[:, s] - half[s], self.closest[s, rows]
                closer = np.flatnonzero(closeness > closest)  # ties go to the first word
                closest[closer] = closeness[closer]
                self.labels[s, rows][closer] = word
                nearest = self.nearest[s, rows]
                # ‖x − c‖² = ‖x‖² − 2(⟨x, c⟩ − ‖c‖²/2); rounding may give −1e-8
                nearest[closer] = np.maximum(self.squared[rows][closer] - 2.0 * closeness[closer], 0)
                if low <= drawn[-1] < low + len(nearest):
                    nearest[drawn[-1] - low] = 0
                self.mass[s, low // START_ROWS] = nearest.sum()

        self.threads.each(block, range(0, len(self.squared), START_ROWS))

    def _next(self, s: int) -> int:
        """Return the first patch at which the cumulative distance exceeds a random share of the total."""
        until = np.cumsum(self.mass[s])
        if not until[-1] > 0:
            return self.drawn[s][-1]  # fewer distinct patches than words: repeat the last word
        share = self.rngs[s].random() * until[-1]
        block = min(int(np.searchsorted(until, share, side="right")), len(until) - 1)
        low = block * START_ROWS
        within = np.cumsum(self.nearest[s, low : low + START_ROWS])
        at = np.searchsorted(within, share - (until[block - 1] if block else 0.0), side="right")
        return low + min(int(at), len(within) - 1)


class Lloyd:
    """Lloyd iterations of several constructions over the same patches."""

    def __init__(self, x: Array, words: int, seeds: tuple[int, ...], backend: Backend, threads: ProductThreads) -> None:
        self.x, self.xp, self.put, self.words, self.threads = x, array_namespace(x), backend.put, words, threads
        self.dtype = to_numpy(x[:1, :1]).dtype
        self.squared = squared_norms(x, threads)
        start = Start(x, words, seeds, self.squared, threads)
        self.means = to_numpy(start.draw()).astype(np.float64)  # (s, k, d)
        self.centers = round_to_grid(self.means)
        self.first: np.ndarray | None = start.labels
        self.sums = np.zeros_like(self.centers)
        self.counts = np.zeros((len(seeds), words), np.int64)
        # Label `words` means "none yet": the first iteration adds every patch and removes none.
        self.labels = np.full_like(start.labels, words)
        self.distortion = [float("inf")] * len(seeds)
        self.iterations = [0] * len(seeds)
        self.active = list(range(len(seeds)))

    def step(self) -> bool:
        """Run one iteration of every construction still moving; return False when none is."""
        # The start has already assigned the first words.
        assigned, self.first = self._assign() if self.first is None else self.first, None
        self.active = [s for s, labels in zip(list(self.active), assigned, strict=True) if self._update(s, labels)]
        return bool(self.active)

    def _assign(self) -> np.ndarray:
        """Return the nearest word of each patch, (s, n), in the constructions still moving."""
        xp, x, each = self.xp, self.x, rows_at_a_time(self.x)
        flat = self.put(np.concatenate(self.centers[self.active]).astype(self.dtype))
        half = xp.sum(flat * flat, axis=1) / 2
        labels = np.empty((len(self.active), x.shape[0]), self.labels.dtype)

        def choose(start: int) -> None:
            closeness = xp.empty((min(each, x.shape[0]), flat.shape[0]), dtype=x.dtype, device=x.device)
            for low in range(start, min(start + each * BLOCKS_A_TURN, x.shape[0]), each):
                block = x[low : low + each, :]
                close = closeness[: block.shape[0], :]
                xp.matmul(block, flat.T, out=close)
                close -= half
                nearest = xp.argmax(xp.reshape(close, (-1, len(self.active), self.words)), axis=2)
                labels[:, low : low + each] = to_numpy(nearest).T

        self.threads.each(choose, range(0, x.shape[0], each * BLOCKS_A_TURN))
        return labels

    def _update(self, s: int, labels: np.ndarray) -> bool:
        """Move the patches that changed their word, then the words; return whether the construction still moves."""
        changed = np.flatnonzero(self.labels[s] != labels)
        self.sums[s] += self._gain(changed, self.labels[s, changed], labels[changed])
        self.labels[s] = labels
        self.counts[s] = np.bincount(labels, minlength=self.words)
        before, after = self.distortion[s], self._mean_squared_distance(s)
        self.distortion[s] = after
        self.iterations[s] += 1
        self._move_centers(s)
        if not len(changed) and self.counts[s].all():
            return False  # unchanged labels give unchanged means, so every later iteration would repeat this one
        return bool(np.isinf(before) or before - after > STOP_DECREASE * before)

    def _gain(self, rows: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Return the change (k, d) of the words' sums by the patches that changed their word.

        A sparse product with +1 at the new word and −1 at the old one; a dense product would be mostly zeros.
        """
        turns = range(0, len(rows), MOVED_ROWS * BLOCKS_A_TURN)
        gains = np.zeros((len(turns), *self.sums[0].shape))

        def turn(number: int) -> None:
            start, room = turns[number], np.empty((MOVED_ROWS, self.x.shape[1]), self.dtype)
            for low in range(start, min(start + MOVED_ROWS * BLOCKS_A_TURN, len(rows)), MOVED_ROWS):
                part = slice(low, low + MOVED_ROWS)
                patches = self._gathered(rows[part], room)
                gains[number] += moves(before[part], after[part], self.words, self.dtype) @ patches

        self.threads.each(turn, range(len(turns)))
        return gains.sum(axis=0)

    def _gathered(self, rows: np.ndarray, room: np.ndarray) -> np.ndarray:
        if not isinstance(self.x, np.ndarray):
            return to_numpy(self.x[self.put(rows), :])
        # "clip" writes to `out` without a buffer; every index is within bounds.
        return np.take(self.x, rows, axis=0, out=room[: len(rows)], mode="clip")

    def _mean_squared_distance(self, s: int) -> float:
        """Return the mean squared distance of patches to their words: Σ‖x‖² − 2 Σ ⟨S_k, c_k⟩ + Σ n_k ‖c_k‖², over n."""
        centers = self.centers[s]
        within = self.counts[s] @ (centers * centers).sum(axis=1) - 2 * (self.sums[s] * centers).sum()
        return max(float(self.squared.sum() + within), 0.0) / len(self.squared)  # rounding may give −1e-12

    def _move_centers(self, s: int) -> None:
        empty = np.flatnonzero(self.counts[s] == 0)
        # Empty words restart at the patches farthest from their words.
        farthest = np.argsort(-self._distances(s), kind="stable")[: len(empty)] if len(empty) else empty
        self.means[s] = self.sums[s] / np.maximum(self.counts[s], 1)[:, None]
        for word, patch in zip(empty, farthest, strict=False):
            self.means[s, word] = to_numpy(self.x[int(patch)])
        self.centers[s] = round_to_grid(self.means[s])

    def _distances(self, s: int) -> np.ndarray:
        """Return ‖x − c_label‖² of every patch."""
        own, rows = np.empty(len(self.squared)), rows_at_a_time(self.x)
        for low in range(0, len(own), rows):
            away = to_numpy(self.x[low : low + rows, :]) - self.centers[s, self.labels[s, low : low + rows]]
            own[low : low + rows] = np.vecdot(away, away)
        return own


# --- vocabulary -----------------------------------------------------------------------------------

CONSTRUCTIONS = (0, 1, 2)
MAX_KMEANS_ITERATIONS = 100


@dataclass(frozen=True)
class Vocabulary:
    """The words of one construction, as residuals use them."""

    centers: np.ndarray  # (k, d)
    seed: int | None  # None: supplied by the caller
    iterations: int
    distortion: float  # mean squared distance of patches to their words, before normalization
    data_used: str = "database"


def unit_patches(patches: np.ndarray, out: np.ndarray) -> bool:
    """Write normalized rows of `patches` to `out`, L2(0) = 0; return False if a value is not finite."""
    widen(patches, out)
    return _divide(patches, out, np.sqrt(np.vecdot(out, out)))


def copy_patches(patches: np.ndarray, out: np.ndarray) -> bool:
    """Write rows that are not to be normalized to `out`; return True, as they are finite."""
    out[:] = patches
    return True


def grid_patches(patches: np.ndarray, out: np.ndarray) -> bool:
    """Write normalized rows like `unit_patches`, rounded to the grid: equal bits on every processor."""
    widen(patches, out)
    squares = out * out
    while (width := squares.shape[1]) > 1:  # a tree of sums, because a library's order depends on the processor
        squares[:, : width // 2] += squares[:, -(width // 2) :]
        squares = squares[:, : -(-width // 2)]
    finite = _divide(patches, out, np.sqrt(squares[:, 0]))
    out *= GRID
    np.rint(out, out=out)
    out /= GRID
    return finite


def _divide(patches: np.ndarray, out: np.ndarray, lengths: np.ndarray) -> bool:
    if not (lengths < NOT_FINITE).all() and not np.isfinite(patches).all():
        return False
    out /= np.where(lengths > 0, lengths, 1)[:, None]
    return True


Normalize = Callable[[np.ndarray, np.ndarray], bool]


@dataclass(frozen=True)
class DrawnPatches:
    """A sample of at most `max_patches` patches, uniform without replacement over all images.

    It is sorted, so the drawn patches of image `i` are `chosen[bounds[i] : bounds[i + 1]]`.
    """

    tokens: Tokens
    chosen: np.ndarray  # (t,): indices among all patches
    bounds: np.ndarray  # (b + 1,)
    firsts: np.ndarray  # (b + 1,): index of each image's first patch

    @classmethod
    def draw(cls, tokens: Tokens, max_patches: int) -> DrawnPatches:
        firsts = np.concatenate([[0], np.cumsum(tokens.counts)])
        total = int(firsts[-1])
        if total == 0:
            raise BadTokens("no patches to fit on; use at least one image")
        if total <= max_patches:
            chosen = np.arange(total)
        else:
            chosen = np.sort(np.random.default_rng(0).choice(total, max_patches, replace=False, shuffle=False))
        return cls(tokens, chosen, np.searchsorted(chosen, firsts), firsts)

    @property
    def counts(self) -> np.ndarray:
        """Number of drawn patches of each image."""
        return np.diff(self.bounds)

    def load(self, index: int, out: np.ndarray, normalize: Normalize = unit_patches) -> None:
        """Write the normalized drawn patches of one image to `out`."""
        image = self.tokens.patches[index]
        drawn = self.chosen[self.bounds[index] : self.bounds[index + 1]] - self.firsts[index]
        if not normalize(image if len(drawn) == len(image) else image[drawn], out):
            self.tokens.load(index, index + 1)  # raises an error that names the image

    def read(self, dtype: str = "float32", normalize: Normalize = unit_patches) -> np.ndarray:
        """Return all drawn patches (t, d), normalized; images are loaded one at a time."""
        patches = np.empty((len(self.chosen), self.tokens.channels), dtype)
        for index in np.flatnonzero(self.counts).tolist():
            self.load(index, patches[self.bounds[index] : self.bounds[index + 1]], normalize)
        return patches


def sample_patches(
    tokens: Tokens, max_patches: int, dtype: str = "float32", normalize: Normalize = unit_patches
) -> np.ndarray:
    """Return at most `max_patches` normalized patches (t, d), sampled uniformly without replacement."""
    if tokens.depths > 1:
        raise BadSpec("only second-order heads use tokens of two depths; name one block of the encoder, such as /l7")
    return DrawnPatches.draw(tokens, max_patches).read(dtype, normalize)


def fit_vocabularies(
    patches: np.ndarray,
    words: int,
    backend: Backend,
    *,
    seeds: tuple[int, ...] = CONSTRUCTIONS,
    progress: Progress | None = None,
) -> list[Vocabulary]:
    """Fit one vocabulary per seed on `grid_patches` (t, d)."""
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
        Vocabulary(_unit_words(lloyd.means[s]).astype(patches.dtype), seed, lloyd.iterations[s], lloyd.distortion[s])
        for s, seed in enumerate(seeds)
    ]


def _unit_words(means: np.ndarray) -> np.ndarray:
    """Return normalized rows; `fsum` rounds once, whatever the processor."""
    lengths = np.array([math.sqrt(math.fsum(row)) for row in (means * means).tolist()])
    return means / np.where(lengths > 0, lengths, 1)[:, None]


def wrap_vocabularies(centers: Any, channels: int) -> list[Vocabulary]:
    """Return vocabularies from words supplied by the caller, one array (k, d) per construction."""
    arrays = [np.asarray(to_numpy(center)) for center in centers]
    shapes = {array.shape for array in arrays}
    if len(arrays) != len(CONSTRUCTIONS) or len(shapes) != 1 or arrays[0].ndim != 2:
        raise BadSpec(f"centers must be three arrays (words, channels) of one shape, got {[a.shape for a in arrays]}")
    if arrays[0].shape[1] != channels:
        raise BadSpec(f"centers have {arrays[0].shape[1]} channels, the tokens {channels}")
    if not all(np.isfinite(array).all() for array in arrays):
        raise BadSpec("centers have non-finite values")
    return [Vocabulary(array, None, 0, float("nan"), data_used="nothing") for array in arrays]
