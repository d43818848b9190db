"""Reduction (ours, beyond the paper): the compiled vectors of a head, and their biases, in fewer numbers.

    E          leading eigenvectors `D r` of Σ Ψ(d) Ψ(d)ᵀ, r = dims − 1
    image      y(d) = R [EᵀΨ(d), b_d − b̄]          query     y(q) = R [EᵀΨ(q), 1]
    score      ⟨y(q), y(d)⟩ + b̄  ≈  ⟨Ψ(q), Ψ(d)⟩ + b_d

R is a fixed orthogonal rotation `dims dims`. It changes no score. Without it the bias and the leading directions are
much larger than the rest, and an engine that rounds all coordinates to one range rounds the rest away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import scipy.linalg

from tfa.base.half import to_float32
from tfa.errors import BadSpec
from tfa.search.gallery import Gallery

SEED = 0  # of the rotation
LEAST_DIMS = 2  # a direction and the bias


@dataclass(frozen=True)
class Reduction:
    """Turns vectors `… D` of one head into vectors `… dims` whose inner product is the score."""

    matrix: np.ndarray  # dims D, float32 or float16: R without its last column, times Eᵀ
    bias_axis: np.ndarray  # dims, float32: the last column of R
    mean_bias: float  # b̄, that all scores have in common

    @property
    def dims(self) -> int:
        return len(self.matrix)

    @property
    def width(self) -> int:
        """D, numbers of a full vector."""
        return self.matrix.shape[1]

    @property
    def in_half(self) -> Reduction:
        """As a map keeps it, at half the size: what float16 rounds off is small beside what int8 rows round off."""
        return replace(self, matrix=self.matrix.astype(np.float16))

    def of_queries(self, vectors: np.ndarray) -> np.ndarray:
        """y(q) `q dims`, float32."""
        return self._onto(vectors) + self.bias_axis

    def of_queries_in_double(self, vectors: np.ndarray) -> np.ndarray:
        """y(q) `q dims`, float64: z-scores subtract what scores have in common."""
        return np.asarray(vectors, np.float64) @ self.matrix.T.astype(np.float64) + self.bias_axis

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
        return self._axes.inner(np.asarray(vectors, np.float32))

    @cached_property
    def _axes(self) -> Gallery:
        """The matrix as a gallery, whose products do not depend on other vectors of a batch."""
        return Gallery.of(to_float32(self.matrix))


def fit_reduction(second: np.ndarray, dims: int, mean_bias: float = 0.0) -> Reduction:
    """From Σ Ψ(d) Ψ(d)ᵀ `D D`. Fewer than `dims` − 1 directions are all there are; the rest is 0."""
    return _rotated(_leading(second, checked_dims(dims) - 1)[1].T, dims, mean_bias)


def fit_reduction_by_products(vectors: np.ndarray, dims: int, mean_bias: float = 0.0) -> Reduction:
    """The same from the vectors `m D` themselves, by their products `m m`: for fewer images than numbers in each."""
    return _rotated(_directions_by_products(vectors, checked_dims(dims) - 1), dims, mean_bias)


def leading_directions(vectors: np.ndarray, most: int) -> np.ndarray:
    """Eᵀ `r D` of vectors `m D`, at most so many directions, by whichever of the two is smaller."""
    if len(vectors) < vectors.shape[1]:
        return _one_way(_directions_by_products(vectors, most))
    wide = np.asarray(vectors, np.float64)
    return _one_way(_leading(wide.T @ wide, most)[1].T)


def _directions_by_products(vectors: np.ndarray, most: int) -> np.ndarray:
    wide = np.asarray(vectors, np.float64)
    values, images = _leading(wide @ wide.T, most)
    kept = values > values[:1] * len(wide) * np.finfo(np.float64).eps  # others are directions of no image
    return np.asarray((images[:, kept] / np.sqrt(values[kept])).T @ wide)


def checked_dims(dims: int) -> int:
    if dims < LEAST_DIMS:
        raise BadSpec(f"dims={dims} is out of range: must be at least {LEAST_DIMS}, better 256 to 2048")
    return dims


def _leading(symmetric: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest eigenvalues `r` first, at most so many, and their eigenvectors `n r`."""
    width = len(symmetric)
    values, vectors = scipy.linalg.eigh(symmetric, subset_by_index=(max(width - most, 0), width - 1))
    return values[::-1], vectors[:, ::-1]


def _rotated(directions: np.ndarray, dims: int, mean_bias: float) -> Reduction:
    """The reduction to directions `r D`, Eᵀ."""
    directions, rotation = _one_way(directions), fixed_rotation(dims)
    matrix = rotation[:, : len(directions)] @ directions
    return Reduction(matrix.astype(np.float32), rotation[:, -1].astype(np.float32), mean_bias)


def _one_way(directions: np.ndarray) -> np.ndarray:
    """The same directions, the entry of largest magnitude positive in each."""
    largest = np.abs(directions).argmax(axis=1)
    return np.asarray(directions * np.sign(directions[np.arange(len(directions)), largest])[:, None])


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
        one_by_one = iter(parts)  # each may be large: two of them are held at most
        total = next(one_by_one)
        total = cls(total.count, total.first.copy(), total.second.copy())
        for part in one_by_one:
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
        mean = (wide * self.first).sum(axis=1) / self.count
        square = (Gallery.of(self.second).inner(wide) * wide).sum(axis=1) / self.count
        return mean, np.sqrt(np.maximum(square - mean * mean, 0.0))
