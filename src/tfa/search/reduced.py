"""Search with fewer dimensions: a coarse score for all images, the full score for the best.

    E          leading eigenvectors `D r` of Σ Ψ(d) Ψ(d)ᵀ, r = dims − 1
    image      y(d) = R [EᵀΨ(d), b_d − b̄]          query     y(q) = R [EᵀΨ(q), 1]
    score      ⟨y(q), y(d)⟩ + b̄  ≈  ⟨Ψ(q), Ψ(d)⟩ + b_d
    coarse     ⟨y(q), ŷ(d)⟩ of every image, ŷ the rows y rounded to int8
    rescored   the best max(k, 100) by their full rows, sorted by score, ties to the smaller id

R is a fixed orthogonal rotation `(dims, dims)`, which does not change scores. Without it the bias and the leading
directions are much larger than the rest, and a store that rounds all coordinates to one range loses the rest.

No other full row is read, so full rows may stay on disk while int8 rows are in memory. Mean and spread of a query's
scores with all images follow from the moments of ŷ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import scipy  # loads its parts on first use

from tfa.core.arrays import to_float32
from tfa.errors import BadMap, BadSpec
from tfa.search.gallery import (
    DAMAGED,
    QUERY_BLOCK,
    ExactSearch,
    Gallery,
    QueryVectors,
    Rows,
    SearchResult,
    WeightedGalleries,
    check_k,
    direct_sum,
    top_k,
)
from tfa.search.quantized import QuantizedRows, empty_levels, round_rows

_SEED = 0  # of the rotation
LEAST_DIMS = 2  # one direction and the bias


@dataclass(frozen=True)
class Reduction:
    """Linear map from vectors `(…, D)` of a head to vectors `(…, dims)` whose inner product is the score."""

    matrix: np.ndarray  # (dims, D), float32 or float16: R without its last column, times Eᵀ
    bias_axis: np.ndarray  # (dims,), float32: the last column of R
    mean_bias: float  # b̄, common to all scores

    @property
    def dims(self) -> int:
        return len(self.matrix)

    @property
    def width(self) -> int:
        """D, dimensions of a full vector."""
        return self.matrix.shape[1]

    @property
    def in_half(self) -> Reduction:
        """The reduction in float16, as stored; its rounding is small compared to that of int8 rows."""
        return replace(self, matrix=self.matrix.astype(np.float16))

    def of_queries(self, vectors: np.ndarray) -> np.ndarray:
        """Return y(q) `(q, dims)`, float32."""
        return self._onto(vectors) + self.bias_axis

    def of_queries_in_double(self, vectors: np.ndarray) -> np.ndarray:
        """Return y(q) `(q, dims)`, float64: z-scores subtract the common part of scores."""
        return np.asarray(vectors, np.float64) @ self.matrix.T.astype(np.float64) + self.bias_axis

    def of_images(self, vectors: np.ndarray, bias: np.ndarray) -> np.ndarray:
        """Return y(d) `(m, dims)`, float32, for vectors `(m, D)` with a bias each."""
        centered = (np.asarray(bias, np.float64) - self.mean_bias).astype(np.float32)
        return self._onto(vectors) + centered[:, None] * self.bias_axis

    def moments(self, total: Moments) -> Moments:
        """Return the moments of y(d) from those of [Ψ(d), b_d], of which y is a linear map."""
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
        """Matrix as a gallery, whose products do not depend on other vectors of a batch."""
        return Gallery.of(to_float32(self.matrix))


def fit_reduction(second: np.ndarray, dims: int, mean_bias: float = 0.0) -> Reduction:
    """Fit a reduction to Σ Ψ(d) Ψ(d)ᵀ `(D, D)`. With fewer than `dims` − 1 directions the rest is 0."""
    return _rotated(_leading(second, _check_dims(dims) - 1)[1].T, dims, mean_bias)


def fit_reduction_by_products(vectors: np.ndarray, dims: int, mean_bias: float = 0.0) -> Reduction:
    """Fit a reduction to vectors `(m, D)` by their products `(m, m)`, for fewer images than dimensions."""
    return _rotated(_directions_by_products(vectors, _check_dims(dims) - 1), dims, mean_bias)


def find_top_directions(vectors: np.ndarray, most: int) -> np.ndarray:
    """Return at most `most` leading directions Eᵀ `(r, D)` of vectors `(m, D)`."""
    if len(vectors) < vectors.shape[1]:
        return fix_signs(_directions_by_products(vectors, most))
    wide = np.asarray(vectors, np.float64)
    return fix_signs(_leading(wide.T @ wide, most)[1].T)


def _directions_by_products(vectors: np.ndarray, most: int) -> np.ndarray:
    wide = np.asarray(vectors, np.float64)
    values, images = _leading(wide @ wide.T, most)
    kept = values > values[:1] * len(wide) * np.finfo(np.float64).eps  # others are rounding errors
    return np.asarray((images[:, kept] / np.sqrt(values[kept])).T @ wide)


def _check_dims(dims: int) -> int:
    if dims < LEAST_DIMS:
        raise BadSpec(f"dims={dims} is out of range: must be at least {LEAST_DIMS}; 256 to 2048 work well")
    return dims


def _leading(symmetric: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return at most `most` eigenvalues `(r,)`, largest first, and eigenvectors `(n, r)`."""
    width = len(symmetric)
    values, vectors = scipy.linalg.eigh(symmetric, subset_by_index=(max(width - most, 0), width - 1))
    return values[::-1], vectors[:, ::-1]


