"""Reduction (ours, beyond the paper): the compiled vectors of a head, and their biases, in fewer numbers.

    E          leading eigenvectors `D r` of Σ Ψ(d) Ψ(d)ᵀ, r = dims − 1
    image      y(d) = R [EᵀΨ(d), b_d − b̄]          query     y(q) = R [EᵀΨ(q), 1]
    score      ⟨y(q), y(d)⟩ + b̄  ≈  ⟨Ψ(q), Ψ(d)⟩ + b_d

R is a fixed orthogonal rotation `dims dims`. It changes no score. Without it the bias and the leading directions are
much larger than the rest, and an engine that rounds all coordinates to one range rounds the rest away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy.linalg

from tfa.errors import BadSpec

SEED = 0  # of the rotation
LEAST_DIMS = 2  # a direction and the bias


@dataclass(frozen=True)
class Reduction:
    """Turns vectors `… D` of one head into vectors `… dims` whose inner product is the score."""

    matrix: np.ndarray  # dims D, float32: R without its last column, times Eᵀ
    bias_axis: np.ndarray  # dims, float32: the last column of R
    mean_bias: float  # b̄, that all scores have in common

    @property
    def dims(self) -> int:
        return len(self.matrix)

    def of_queries(self, vectors: np.ndarray) -> np.ndarray:
        """y(q) `q dims`, float32."""
        return self._onto(vectors) + self.bias_axis

    def of_images(self, vectors: np.ndarray, bias: np.ndarray) -> np.ndarray:
        """y(d) `m dims`, float32, of vectors `m D` with a bias each."""
        return (
            self._onto(vectors)
            + (np.asarray(bias, np.float64) - self.mean_bias).astype(np.float32)[:, None] * self.bias_axis
        )

    def moments(self, total: Moments) -> Moments:
        """Moments of y(d), from those of [Ψ(d), b_d]: y is a linear map of them."""
        onto = np.concatenate([self.matrix, self.bias_axis[:, None]], axis=1).astype(np.float64)  # dims D+1
        first = onto @ total.first
        # y = onto [Ψ, b] − b̄ a, a the bias axis
        less = self.mean_bias * self.bias_axis.astype(np.float64)
        crossed = np.outer(first, less)
        second = onto @ total.second @ onto.T - crossed - crossed.T + total.count * np.outer(less, less)
        return Moments(total.count, first - total.count * less, second)

    def _onto(self, vectors: np.ndarray) -> np.ndarray:
        return np.asarray(vectors, np.float32) @ self.matrix.T


def fit_reduction(second: np.ndarray, dims: int, mean_bias: float = 0.0) -> Reduction:
    """From Σ Ψ(d) Ψ(d)ᵀ `D D`. Fewer than `dims` − 1 directions are all there are; the rest is 0."""
    if dims < LEAST_DIMS:
        raise BadSpec(f"dims={dims} is out of range: must be at least {LEAST_DIMS}, better 256 to 2048")
    width, kept = len(second), min(dims - 1, len(second))
    wanted = (width - kept, width - 1)
    vectors = scipy.linalg.eigh(second, subset_by_index=wanted)[1][:, ::-1]  # largest first
    largest = np.abs(vectors).argmax(axis=0)
    vectors = vectors * np.sign(vectors[largest, np.arange(kept)])
    rotation = fixed_rotation(dims)
    return Reduction((rotation[:, :kept] @ vectors.T).astype(np.float32), rotation[:, -1].astype(np.float32), mean_bias)


@lru_cache(maxsize=4)
def fixed_rotation(dims: int) -> np.ndarray:
    """A random orthogonal matrix `dims dims`, float64, always the same."""
    q, r = np.linalg.qr(np.random.default_rng(SEED).standard_normal((dims, dims)))
    return q * np.sign(np.diag(r))


@dataclass(frozen=True)
class Moments:
    """Σ 1, Σ y and Σ y yᵀ over vectors: what the scores of a query with all of them are like follows from these."""

    count: int
    first: np.ndarray  # D, float64
    second: np.ndarray  # D D, float64

    @classmethod
    def of(cls, vectors: np.ndarray) -> Moments:
        """Of vectors `m D`."""
        wide = np.asarray(vectors, np.float64)
        return cls(len(wide), wide.sum(axis=0), wide.T @ wide)

    @classmethod
    def empty(cls, width: int) -> Moments:
        """Of no vectors."""
        return cls(0, np.zeros(width), np.zeros((width, width)))

    @classmethod
    def total(cls, parts: Iterable[Moments]) -> Moments:
        """Added up in the order given."""
        parts = iter(parts)  # one at a time: each may be as large as a machine's memory allows
        first = next(parts)
        total = cls(first.count, first.first.copy(), first.second.copy())
        for part in parts:
            np.add(total.first, part.first, out=total.first)
            np.add(total.second, part.second, out=total.second)
            total = cls(total.count + part.count, total.first, total.second)
        return total

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.first + other.first, self.second + other.second)

    def __sub__(self, other: Moments) -> Moments:
        return Moments(self.count - other.count, self.first - other.first, self.second - other.second)

    def mean_and_spread(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and population standard deviation `q` of ⟨y(q), y⟩ over all vectors, for queries `q D`."""
        if not self.count:
            return np.zeros(len(queries)), np.zeros(len(queries))
        wide = np.asarray(queries, np.float64)
        mean = wide @ self.first / self.count
        square = ((wide @ self.second) * wide).sum(axis=1) / self.count
        return mean, np.sqrt(np.maximum(square - mean * mean, 0.0))
