"""Residual descriptors: soft or hard assignment of patches to words, residual sums, and their normalization.

All residual descriptors of one image at once, on a CPU: two matrix products a construction, little beside them.

    P̃ = L2(P)                   n d    widened to the working dtype here, once for all constructions
    Z = P̃ Cᵀ                    n k    once for both assignments
    R = Wᵀ P̃ − diag(Wᵀ1) C      k d    soft: a product; hard: sums of the patches that chose each word

Everything between stays in the cache, and a descriptor is written once, where it is kept. `residuals` has the formulas
for whole batches on any device; this is the same arithmetic in the same dtype.

Residual descriptors (VLAD): what the patches of an image add to each visual word.

    v = L2 [ L2( Σ_i w_ik (p̃_i − c_k) ) ]_k        hard: w_ik = 1 at argmax_k ⟨p̃_i, c_k⟩
                                                    soft: w_ik = softmax_k ⟨p̃_i, c_k⟩ / τ

All constructions and assignments come out of one pass over the tokens. Each image is computed on its own
(same matrix shapes whatever the batch), so a descriptor never depends on its neighbours in a batch. On a CPU the pass
is `residual_pass`; the functions here are the same formulas for batches on any device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

import numpy as np
from array_api_compat import array_namespace, device
from scipy.sparse import csr_array

from tfa.core.arrays import Array, Backend, Spill, count_cores, l2_normalize, map_in_threads, release, to_numpy
from tfa.core.progress import Progress, SilentProgress
from tfa.core.tokens import Tokens
from tfa.method.vocabulary import unit_patches

# --- described tokens -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Described:
    """Residual descriptors of a set of images under one assignment and one vocabulary."""

    descriptors: np.ndarray  # b k·d
    mass: np.ndarray  # b k: norm of each residual block before it was normalised


class DescribedTokens(Tokens):
    """`describe` and `describe_second_order` take these descriptors instead of computing them."""

    def described(
        self,
        centers: Sequence[np.ndarray],
        assignments: Sequence[str],
        temperature: float,
        backend: Backend,
        dtype: str,
    ) -> dict[tuple[str, int], Described]:
        """What `describe` would compute, to the last bit."""
        raise NotImplementedError

    def described_second_order(self, directions: Sequence[np.ndarray], dtype: str) -> list[np.ndarray]:
        """What `describe_second_order` would compute, to the last bit."""
        raise NotImplementedError


# --- residuals cpu --------------------------------------------------------------------------------

HARD, SOFT = "hard", "soft"
ASSIGNMENT_KINDS = (HARD, SOFT)
# Below this a float32 softmax has lost its digits, and the logarithm is used instead.
FAINT_WEIGHT = 1e-30
RESIDUAL_ROUNDING = 16  # units in the last place, for each patch: a block no longer than this is rounding


class ImagePass:
    """The words of several constructions `s k d`, and room for the arrays in between."""

    def __init__(
        self, centers: Sequence[np.ndarray], assignments: Sequence[str], temperature: float, dtype: str
    ) -> None:
        assert set(assignments) <= set(ASSIGNMENT_KINDS), assignments
        self.assignments, self.temperature, self.dtype = tuple(assignments), temperature, np.dtype(dtype)
        self.constructions, (self.words, self.channels) = len(centers), centers[0].shape
        self.centers = np.stack([np.asarray(center, dtype) for center in centers])  # s k d
        self.keys = [(a, s) for a in self.assignments for s in range(self.constructions)]
        self.blocks = np.empty((len(self.assignments), *self.centers.shape), dtype)  # a s k d
        self.pull = np.empty_like(self.centers[0])
        self._make_room(0)

    def _make_room(self, patches: int) -> None:
        self.unit = np.empty((patches, self.channels), self.dtype)
        self.similarities = np.empty((patches, self.words), self.dtype)
        self.weights = np.empty_like(self.similarities)

    def __call__(self, patches: np.ndarray, descriptors: Sequence[np.ndarray], masses: Sequence[np.ndarray]) -> bool:
        """Write the descriptors `k·d` and block norms `k` of patches `n d`, in the order of `keys`.

        False, and nothing is written, if a value is not finite.
        """
        if len(patches) > len(self.unit):
            self._make_room(len(patches))
        unit = self.unit[: len(patches)]
        if not unit_patches(patches, unit):
            return False
        totals, largest = self._sum(unit)
        self._write(totals, largest, descriptors, masses)
        return True

    def _sum(self, unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fill `blocks`; each word's weights `a s k` in sum and at most, soft ones relative to that most."""
        totals = np.empty(self.blocks.shape[:3], self.dtype)
        largest = np.ones_like(totals)
        similarities, weights = self.similarities[: len(unit)], self.weights[: len(unit)]
        # One product a construction: of another shape it might round otherwise, and a descriptor would depend on what
        # else is requested.
        for s, centers in enumerate(self.centers):
            np.matmul(unit, centers.T, out=similarities)
            nearest = similarities.argmax(axis=1)  # of equals the first
            for a, assignment in enumerate(self.assignments):
                if assignment == HARD:
                    totals[a, s] = self._sum_by_word(unit, nearest, self.blocks[a, s])
            if SOFT in self.assignments:
                a = self.assignments.index(SOFT)
                similarities -= similarities[np.arange(len(unit)), nearest][:, None]
                similarities /= self.temperature
                largest[a, s] = _softmax(similarities, weights)
                np.matmul(weights.T, unit, out=self.blocks[a, s])
                totals[a, s] = weights.sum(axis=0)
            for blocks, total in zip(self.blocks[:, s], totals[:, s], strict=True):
                blocks -= np.multiply(centers, total[:, None], out=self.pull)
        return totals, largest

    def _sum_by_word(self, unit: np.ndarray, nearest: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """The sum of the patches nearest to each word, and their number: a product would multiply mostly by zero."""
        labels = nearest.astype(np.min_scalar_type(self.words))  # a short type is sorted fast
        order = np.argsort(labels, kind="stable").astype(np.int32)
        counts = np.bincount(labels, minlength=self.words)
        bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        chosen = csr_array((np.ones(len(unit), self.dtype), order, bounds), (self.words, len(unit)), copy=False)
        sums[...] = chosen @ unit
        return counts

    def _write(
        self, totals: np.ndarray, largest: np.ndarray, descriptors: Sequence[np.ndarray], masses: Sequence[np.ndarray]
    ) -> None:
        norms = np.sqrt(np.vecdot(self.blocks, self.blocks))
        # A patch that equals its word leaves only rounding, which normalisation would blow up to a unit vector.
        filled = norms > RESIDUAL_ROUNDING * np.finfo(self.dtype).eps * totals
        by_key = (len(self.keys), self.words)
        # Every non-empty block has norm 1, so the norm of the whole is the root of their number.
        root = np.sqrt(filled.reshape(by_key).sum(axis=1, dtype=self.dtype))[:, None]
        length = norms.reshape(by_key) * root
        scale = np.divide(1, length, out=np.zeros_like(length), where=filled.reshape(by_key))
        mass = np.where(filled, norms * largest, 0).reshape(by_key)
        blocks = self.blocks.reshape(*by_key, self.channels)
        for key in range(len(self.keys)):
            kept = descriptors[key].reshape(self.words, self.channels)
            np.multiply(blocks[key], scale[key][:, None], out=kept)
            masses[key][...] = mass[key]


def _softmax(logits: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Softmax over the words of logits `n k` whose largest is 0, into `weights`; returns each word's largest weight.

    Weights end relative to it: a word far from every patch has weights such as e^-60 or e^-120. Float32 squares the
    first to zero and flushes the second, although block normalisation brings any weight back to one.
    """
    np.exp(logits, out=weights)
    total = weights @ np.ones(weights.shape[1], weights.dtype)
    weights /= total[:, None]
    largest = weights.max(axis=0)
    weights /= np.where(largest > 0, largest, 1)
    faint = np.flatnonzero(largest < FAINT_WEIGHT)
    if len(faint):
        log_weights = logits[:, faint] - np.log(total)[:, None]
        log_largest = log_weights.max(axis=0)
        weights[:, faint] = np.exp(log_weights - log_largest)
        largest[faint] = np.exp(log_largest)
    return largest


# --- residuals ------------------------------------------------------------------------------------

__all__ = [
    "ASSIGNMENT_KINDS",
    "FAINT_WEIGHT",
    "HARD",
    "SOFT",
    "Described",
    "describe_batch",
    "describe_residuals",
    "hard_weights",
    "normalize_blocks",
    "residual_blocks",
    "soft_weights",
]  # fmt: skip
_RELEASE_EVERY = 256  # images
IMAGES_A_PASS = 4  # before threads are joined
_DescribedByKey = dict[tuple[str, int], Described]


def hard_weights(similarities: Array) -> Array:
    """One at the most similar word (the first of equals), zero elsewhere. `… k` → `… k`."""
    xp = array_namespace(similarities)
    nearest = xp.argmax(similarities, axis=-1)
    kinds = xp.arange(similarities.shape[-1], device=device(similarities))
    return xp.astype(nearest[..., None] == kinds, similarities.dtype)


def soft_weights(similarities: Array, temperature: float) -> tuple[Array, Array]:
    """Softmax over words `b n k`, relative to each word's largest weight in the image, and that weight `b 1 k`.

    A word far from every patch of an image has weights such as e^-60 or e^-120. Float32 squares the first to
    zero and flushes the second, although block normalisation brings any weight back to one. Relative weights
    keep their digits; the largest weight restores the true block norm.
    """
    xp = array_namespace(similarities)
    logits = similarities / temperature
    logits = logits - xp.max(logits, axis=-1, keepdims=True)
    weights = xp.exp(logits)
    total = xp.sum(weights, axis=-1, keepdims=True)
    weights = weights / total
    largest = xp.max(weights, axis=-2, keepdims=True)
    weights = weights / xp.where(largest > 0, largest, xp.ones_like(largest))
    faint = np.flatnonzero((to_numpy(largest) < FAINT_WEIGHT).any(axis=(1, 2)))
    for image in faint.tolist():
        log_weights = logits[image] - xp.log(total[image])
        log_largest = xp.max(log_weights, axis=-2, keepdims=True)
        weights[image] = xp.exp(log_weights - log_largest)
        largest[image] = xp.exp(log_largest)
    return weights, largest


def residual_blocks(patches: Array, weights: Array, centers: Array) -> Array:
    """`Σ_i w_ik (p̃_i − c_k)` for unit patches `b n d`, weights `b n k`, centers `k d` → `b k d`."""
    xp = array_namespace(patches)
    total = xp.sum(weights, axis=-2)[..., None]  # b k 1
    blocks = xp.matrix_transpose(weights) @ patches - total * centers
    # A patch that equals its word leaves only rounding, which normalisation would blow up to a unit vector.
    rounding = RESIDUAL_ROUNDING * xp.finfo(patches.dtype).eps * total
    norm = xp.sqrt(xp.sum(blocks * blocks, axis=-1, keepdims=True))
    return xp.where(norm > rounding, blocks, xp.zeros_like(blocks))


def normalize_blocks(blocks: Array) -> tuple[Array, Array]:
    """Blocks `b k d` → descriptors `b k·d` (L2 per block, then L2) and block norms `b k`."""
    xp = array_namespace(blocks)
    norms = xp.sqrt(xp.sum(blocks * blocks, axis=-1))
    unit = blocks / xp.where(norms > 0, norms, xp.ones_like(norms))[..., None]
    # Every non-empty block has norm 1, so the norm of the whole is the root of their number.
    filled = xp.sqrt(xp.sum(xp.astype(norms > 0, blocks.dtype), axis=-1))
    unit = unit / xp.where(filled > 0, filled, xp.ones_like(filled))[..., None, None]
    return xp.reshape(unit, (blocks.shape[0], blocks.shape[1] * blocks.shape[2])), norms


def describe_batch(
    patches: Array, centers: Sequence[Array], assignments: Sequence[str], temperature: float
) -> dict[tuple[str, int], tuple[Array, Array]]:
    """Descriptors and block norms of patches `b n d`, for each assignment and each vocabulary `k d`."""
    xp = array_namespace(patches)
    unit = l2_normalize(patches)
    described = {}
    for construction, words in enumerate(centers):
        similarities = unit @ words.T  # b n k
        for assignment in assignments:
            if assignment == HARD:
                blocks, scale = residual_blocks(unit, hard_weights(similarities), words), None
            else:
                weights, scale = soft_weights(similarities, temperature)
                blocks = residual_blocks(unit, weights, words)
            descriptors, norms = normalize_blocks(blocks)
            if scale is not None:
                norms = norms * xp.reshape(scale, norms.shape)
            described[assignment, construction] = (descriptors, norms)
    return described


def describe_residuals(
    tokens: Tokens,
    centers: Sequence[np.ndarray],
    assignments: Sequence[str],
    temperature: float,
    backend: Backend,
    *,
    dtype: str = "float32",
    spill: Spill | None = None,
    progress: Progress | None = None,
) -> _DescribedByKey:
    """Descriptors of all images under every assignment and vocabulary, in one pass over the tokens."""
    if isinstance(tokens, DescribedTokens):
        return tokens.described(centers, assignments, temperature, backend, dtype)
    spill = spill or Spill()
    words, channels = centers[0].shape
    described_by_key = {
        (assignment, construction): Described(
            spill.empty((len(tokens), words * channels), dtype), np.empty((len(tokens), words), dtype)
        )
        for assignment in assignments
        for construction in range(len(centers))
    }
    released = 0
    if backend.torch_device is None:
        passes = [ImagePass(centers, assignments, temperature, dtype) for _ in range(count_cores())]
        done = _image_by_image(tokens, passes, described_by_key)
    else:
        done = _batch_by_batch(tokens, centers, assignments, temperature, backend, dtype, described_by_key)
    with (progress or SilentProgress()).task("descriptors", len(tokens), "images") as task:
        for start, stop in done:
            task.advance(stop - start)
            if stop - released >= _RELEASE_EVERY:
                released = stop
                _release(described_by_key)
    _release(described_by_key)
    return described_by_key


def _image_by_image(
    tokens: Tokens, passes: Sequence[ImagePass], described_by_key: _DescribedByKey
) -> Iterator[tuple[int, int]]:
    """Fill `described_by_key` on a CPU, a few images at once, one by each pass; yields the images done.

    Products of one thread each: the bits of a descriptor depend neither on its neighbours nor on the number of cores.
    """
    free = SimpleQueue[ImagePass]()
    for one in passes:
        free.put(one)
    keys, several = list(described_by_key), IMAGES_A_PASS * len(passes)
    with ExitStack() as stack:
        files = {key: stack.enter_context(_open_file(described_by_key[key].descriptors)) for key in keys}
        width = next(iter(described_by_key.values())).descriptors.shape[1]
        room = np.empty((min(several, len(tokens)) if any(files.values()) else 0, len(keys), width), passes[0].dtype)

        def written(index: int) -> bool:
            row = room[index % several] if len(room) else [described_by_key[key].descriptors[index] for key in keys]
            one = free.get()
            try:
                return one(tokens.patches[index], row, [described_by_key[key].mass[index] for key in keys])
            finally:
                free.put(one)

        for start in range(0, len(tokens), several):
            images = range(start, min(start + several, len(tokens)))
            for index, finite in zip(images, map_in_threads(written, images, len(passes)), strict=True):
                if not finite:
                    tokens.load(index, index + 1)  # says which image has values that are not finite
            for number, file in enumerate(files.values()):
                if file:
                    file.write(np.ascontiguousarray(room[: len(images), number]).data)
            yield images.start, images.stop


def _open_file(array: np.ndarray) -> AbstractContextManager[BinaryIO | None]:
    """The file of a mapped array. To fill it by its pages costs a third of the products; by writing, little."""
    return Path(str(array.filename)).open("r+b") if isinstance(array, np.memmap) else nullcontext()


def _batch_by_batch(
    tokens: Tokens,
    centers: Sequence[np.ndarray],
    assignments: Sequence[str],
    temperature: float,
    backend: Backend,
    dtype: str,
    described_by_key: _DescribedByKey,
) -> Iterator[tuple[int, int]]:
    """Fill `described_by_key` on another device; yields the images done."""
    on_device = [backend.put(center, dtype) for center in centers]
    for batch in tokens.batches():
        patches = backend.put(batch.patches, dtype)
        for key, (descriptors, norms) in describe_batch(patches, on_device, assignments, temperature).items():
            described_by_key[key].descriptors[batch.start : batch.stop] = to_numpy(descriptors)
            described_by_key[key].mass[batch.start : batch.stop] = to_numpy(norms)
        yield batch.start, batch.stop


def _release(described_by_key: _DescribedByKey) -> None:
    """Pages written to a mapped file need not stay resident."""
    for described in described_by_key.values():
        release(described.descriptors)