def _rotated(directions: np.ndarray, dims: int, mean_bias: float) -> Reduction:
    """Return the reduction to directions Eᵀ `(r, D)`."""
    directions, rotation = fix_signs(directions), fixed_rotation(dims)
    matrix = rotation[:, : len(directions)] @ directions
    return Reduction(matrix.astype(np.float32), rotation[:, -1].astype(np.float32), mean_bias)


def fix_signs(directions: np.ndarray) -> np.ndarray:
    """Fix the signs of directions so that the entry of largest magnitude is positive."""
    largest = np.abs(directions).argmax(axis=1)
    return np.asarray(directions * np.sign(directions[np.arange(len(directions)), largest])[:, None])


@lru_cache(maxsize=4)
def fixed_rotation(dims: int) -> np.ndarray:
    """Return a random orthogonal matrix `(dims, dims)`, float64, from a fixed seed."""
    q, r = np.linalg.qr(np.random.default_rng(_SEED).standard_normal((dims, dims)))
    return q * np.sign(np.diag(r))


@dataclass(frozen=True)
class Moments:
    """Σ 1, Σ y and Σ y yᵀ over vectors, from which mean and spread of a query's scores follow."""

    count: int
    first: np.ndarray  # (D,), float64
    second: np.ndarray  # (D, D), float64

    @classmethod
    def of(cls, vectors: np.ndarray) -> Moments:
        """Compute the moments of vectors `(m, D)`."""
        wide = np.asarray(vectors, np.float64)
        return cls(len(wide), wide.sum(axis=0), wide.T @ wide)

    @classmethod
    def empty(cls, width: int) -> Moments:
        return cls(0, np.zeros(width), np.zeros((width, width)))

    @classmethod
    def total(cls, parts: Iterable[Moments]) -> Moments:
        """Sum moments in order."""
        one_by_one = iter(parts)  # each may be large, so at most two are in memory
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
        """Return mean and population standard deviation `(q,)` of ⟨y(q), y⟩ over all vectors."""
        if not self.count:
            return np.zeros(len(queries)), np.zeros(len(queries))
        wide = np.asarray(queries, np.float64)
        mean = (wide * self.first).sum(axis=1) / self.count
        square = (Gallery.of(self.second).inner(wide) * wide).sum(axis=1) / self.count
        return mean, np.sqrt(np.maximum(square - mean * mean, 0.0))


AGAIN = 100  # minimum number of rescored images
_BLOCK = 1024  # rows per block
_LARGEST = 8192  # maximum size of the matrix for the eigendecomposition


@dataclass(frozen=True)
class ReducedRows:
    """Reduced images: int8 rows of y, in the chunks of the map."""

    reduction: Reduction
    rows: Gallery  # (m, dims)

    def __len__(self) -> int:
        return len(self.rows)

    def with_rows(self, galleries: WeightedGalleries) -> ReducedRows:
        """Add reduced rows of new gallery rows, in the same chunks."""
        grown = self
        for stop in np.cumsum([len(chunk) for chunk in galleries.galleries[0].chunks]).tolist():
            if stop > len(grown):
                grown = replace(grown, rows=grown.rows.appended(_reduced(self.reduction, galleries, len(grown), stop)))
        return grown

    def starting_with(self, older: ReducedRows) -> ReducedRows:
        """Use the first chunk and the reduction of `older`, which are equal and may be prepared."""
        return ReducedRows(older.reduction, self.rows.starting_with(older.rows))

    def moments(self) -> list[Moments]:
        """Return the moments of each chunk, computed on first use unless read from a file."""

        def compute(chunk: Rows) -> Moments:
            starts = range(0, len(chunk), _BLOCK)
            return Moments.total(Moments.of(np.asarray(chunk[low : low + _BLOCK])) for low in starts)

        return self.rows.derived(compute)

    def moments_over(self, rows: np.ndarray) -> Moments:
        """Return the moments of some rows, which may repeat; subtract the other rows from all if that is faster."""
        times = np.bincount(rows, minlength=len(self)) - 1
        extra, missing = np.repeat(np.arange(len(self)), np.maximum(times, 0)), np.flatnonzero(times < 0)
        if len(extra) + len(missing) >= len(rows):
            return Moments.total(self._moments_at(rows))
        return Moments.total([*self.moments(), *self._moments_at(extra)]) - Moments.total(self._moments_at(missing))

    def _moments_at(self, rows: np.ndarray) -> Iterator[Moments]:
        for start in range(0, max(len(rows), 1), _BLOCK):
            yield Moments.of(self.rows.take(rows[start : start + _BLOCK]))


