"""All residual descriptors of one image at once, on a CPU: two matrix products a construction, little beside them.

    P̃ = L2(P)                   n d    widened to the working dtype here, once for all constructions
    Z = P̃ Cᵀ                    n k    once for both assignments
    R = Wᵀ P̃ − diag(Wᵀ1) C      k d    soft: a product; hard: sums of the patches that chose each word

Everything between stays in the cache, and a descriptor is written once, where it is kept. `residuals` has the formulas
for whole batches on any device; this is the same arithmetic in the same dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array

from tfa.method.vocabulary import unit_patches

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
