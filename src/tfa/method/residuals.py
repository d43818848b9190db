"""Residual descriptors (VLAD): residual sums of an image's patches for each visual word.

    v = L2 [ L2( Σ_i w_ik (p̃_i − c_k) ) ]_k        hard: w_ik = 1 at argmax_k ⟨p̃_i, c_k⟩
                                                    soft: w_ik = softmax_k ⟨p̃_i, c_k⟩ / τ

One pass over the tokens computes all constructions and assignments, image by image, so that a descriptor never depends
on its batch. `describe_batch` computes batches on any device. `ImagePass` does the same arithmetic for one image on a
CPU, with two matrix products per construction:

    P̃ = L2(P)                   (n, d)    cast to the working dtype, once for all constructions
    Z = P̃ Cᵀ                    (n, k)    once for both assignments
    R = Wᵀ P̃ − diag(Wᵀ1) C      (k, d)    soft: a product; hard: sums of the patches of each word

Intermediate arrays stay in the cache, and a descriptor is written once, to its final place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

import numpy as np
import scipy  # loads its parts on first use

from tfa.core.arrays import (
    Array,
    Backend,
    Spill,
    array_namespace,
    count_cores,
    l2_normalize,
    map_in_threads,
    release,
    to_numpy,
)
from tfa.core.progress import Progress, SilentProgress
from tfa.core.tokens import Tokens
from tfa.method.vocabulary import unit_patches


@dataclass(frozen=True)
class Described:
    """Residual descriptors of a set of images under one assignment and one vocabulary."""

    descriptors: np.ndarray  # (b, k·d)
    mass: np.ndarray  # (b, k): norm of each residual block before normalization


class DescribedTokens(Tokens):
    """Tokens with cached descriptors: results of `describe_residuals` and `describe_second_order`, to the last bit."""

    described: Callable[..., dict[tuple[str, int], Described]]
    described_second_order: Callable[..., list[np.ndarray]]


HARD, SOFT = "hard", "soft"
ASSIGNMENT_KINDS = (HARD, SOFT)
FAINT_WEIGHT = 1e-30  # weight below which a float32 softmax loses its digits and logarithms are used
RESIDUAL_ROUNDING = 16  # block norm, in units in the last place per patch, below which a block is rounding


class ImagePass:
    """Residual descriptors of one image on a CPU, with the words of several constructions (s, k, d)."""

    def __init__(
        self, centers: Sequence[np.ndarray], assignments: Sequence[str], temperature: float, dtype: str
    ) -> None:
        assert set(assignments) <= set(ASSIGNMENT_KINDS), assignments
        self.assignments, self.temperature, self.dtype = tuple(assignments), temperature, np.dtype(dtype)
        self.constructions, (self.words, self.channels) = len(centers), centers[0].shape
        self.centers = np.stack([np.asarray(center, dtype) for center in centers])  # (s, k, d)
        self.keys = [(a, s) for a in self.assignments for s in range(self.constructions)]
        self.blocks = np.empty((len(self.assignments), *self.centers.shape), dtype)  # (a, s, k, d)
        self.pull = np.empty_like(self.centers[0])
        self._make_room(0)

    def _make_room(self, patches: int) -> None:
        self.unit = np.empty((patches, self.channels), self.dtype)
        self.similarities = np.empty((patches, self.words), self.dtype)
        self.weights = np.empty_like(self.similarities)

    def __call__(self, patches: np.ndarray, descriptors: Sequence[np.ndarray], masses: Sequence[np.ndarray]) -> bool:
        """Write the descriptors (k·d,) and block norms (k,) of patches (n, d), in the order of `keys`.

        Returns False and writes nothing if a value is not finite.
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
        """Fill `blocks`; return the sum and the maximum of each word's weights, (a, s, k).

        Soft weights are relative to the maximum.
        """
        totals = np.empty(self.blocks.shape[:3], self.dtype)
        largest = np.ones_like(totals)
        similarities, weights = self.similarities[: len(unit)], self.weights[: len(unit)]
        # One product per construction: other shapes may round differently, and a descriptor must not depend on the
        # other constructions of the call.
        for s, centers in enumerate(self.centers):
            np.matmul(unit, centers.T, out=similarities)
            nearest = similarities.argmax(axis=1)  # ties go to the first word
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
        """Sum the patches nearest to each word and return their number; a dense product would be mostly zeros."""
        labels = nearest.astype(np.min_scalar_type(self.words))  # short types sort faster
        order = np.argsort(labels, kind="stable").astype(np.int32)
        counts = np.bincount(labels, minlength=self.words)
        bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        ones, shape = np.ones(len(unit), self.dtype), (self.words, len(unit))
        chosen = scipy.sparse.csr_array((ones, order, bounds), shape, copy=False)
        sums[...] = chosen @ unit
        return counts

    def _write(
        self, totals: np.ndarray, largest: np.ndarray, descriptors: Sequence[np.ndarray], masses: Sequence[np.ndarray]
    ) -> None:
        norms = np.sqrt(np.vecdot(self.blocks, self.blocks))
        # A patch equal to its word leaves a rounding error, which normalization would turn into a unit vector.
        filled = norms > RESIDUAL_ROUNDING * np.finfo(self.dtype).eps * totals
        by_key = (len(self.keys), self.words)
        # Non-empty blocks have norm 1, so the norm of the whole is the square root of their number.
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
    """Write the softmax over words of logits (n, k), whose largest is 0, to `weights`; return the largest per word.

    Weights are relative to the largest, see `soft_weights`.
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


_RELEASE_EVERY = 256  # images
IMAGES_A_PASS = 4  # images per thread before threads are joined
_DescribedByKey = dict[tuple[str, int], Described]


def hard_weights(similarities: Array) -> Array:
    """Return (…, k) with one at the most similar word (ties go to the first) and zero elsewhere."""
    xp = array_namespace(similarities)
    nearest = xp.argmax(similarities, axis=-1)
    kinds = xp.arange(similarities.shape[-1], device=similarities.device)
    return xp.astype(nearest[..., None] == kinds, similarities.dtype)


def soft_weights(similarities: Array, temperature: float) -> tuple[Array, Array]:
    """Return the softmax over words (b, n, k), relative to each word's largest weight, and that weight (b, 1, k).

    A word far from every patch has weights such as e^-60 or e^-120. Float32 squares the first to zero and flushes the
    second, although block normalization scales any weight to one. Relative weights keep their digits, and the largest
    weight restores the block norm.
    """
    xp = array_namespace(similarities)
    logits = similarities / temperature
    logits = logits - xp.max(logits, axis=-1, keepdims=True)
    weights = xp.exp(logits)
    total = xp.sum(weights, axis=-1, keepdims=True)
    weights = weights / total
    largest = xp.max(weights, axis=-2, keepdims=True)
    weights = weights / xp.where(largest > 0, largest, xp.ones_like(largest))
    # Both forms are computed and one is selected, so that a GPU need not wait for the values.
    faint = xp.any(largest < FAINT_WEIGHT, axis=(1, 2), keepdims=True)
    log_weights = logits - xp.log(total)
    log_largest = xp.max(log_weights, axis=-2, keepdims=True)
    weights = xp.where(faint, xp.exp(log_weights - log_largest), weights)
    largest = xp.where(faint, xp.exp(log_largest), largest)
    return weights, largest


def residual_blocks(patches: Array, weights: Array, centers: Array) -> Array:
    """Return Σ_i w_ik (p̃_i − c_k), (b, k, d), for unit patches (b, n, d), weights (b, n, k) and centers (k, d)."""
    xp = array_namespace(patches)
    total = xp.sum(weights, axis=-2)[..., None]  # (b, k, 1)
    blocks = xp.matrix_transpose(weights) @ patches - total * centers
    # A patch equal to its word leaves a rounding error, which normalization would turn into a unit vector.
    rounding = RESIDUAL_ROUNDING * xp.finfo(patches.dtype).eps * total
    norm = xp.sqrt(xp.sum(blocks * blocks, axis=-1, keepdims=True))
    return xp.where(norm > rounding, blocks, xp.zeros_like(blocks))


def normalize_blocks(blocks: Array) -> tuple[Array, Array]:
    """Normalize blocks (b, k, d) to descriptors (b, k·d), L2 per block, then L2; also return block norms (b, k)."""
    xp = array_namespace(blocks)
    norms = xp.sqrt(xp.sum(blocks * blocks, axis=-1))
    unit = blocks / xp.where(norms > 0, norms, xp.ones_like(norms))[..., None]
    # Non-empty blocks have norm 1, so the norm of the whole is the square root of their number.
    filled = xp.sqrt(xp.sum(xp.astype(norms > 0, blocks.dtype), axis=-1))
    unit = unit / xp.where(filled > 0, filled, xp.ones_like(filled))[..., None, None]
    return xp.reshape(unit, (blocks.shape[0], blocks.shape[1] * blocks.shape[2])), norms


def describe_batch(
    patches: Array, centers: Sequence[Array], assignments: Sequence[str], temperature: float
) -> dict[tuple[str, int], tuple[Array, Array]]:
    """Return descriptors and block norms of patches (b, n, d), for each assignment and vocabulary (k, d)."""
    xp = array_namespace(patches)
    unit = l2_normalize(patches)
    described = {}
    for construction, words in enumerate(centers):
        similarities = unit @ words.T  # (b, n, k)
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
    """Compute descriptors of all images for every assignment and vocabulary, in one pass over the tokens."""
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
    released, descriptors = 0, [described.descriptors for described in described_by_key.values()]
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
                release(*descriptors)
    release(*descriptors)
    return described_by_key


def _image_by_image(
    tokens: Tokens, passes: Sequence[ImagePass], described_by_key: _DescribedByKey
) -> Iterator[tuple[int, int]]:
    """Fill `described_by_key` on a CPU, one image per thread; yield the range of finished images.

    Products use one thread each, so that results depend neither on the batch nor on the number of cores.
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
                    tokens.load(index, index + 1)  # raises an error that names the image
            for number, file in enumerate(files.values()):
                if file:
                    file.write(np.ascontiguousarray(room[: len(images), number]).data)
            yield images.start, images.stop


def _open_file(array: np.ndarray) -> AbstractContextManager[BinaryIO | None]:
    """Open the file of a mapped array: writing is much cheaper than filling pages."""
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
    """Fill `described_by_key` on another device; yield the range of finished images."""
    on_device = [backend.put(center, dtype) for center in centers]
    for batch in tokens.batches():
        patches = backend.put(batch.patches, dtype)
        for key, (descriptors, norms) in describe_batch(patches, on_device, assignments, temperature).items():
            described_by_key[key].descriptors[batch.start : batch.stop] = to_numpy(descriptors)
            described_by_key[key].mass[batch.start : batch.stop] = to_numpy(norms)
        yield batch.start, batch.stop
