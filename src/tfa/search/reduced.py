"""Search by fewer numbers an image: a coarse score of all, the full score of the best (ours, beyond the paper).

    coarse   ⟨y(q), ŷ(d)⟩ of every image, ŷ the int8 rows of `reduction`: a byte a number
    again    the best max(k, 100) by their full rows, sorted by score, ties to the smaller id

No other full row is read, so a map's file of them may lie on the disk while its int8 rows lie in memory. Mean and
spread of a query's scores with all images follow from the moments of ŷ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tfa.errors import BadMap
from tfa.search.exact import DAMAGED, ExactSearch, QueryVectors, SearchResult, WeightedGalleries, check_k, direct_sum
from tfa.search.gallery import QUERY_BLOCK, Gallery, Rows
from tfa.search.quantised_rows import QuantisedRows, empty_levels, rounded
from tfa.search.reduction import Moments, Reduction, checked_dims, fit_reduction, fit_reduction_by_products
from tfa.search.ties import top_k

AGAIN = 100  # images that are scored again, or k if that is more
BLOCK = 1024  # rows worked on at a time
LARGEST = 8192  # rows and columns of the matrix whose eigenvectors are taken


@dataclass(frozen=True)
class ReducedRows:
    """Images `m` under a reduction: int8 rows of y, chunk by chunk as the map's own rows are."""

    reduction: Reduction
    rows: Gallery  # m dims

    def __len__(self) -> int:
        return len(self.rows)

    def appended(self, vectors: np.ndarray, bias: np.ndarray) -> ReducedRows:
        """With one more chunk, of vectors `m D`."""
        return replace(self, rows=self.rows.appended(rounded(self.reduction.of_images(vectors, bias))))

    def with_rows(self, galleries: WeightedGalleries) -> ReducedRows:
        """With those of the galleries that are not there yet, in the same chunks."""
        grown, start = self, 0
        for chunk in galleries.galleries[0].chunks:
            stop = start + len(chunk)
            if stop > len(grown):
                grown = replace(grown, rows=grown.rows.appended(_reduced(self.reduction, galleries, len(grown), stop)))
            start = stop
        return grown

    def starting_with(self, older: ReducedRows) -> ReducedRows:
        """The same, the first chunk and the reduction being those of `older`, which are equal."""
        return ReducedRows(older.reduction, self.rows.starting_with(older.rows))

    def moments(self) -> list[Moments]:
        """Of each chunk, made when they are first needed unless they came from a file."""
        return self.rows.derived(moments_of)

    def moments_over(self, rows: np.ndarray) -> Moments:
        """Of some rows, one may be there twice: all rows' with what is missing taken off, where that is less work."""
        times = np.bincount(rows, minlength=len(self)) - 1
        extra, missing = np.repeat(np.arange(len(self)), np.maximum(times, 0)), np.flatnonzero(times < 0)
        if len(extra) + len(missing) >= len(rows):
            return Moments.total(self._moments_at(rows))
        return Moments.total([*self.moments(), *self._moments_at(extra)]) - Moments.total(self._moments_at(missing))

    def _moments_at(self, rows: np.ndarray) -> Iterator[Moments]:
        for start in range(0, max(len(rows), 1), BLOCK):
            yield Moments.of(self.rows.take(rows[start : start + BLOCK]))


def moments_of(chunk: Rows) -> Moments:
    """Of the numbers that rows stand for."""
    return Moments.total(Moments.of(np.asarray(chunk[low : low + BLOCK])) for low in range(0, len(chunk), BLOCK))