def fit_reduced(galleries: WeightedGalleries, dims: int) -> ReducedRows:
    """Fit a reduction to rows and apply it.

    Directions are fitted to all images if their second moment or their products are at most 8,192 wide, else to 8,192
    evenly spaced images.
    """
    count, width, bias = len(galleries), sum(galleries.widths), float(galleries.bias.mean())
    if width <= min(count, _LARGEST):
        second = np.zeros((width, width))
        for start in range(0, count, _BLOCK):
            block = _compile_vectors(galleries, np.arange(start, min(start + _BLOCK, count))).astype(np.float64)
            second += block.T @ block
        reduction = fit_reduction(second, dims, bias)
    else:
        _check_dims(dims)
        images = np.unique(np.linspace(0, count - 1, min(count, _LARGEST)).astype(np.int64))
        reduction = fit_reduction_by_products(_compile_vectors(galleries, images), dims, bias)
    reduced = ReducedRows(reduction.in_half, Gallery.of()).with_rows(galleries)
    for gallery in galleries.galleries:
        gallery.release()  # later searches read few rows at a time
    return reduced


def _compile_vectors(galleries: WeightedGalleries, images: np.ndarray) -> np.ndarray:
    """Return Ψ `(m, D)` of some images."""
    return direct_sum(galleries.weights, [gallery.take(images) for gallery in galleries.galleries])


def _reduced(reduction: Reduction, galleries: WeightedGalleries, start: int, stop: int) -> QuantizedRows:
    """Reduce rows `start` to `stop`, a block at a time."""
    levels, step = empty_levels(stop - start, reduction.dims), np.empty(stop - start, np.float32)
    for low in range(start, stop, _BLOCK):
        images = np.arange(low, min(low + _BLOCK, stop))
        rows = round_rows(reduction.of_images(_compile_vectors(galleries, images), galleries.bias[images]))
        levels[images - start], step[images - start] = rows.stored, rows.step
    return QuantizedRows(levels, step, reduction.dims)


class ReducedSearch(ExactSearch):
    """Search of int8 rows of a reduction; the best are rescored with full rows."""

    def __init__(
        self, rows: WeightedGalleries, ids: np.ndarray, alive: np.ndarray | None, reduced: ReducedRows
    ) -> None:
        super().__init__(rows, ids, alive)
        self.reduced = reduced
        self._moments: Moments | None = None

    def search(self, vectors: np.ndarray | QueryVectors, k: int) -> SearchResult:
        check_k(k)
        queries = self.rows.split_terms(vectors)
        if not len(self.alive) or not len(queries):
            return super().search(queries, k)
        whole = np.asarray(queries, np.float32)
        blocks = range(0, len(queries), QUERY_BLOCK)
        results = [self._search(queries, whole[at : at + QUERY_BLOCK], at, k) for at in blocks]
        ids, scores, mean, spread = (np.concatenate(arrays) for arrays in zip(*results, strict=True))
        return SearchResult(ids, scores, mean, spread)

    def _search(self, queries: QueryVectors, whole: np.ndarray, start: int, k: int) -> tuple[np.ndarray, ...]:
        """Return ids, scores, mean and spread of the queries `whole`, which begin at `start`."""
        reduction, first = self.reduced.reduction, self._first()
        small = reduction.of_queries(whole)
        coarse = self.reduced.rows.inner(small)[:, first]
        if not np.isfinite(coarse).all():  # queries are finite, so the map is damaged
            raise BadMap(DAMAGED)
        candidates = np.sort(top_k(coarse, max(k, AGAIN))[0], axis=1)
        ids, best = [], []
        for row, columns in enumerate(candidates, start):
            scores = self._again(queries, row, first[columns])
            order = np.argsort(-scores, kind="stable")[:k]  # ties to the smaller id, as columns are sorted by id
            ids.append(self.ids[columns[order]])
            best.append(scores[order])
        if self._moments is None:
            self._moments = self.reduced.moments_over(first)
        mean, spread = self._moments.mean_and_spread(small)
        return np.array(ids), np.array(best), mean + reduction.mean_bias, spread

    def _first(self) -> np.ndarray:
        """Return the row of each searched image; duplicates share the row of the first."""
        return self.alive if self.rows.duplicates is None else self.rows.duplicates[self.alive]

    def _again(self, queries: QueryVectors, row: int, rows: np.ndarray) -> np.ndarray:
        """Rescore some rows for one query, equal to an exact search."""
        rows, places = np.unique(rows, return_inverse=True)
        galleries = tuple(gallery.select(rows) for gallery in self.rows.galleries)
        some = WeightedGalleries(self.rows.weights, galleries, self.rows.bias[rows], dtype=self.rows.dtype)
        scores = some.scores(QueryVectors(tuple(term[row : row + 1] for term in queries.terms), queries.weights))[0]
        if not np.isfinite(scores).all():
            raise BadMap(DAMAGED)
        return scores[places]

    def prepare(self) -> None:
        """Pack the int8 rows for their kernel; full rows stay on disk."""
        self._moments = self.reduced.moments_over(self._first())  # reads all rows, whose memory packing releases
        self.reduced.rows.prepare()
