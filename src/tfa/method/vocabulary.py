"""Visual vocabularies: patches sampled with a fixed seed, k-means++ starts and Lloyd iterations, deterministic on any
number of threads.

Lloyd's k-means of several constructions over the same patches: one matrix product an iteration serves them all.

    label(x) = argmin_k ‖x − c_k‖² = argmax_k ⟨x, c_k⟩ − ‖c_k‖²/2       the product with every word still moving
    S_k = Σ x,  n_k = #{x : label(x) = k}                               only patches that changed their word move
    Σ_x ‖x − c_label‖² = Σ ‖x‖² − 2 Σ_k ⟨S_k, c_k⟩ + Σ_k n_k ‖c_k‖²     no distance of a single patch is needed

The start (k-means++) measures every patch against every first word; the nearest of them is the first assignment.
Sums are kept in float64 and a patch moves a few times at most, so they end as good as if summed anew. Rows and words
are cut alike for any number of threads: sharing them changes no bit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from scipy.sparse import csr_array

from tfa.core.arrays import NOT_FINITE, ONE_THREAD_PRODUCTS, Array, Backend, count_cores, l2_normalize, to_numpy, widen
from tfa.core.progress import Progress, SilentProgress
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec, BadTokens

# --- kmeans ---------------------------------------------------------------------------------------

STOP_DECREASE = 1e-4  # ours: stop when the mean squared distance falls by less than this share of itself
# Patches a thread looks at together. On a CPU the similarities of a block stay in the second-level cache until the
# largest is found; a GPU wants work for all its cores at once.
ROWS, DEVICE_ROWS = 1024, 65536
BLOCKS_A_TURN = 8  # blocks a thread takes at a time
START_ROWS = 8192  # whose distances to the words drawn so far are summed together
MOVED_ROWS = 512  # patches summed together in their own dtype, before float64


class ProductThreads:
    """As many threads as matrix products may use; inside, each of them multiplies on its own.

    Products split among threads wait for each other, and round otherwise than those of one thread.
    """

    def __init__(self, count: int | None = None) -> None:
        wanted = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or ""
        cores = count_cores()
        self.count = count or (min(int(wanted), cores) if wanted.isdigit() and int(wanted) > 0 else cores)
        self.pool = ThreadPoolExecutor(self.count) if self.count > 1 else None

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
    """‖x‖² of each row, in float64."""
    if not isinstance(x, np.ndarray):
        xp = array_namespace(x)  # in blocks: `x * x` at once would be a second copy of the sample
        blocks = [x[low : low + DEVICE_ROWS, :] for low in range(0, x.shape[0], DEVICE_ROWS)]
        return np.concatenate([to_numpy(xp.sum(block * block, axis=1)) for block in blocks]).astype(np.float64)
    squared = np.empty(len(x))

    def block(low: int) -> None:
        squared[low : low + START_ROWS] = np.vecdot(x[low : low + START_ROWS], x[low : low + START_ROWS])

    threads.each(block, range(0, len(x), START_ROWS))
    return squared


def rows_at_a_time(x: Array) -> int:
    return ROWS if isinstance(x, np.ndarray) else DEVICE_ROWS


def moves(before: np.ndarray, after: np.ndarray, words: int, dtype: np.dtype) -> csr_array:
    """`k p`: +1 where a patch goes, −1 where it comes from; `before` is k where it comes from nowhere."""
    labels, signs = np.concatenate([after, before]), np.repeat([1, -1], len(after)).astype(dtype)
    order = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[order], np.arange(words + 1))
    order = order[: bounds[-1]]
    return csr_array((signs[order], order % len(after), bounds), (words, len(after)))


class Start:
    """k-means++: each next word is a patch drawn with probability ∝ squared distance to the words so far."""

    def __init__(
        self, x: Array, words: int, seeds: tuple[int, ...], squared: np.ndarray, threads: ProductThreads
    ) -> None:
        self.x, self.words, self.squared, self.threads = x, words, squared, threads
        self.rngs = [np.random.default_rng(seed) for seed in seeds]
        self.drawn = [[int(rng.integers(len(squared)))] for rng in self.rngs]
        self.labels = np.zeros((len(seeds), len(squared)), np.min_scalar_type(words))
        self.closest = np.full((len(seeds), len(squared)), -np.inf, to_numpy(x[:1, :1]).dtype)  # ⟨x, c⟩ − ‖c‖²/2
        self.nearest = np.empty((len(seeds), len(squared)))  # ‖x − c‖² of the nearest word so far
        self.mass = np.empty((len(seeds), -(-len(squared) // START_ROWS)))  # sums of it over blocks of rows

    def draw(self) -> Array:
        """The first words `s k d`; `labels` says which of them is nearest to each patch."""
        for word in range(self.words):
            self._measure(word)
            if word + 1 < self.words:
                for s, drawn in enumerate(self.drawn):
                    drawn.append(self._next(s))
        xp = array_namespace(self.x)
        return xp.stack([xp.stack([self.x[i] for i in drawn]) for drawn in self.drawn])

    def _measure(self, word: int) -> None:
        """Every patch against the newest word of each construction."""
        x = self.x
        newest = array_namespace(x).stack([x[drawn[-1]] for drawn in self.drawn])
        dots = None if isinstance(x, np.ndarray) else to_numpy(x @ newest.T)

        half = to_numpy(newest * newest).sum(axis=1) / 2

        def block(low: int) -> None:
            rows = slice(low, low + START_ROWS)
            # Row by row, each is read once for all constructions: a product with so few columns would copy it first.
            near = np.vecdot(x[rows, None, :], newest[None]) if dots is None else dots[rows]
            for s, drawn in enumerate(self.drawn):
                closeness, closest = near[:, s] - half[s], self.closest[s, rows]
                closer = np.flatnonzero(closeness > closest)  # of equally near words the first stays
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
        """The first patch up to which the distances sum to more than a drawn share of the whole."""
        until = np.cumsum(self.mass[s])
        if not until[-1] > 0:
            return self.drawn[s][-1]  # fewer distinct patches than words: no mass is left, the words repeat
        share = self.rngs[s].random() * until[-1]
        block = min(int(np.searchsorted(until, share, side="right")), len(until) - 1)
        low = block * START_ROWS
        within = np.cumsum(self.nearest[s, low : low + START_ROWS])
        at = np.searchsorted(within, share - (until[block - 1] if block else 0.0), side="right")
        return low + min(int(at), len(within) - 1)


class Lloyd:
    """Iterations of several constructions over the same patches, from a start."""

    def __init__(self, x: Array, words: int, seeds: tuple[int, ...], backend: Backend, threads: ProductThreads) -> None:
        self.x, self.xp, self.put, self.words, self.threads = x, array_namespace(x), backend.put, words, threads
        self.dtype = to_numpy(x[:1, :1]).dtype
        self.squared = squared_norms(x, threads)
        start = Start(x, words, seeds, self.squared, threads)
        self.centers = to_numpy(start.draw()).astype(np.float64)  # s k d
        self.first: np.ndarray | None = start.labels
        self.sums = np.zeros_like(self.centers)
        self.counts = np.zeros((len(seeds), words), np.int64)
        # Label `words` means "none yet": the first iteration adds every patch and takes none away.
        self.labels = np.full_like(start.labels, words)
        self.distortion = [float("inf")] * len(seeds)
        self.iterations = [0] * len(seeds)
        self.active = list(range(len(seeds)))

    def step(self) -> bool:
        """One assignment and one update of every construction still moving; False when none is."""
        # The start has measured the first words already.
        assigned, self.first = self._assign() if self.first is None else self.first, None
        self.active = [s for s, labels in zip(list(self.active), assigned, strict=True) if self._update(s, labels)]
        return bool(self.active)

    def _assign(self) -> np.ndarray:
        """The nearest word of each patch `s n`, in the constructions still moving."""
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
        """Move the patches that changed their word, then the words; is the construction still moving?"""
        changed = np.flatnonzero(self.labels[s] != labels)
        self.sums[s] += self._gain(changed, self.labels[s, changed], labels[changed])
        self.labels[s] = labels
        self.counts[s] = np.bincount(labels, minlength=self.words)
        before, after = self.distortion[s], self._mean_squared_distance(s)
        self.distortion[s] = after
        self.iterations[s] += 1
        self._centre(s)
        if not len(changed) and self.counts[s].all():
            return False  # the same patches have the same means: every later iteration would repeat this one
        return bool(np.isinf(before) or before - after > STOP_DECREASE * before)

    def _gain(self, rows: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """What the sums of the words `k d` gain by patches that change their word, each read once.

        A sparse product, +1 at the new word and −1 at the old: a full one would multiply mostly by zero.
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
        # "clip" fills `out` as it reads; every index is within bounds.
        return np.take(self.x, rows, axis=0, out=room[: len(rows)], mode="clip")

    def _mean_squared_distance(self, s: int) -> float:
        """Return the mean squared distance of patches to their words: Σ‖x‖² − 2 Σ ⟨S_k, c_k⟩ + Σ n_k ‖c_k‖², over n."""
        centers = self.centers[s]
        within = self.counts[s] @ (centers * centers).sum(axis=1) - 2 * (self.sums[s] * centers).sum()
        return max(float(self.squared.sum() + within), 0.0) / len(self.squared)  # rounding may give −1e-12

    def _centre(self, s: int) -> None:
        empty = np.flatnonzero(self.counts[s] == 0)
        # Ours: an emptied word restarts at the patch farthest from its own word (the next one, the next).
        farthest = np.argsort(-self._distances(s), kind="stable")[: len(empty)] if len(empty) else empty
        self.centers[s] = self.sums[s] / np.maximum(self.counts[s], 1)[:, None]
        for word, patch in zip(empty, farthest, strict=False):
            self.centers[s, word] = to_numpy(self.x[int(patch)])

    def _distances(self, s: int) -> np.ndarray:
        """‖x − c_label‖² of every patch: only an emptied word needs it."""
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