def fit_reduced(galleries: WeightedGalleries, dims: int) -> ReducedRows:
    """A reduction of these rows, and what becomes of them.

    Its directions are those of all images where their second moment, or their products, are at most 8,192 wide; beyond,
    those of 8,192 images, evenly spaced.
    """
    count, width, bias = len(galleries), sum(galleries.widths), float(galleries.bias.mean())
    if width <= min(count, LARGEST):
        second = np.zeros((width, width))
        for start in range(0, count, BLOCK):
            block = vectors_of(galleries, np.arange(start, min(start + BLOCK, count))).astype(np.float64)
            second += block.T @ block
        reduction = fit_reduction(second, dims, bias)
    else:
        checked_dims(dims)
        images = np.unique(np.linspace(0, count - 1, min(count, LARGEST)).astype(np.int64))
        reduction = fit_reduction_by_products(vectors_of(galleries, images), dims, bias)
    reduction = reduction.in_half
    chunks, start = [], 0
    for chunk in galleries.galleries[0].chunks:
        chunks.append(_reduced(reduction, galleries, start, start + len(chunk)))
        start += len(chunk)
    for gallery in galleries.galleries:
        gallery.release()  # all of them were read; from now on some at a time are
    return ReducedRows(reduction, Gallery.of(*chunks))


def vectors_of(galleries: WeightedGalleries, images: np.ndarray) -> np.ndarray:
    """Ψ of some images, `m D`."""
    return direct_sum(galleries.weights, [gallery.take(images) for gallery in galleries.galleries])


def _reduced(reduction: Reduction, galleries: WeightedGalleries, start: int, stop: int) -> QuantisedRows:
    """Rows `start` to `stop`, a block at a time."""
    levels, step = empty_levels(stop - start, reduction.dims), np.empty(stop - start, np.float32)
    for low in range(start, stop, BLOCK):
        images = np.arange(low, min(low + BLOCK, stop))
        rows = rounded(reduction.of_images(vectors_of(galleries, images), galleries.bias[images]))
        levels[images - start], step[images - start] = rows.stored, rows.step
    return QuantisedRows(levels, step, reduction.dims)


class ReducedSearch(ExactSearch):
    """Searches int8 rows of a reduction, and scores the best again by the full rows."""

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
        """Ids, scores, mean and spread of the queries `whole`, which begin at `start`."""
        reduction, first = self.reduced.reduction, self._first()
        small = reduction.of_queries(whole)
        coarse = self.reduced.rows.inner(small)[:, first]
        if not np.isfinite(coarse).all():  # of queries that are finite
            raise BadMap(DAMAGED)
        candidates = np.sort(top_k(coarse, max(k, AGAIN))[0], axis=1)
        ids, best = [], []
        for row, columns in enumerate(candidates, start):
            scores = self._again(queries, row, first[columns])
            order = np.argsort(-scores, kind="stable")[:k]  # of equals the smaller id: columns grow with it
            ids.append(self.ids[columns[order]])
            best.append(scores[order])
        if self._moments is None:
            self._moments = self.reduced.moments_over(first)
        mean, spread = self._moments.mean_and_spread(small)
        return np.array(ids), np.array(best), mean + reduction.mean_bias, spread

    def _first(self) -> np.ndarray:
        """The row that stands for each image that can be found: copies share that of the first."""
        return self.alive if self.rows.duplicates is None else self.rows.duplicates[self.alive]

    def _again(self, queries: QueryVectors, row: int, rows: np.ndarray) -> np.ndarray:
        """Scores of one query with some rows, as a search of all rows gives them."""
        rows, places = np.unique(rows, return_inverse=True)
        galleries = tuple(gallery.select(rows) for gallery in self.rows.galleries)
        some = WeightedGalleries(self.rows.weights, galleries, self.rows.bias[rows], dtype=self.rows.dtype)
        scores = some.scores(QueryVectors(tuple(term[row : row + 1] for term in queries.terms), queries.weights))[0]
        if not np.isfinite(scores).all():
            raise BadMap(DAMAGED)
        return scores[places]

    def prepare(self) -> None:
        """Pack the int8 rows for their kernel; full rows stay where they are."""
        self._moments = self.reduced.moments_over(self._first())  # reads all rows, which packing gives back
        self.reduced.rows.prepare()
