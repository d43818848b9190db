"""Galleries: rows `(m, D)` of floats or integers in chunks, their inner products with queries, and exact search.

    score(q, d) = ⟨vector(q), vector(d)⟩ + bias(d),   ties to the smaller id

A map grows by chunks; a head has one. Rows are float32, float64, float16 or integers (`QuantizedRows`), or such rows on
another scale (`ScaledRows`); readers get floats. Products do not depend on other queries of a batch. Images of equal
content have equal scores to the last bit, and ties go to the smaller index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from tfa.core.arrays import release, to_float32, to_numpy
from tfa.errors import BadMap, BadSpec
from tfa.search.quantized import FINE_PLANE_BASE, PLANE_BASE, QuantizedRows, join_rows, split_planes


@dataclass(frozen=True)
class ScaledRows:
    """Array-like rows `(m, D)` that are other rows on another scale, without copying them.

        row_i = scale_i · columns ∘ base_i,   so   ⟨q, row_i⟩ = scale_i · ⟨columns ∘ q, base_i⟩

    All features of a second-order map are scaled coordinates, which it stores once for all heads and terms.
    """

    base: np.ndarray | QuantizedRows
    scale: np.ndarray  # (m,)
    columns: np.ndarray  # (D,)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.base), self.base.shape[1]

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, rows: Any) -> ScaledRows:
        return ScaledRows(self.base[rows], self.scale[rows], self.columns)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the rows as floats."""
        rows = np.asarray(self.base, np.float64) * self.columns
        return (rows * self.scale[:, None]).astype(np.float32 if dtype is None else dtype)


# Number of queries multiplied together, the last block padded: matrix products then have the same shape for any number
# of queries, and no score depends, in its last bit, on the other queries.
QUERY_BLOCK = 16
_GALLERY_BLOCK = 256  # rows of a float16 gallery widened to float32 at a time
BaseRows = np.ndarray | QuantizedRows
Rows = BaseRows | ScaledRows
# Precomputed products (q, m), each with its rows.
Products = Sequence[tuple[Rows, np.ndarray]]
_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Gallery:
    """Immutable rows of one term of a score; `appended` returns a new gallery that shares the chunks."""

    chunks: tuple[Rows, ...]
    # Cached results of `derived`, by chunk.
    _derived: dict[int, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, *chunks: Rows) -> Gallery:
        return cls(tuple(chunks))

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    @property
    def width(self) -> int:
        return self.chunks[0].shape[1]

    def appended(self, rows: Rows) -> Gallery:
        return Gallery((*self.chunks, rows), dict(self._derived))

    def starting_with(self, other: Gallery) -> Gallery:
        """Replace the first chunk by that of `other`, which is equal and may be prepared."""
        return Gallery((other.chunks[0], *self.chunks[1:]), {i: d for i, d in other._derived.items() if i == 0})

    def take(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return some rows as floats, float32 unless they are float64; no other row is read."""
        stored = [chunk.dtype for chunk in self.chunks if isinstance(chunk, np.ndarray)]
        return take_rows(self.chunks, indices, np.result_type(np.float32, *stored))

    def select(self, indices: np.ndarray) -> Gallery:
        """Return some rows, by increasing index, in stored form; no other row is read, and whole chunks are shared."""
        ends = np.cumsum([len(chunk) for chunk in self.chunks])
        chunks, derived = list[Rows](), dict[int, Any]()
        for index, own in enumerate(np.split(indices, np.searchsorted(indices, ends[:-1]))):
            chunk = self.chunks[index]
            if len(own) == len(chunk) and index in self._derived:
                derived[len(chunks)] = self._derived[index]
            if len(own):
                chunks.append(chunk if len(own) == len(chunk) else chunk[own - (ends[index] - len(chunk))])
        return Gallery(tuple(chunks), derived)

    def between(self, start: int, stop: int) -> Rows | None:
        """Return rows `start` to `stop` in stored form; None if there are none."""
        return rows_between(self.chunks, start, stop)

    def inner(self, features: np.ndarray, computed: Products = ()) -> np.ndarray:
        """Return ⟨f(q), row⟩ `(q, m)`, reusing products in `computed`."""
        return np.concatenate([_products(features, chunk, computed) for chunk in self.chunks], axis=1)

    def derived(self, make: Callable[[Rows], _Made]) -> list[_Made]:
        """Return `make(chunk)` for each chunk, cached, so that an edit recomputes only changed chunks."""
        for index, chunk in enumerate(self.chunks):
            if index not in self._derived:
                self._derived[index] = make(chunk)
        return [self._derived[index] for index in range(len(self.chunks))]

    def prepare(self) -> None:
        """Pack integer rows for their kernel; products do not change."""
        for base in map(_base, self.chunks):
            if isinstance(base, QuantizedRows):
                base.prepare()

    def release(self) -> None:
        """Release the memory of rows read from files."""
        for base in map(_base, self.chunks):
            base.release() if isinstance(base, QuantizedRows) else release(base)


def inner_of_terms(
    galleries: Sequence[Gallery], features: Sequence[np.ndarray], computed: Products = ()
) -> list[np.ndarray]:
    """Return ⟨f_t(q), row⟩ `(q, m)` for each term t. Rows shared by several terms are read once."""
    products: list[np.ndarray] = [np.empty(0)] * len(galleries)
    groups: dict[tuple[int, ...], list[int]] = {}  # terms by the identity of their base rows
    for term, gallery in enumerate(galleries):
        groups.setdefault(tuple(id(_base(chunk)) for chunk in gallery.chunks), []).append(term)
    for terms in groups.values():
        if len(terms) == 1:
            products[terms[0]] = galleries[terms[0]].inner(features[terms[0]], computed)
            continue
        chunks = []
        for rows in zip(*(galleries[term].chunks for term in terms), strict=True):
            onto = [_onto_base(features[term], own) for term, own in zip(terms, rows, strict=True)]
            together = np.split(_products(np.concatenate(onto), _base(rows[0]), ()), len(terms))
            chunks.append([_scaled(similarity, own) for similarity, own in zip(together, rows, strict=True)])
        for term, pieces in zip(terms, zip(*chunks, strict=True), strict=True):
            products[term] = np.concatenate(pieces, axis=1)
    return products


def _base(rows: Rows) -> BaseRows:
    return rows.base if isinstance(rows, ScaledRows) else rows


def _onto_base(features: np.ndarray, rows: Rows) -> np.ndarray:
    """Scale features for products with the base rows; `_scaled` then applies the row scales."""
    return features * rows.columns.astype(features.dtype) if isinstance(rows, ScaledRows) else features


def _scaled(products: np.ndarray, rows: Rows) -> np.ndarray:
    """Convert products `(q, m)` with the base rows to products with the scaled rows."""
    return products * rows.scale.astype(products.dtype) if isinstance(rows, ScaledRows) else products


def take_rows(chunks: Sequence[Rows], indices: Sequence[int] | np.ndarray, dtype: Any) -> np.ndarray:
    """Return some rows of chunks as `dtype`, in the order of `indices`."""
    indices = np.asarray(indices, np.int64)
    taken, start = np.empty((len(indices), *chunks[0].shape[1:]), dtype), 0
    for chunk in chunks:
        here = np.flatnonzero((indices >= start) & (indices < start + len(chunk)))
        if len(here):
            taken[here] = np.asarray(chunk[indices[here] - start], dtype)
        start += len(chunk)
    return taken


def rows_between(chunks: Sequence[Rows], start: int, stop: int) -> Rows | None:
    """Return rows `start` to `stop` of chunks in stored form; a whole chunk is not copied."""
    pieces, row = [], 0
    for chunk in chunks:
        low, high = max(start - row, 0), min(stop - row, len(chunk))
        if low < high:
            pieces.append(chunk if (low, high) == (0, len(chunk)) else chunk[low:high])
        row += len(chunk)
    if len(pieces) < 2:
        return pieces[0] if pieces else None
    integers = [piece for piece in pieces if isinstance(piece, QuantizedRows)]
    return join_rows(integers) if integers else np.concatenate([np.asarray(piece) for piece in pieces])


def query_blocks(features: np.ndarray, rows: Rows) -> list[np.ndarray]:
    """Split features `(q, D)` into blocks of 16, padding the last; integer rows need one block."""
    if isinstance(rows, ScaledRows):
        return query_blocks(features, rows.base)
    if isinstance(rows, QuantizedRows):
        return [features]
    blocks = [features[start : start + QUERY_BLOCK] for start in range(0, len(features), QUERY_BLOCK)]
    return [np.concatenate([block, np.repeat(block[:1], QUERY_BLOCK - len(block), axis=0)]) for block in blocks]


def _products(features: np.ndarray, rows: Rows, computed: Products) -> np.ndarray:
    for other, products in computed:
        if other is rows:
            return products
    if not len(features):
        return np.empty((0, len(rows)), features.dtype)
    return np.concatenate([inner(block, rows) for block in query_blocks(features, rows)])[: len(features)]


def as_multiplied(features: np.ndarray, rows: Rows) -> np.ndarray:
    """Return features `(q, D)` as used in products with these rows, float64: rounded if the rows are integers."""
    if isinstance(rows, ScaledRows):
        onto = as_multiplied(_onto_base(features, rows), rows.base)
        return np.divide(onto, rows.columns, out=np.zeros_like(onto), where=rows.columns != 0)
    if isinstance(rows, QuantizedRows):
        planes = split_planes(features, PLANE_BASE if rows.fine is None else FINE_PLANE_BASE)
        return planes.whole.astype(np.float64) * planes.unit[:, None]
    return features.astype(np.float64)


def inner(features: np.ndarray, rows: Rows) -> np.ndarray:
    """Return ⟨f(q), row⟩ `(q, m)`; rows stored in another dtype are converted a block at a time.

    Rows are the left factor, so that a query is a column: BLAS kernels compute all columns of a block of 16 the same
    way, but not all rows.
    """
    if isinstance(rows, ScaledRows):
        return _scaled(inner(_onto_base(features, rows), rows.base), rows)
    if isinstance(rows, QuantizedRows):
        return rows.inner(features)
    if rows.dtype == features.dtype:
        return (rows @ features.T).T
    products = np.empty((len(rows), len(features)), features.dtype)
    for low in range(0, len(rows), _GALLERY_BLOCK):
        block = rows[low : low + _GALLERY_BLOCK]
        half = block.dtype == np.float16 and features.dtype == np.float32
        block = to_float32(block) if half else block.astype(features.dtype)
        products[low : low + _GALLERY_BLOCK] = block @ features.T
    return products.T


_GLIMPSES = 256  # values sampled per row to find possible duplicates
_ROW_BLOCK = 512  # rows sampled together


def find_duplicates(*galleries: np.ndarray | None) -> np.ndarray | None:
    """Return for each row the first row equal to it in all galleries; None if all rows differ.

    Only rows with equal samples are read whole. Bytes are compared, so −0 is converted to 0 first.
    """
    present = [to_numpy(gallery) for gallery in galleries if gallery is not None]
    places = [np.linspace(0, g.shape[1] - 1, min(g.shape[1], _GLIMPSES)).astype(np.int64) for g in present]
    first = np.arange(len(present[0]))
    alike: dict[int, list[int]] = {}
    for start in range(0, len(first), _ROW_BLOCK):
        glimpses = [g[start : start + _ROW_BLOCK][:, at] + 0 for g, at in zip(present, places, strict=True)]
        for row, glimpse in enumerate(np.concatenate(glimpses, axis=1), start):
            alike.setdefault(hash(glimpse.tobytes()), []).append(row)
        for gallery in present:
            release(gallery)
    for rows in alike.values():
        seen: dict[bytes, int] = {}
        for row in rows if len(rows) > 1 else ():
            first[row] = seen.setdefault(b"".join((gallery[row] + 0).tobytes() for gallery in present), row)
    return None if (first == np.arange(len(first))).all() else first


def join_duplicates(each: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Return for each row the first row that is its duplicate in every gallery, from `find_duplicates` of each."""
    present = [first for first in each if first is not None]
    return find_duplicates(np.stack(present, axis=1)) if len(present) == len(each) else None


def tie_scores(scores: np.ndarray, columns: np.ndarray | None, rows: np.ndarray | None = None) -> np.ndarray:
    """Copy the scores (q, m) of the first of equal images to the others, so that rounding does not split a tie."""
    scores = scores if columns is None else np.take(scores, columns, axis=1)
    return scores if rows is None else scores[rows]


def top_k(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return indices and scores of the k best per row, ties to the smaller index; fewer if the gallery is smaller."""
    k = min(k, scores.shape[1])
    indices = np.empty((len(scores), k), np.int64)
    if k > 0:
        bar = np.partition(scores, scores.shape[1] - k, axis=1)[:, scores.shape[1] - k]
        for row in range(len(scores)):
            able = np.flatnonzero(scores[row] >= bar[row])
            indices[row] = able[np.argsort(-scores[row, able], kind="stable")[:k]]
    return indices, np.take_along_axis(scores, indices, axis=1)


DAMAGED = "scores are not finite: map files are damaged; find them with tfa info MAP --checksum, and rebuild the map"


@dataclass(frozen=True)
class SearchResult:
    """Best rows per query, best first, and mean and spread of all scores."""

    ids: np.ndarray  # (q, k), int64
    scores: np.ndarray  # (q, k), float32
    mean: np.ndarray  # (q,), float64: over all images
    spread: np.ndarray  # (q,), float64: population standard deviation


@dataclass(frozen=True)
class QueryVectors:
    """Queries `(q, D)` as the terms of a direct sum. `np.asarray` concatenates them.

    The search multiplies the separate terms, so that scores equal the formula to the last bit, and reuses `products`
    computed while describing the queries.
    """

    terms: tuple[np.ndarray, ...]  # (q, D_t) each
    weights: tuple[float, ...]
    products: Products = ()

    def __len__(self) -> int:
        return len(self.terms[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return direct_sum(self.weights, self.terms).astype(dtype or self.terms[0].dtype, copy=False)


@dataclass(frozen=True)
class WeightedGalleries:
    """Database side of score(q, d) = Σ_t weight_t · ⟨f_t(q), f_t(d)⟩ + b_d."""

    weights: tuple[float, ...]
    galleries: tuple[Gallery, ...]  # (m, D_t) each
    bias: np.ndarray  # (m,)
    duplicates: np.ndarray | None = None  # (m,): first image of equal content; None if all differ
    dtype: str = "float32"

    def __len__(self) -> int:
        return len(self.bias)

    @property
    def widths(self) -> list[int]:
        return [gallery.width for gallery in self.galleries]

    def scores(self, vectors: QueryVectors) -> np.ndarray:
        """Return scores `(q, m)`. Duplicates tie to the last bit, so that the smaller index wins."""
        total = np.zeros((len(vectors), len(self)), self.dtype)
        similarities = inner_of_terms(self.galleries, vectors.terms, vectors.products)
        for weight, similarity in zip(self.weights, similarities, strict=True):
            total += similarity if weight == 1 else np.dtype(self.dtype).type(weight) * similarity
        total += self.bias.astype(self.dtype)
        return total if self.duplicates is None else total[:, self.duplicates]

    def split_terms(self, vectors: np.ndarray | QueryVectors) -> QueryVectors:
        """Split vectors `(q, D)` into the terms of the direct sum."""
        if isinstance(vectors, QueryVectors):
            return vectors
        vectors = np.asarray(vectors, self.dtype)
        if vectors.ndim != 2 or vectors.shape[1] != sum(self.widths):
            raise BadSpec(f"vectors have shape {vectors.shape}, must be (any number, {sum(self.widths)})")
        pieces = np.split(vectors, np.cumsum(self.widths)[:-1], axis=1)
        terms = [p if w == 1 else p / p.dtype.type(np.sqrt(w)) for w, p in zip(self.weights, pieces, strict=True)]
        return QueryVectors(tuple(terms), self.weights)


class ExactSearch:
    """Exact search of rows in place.

    `alive` are the rows to search, in the order of `ids`; other rows are ignored.
    """

    def __init__(self, rows: WeightedGalleries, ids: np.ndarray, alive: np.ndarray | None = None) -> None:
        ids, alive = np.asarray(ids, np.int64), np.arange(len(rows)) if alive is None else alive
        order = np.argsort(ids, kind="stable")
        self.rows, self.ids, self.alive = rows, ids[order], alive[order]

    def __len__(self) -> int:
        """Return the number of searched images."""
        return len(self.ids)

    def scores(self, vectors: np.ndarray | QueryVectors) -> np.ndarray:
        """Return scores `(q, n)` of all searched images, in the order of `ids`."""
        return self.rows.scores(self.rows.split_terms(vectors))[:, self.alive]

    def search(self, vectors: np.ndarray | QueryVectors, k: int) -> SearchResult:
        """Return the k best for each query `(q, D)`, or all if there are fewer."""
        check_k(k)
        scores = self.scores(vectors)
        wide = np.ascontiguousarray(scores, np.float64)  # sums must not depend on the memory layout
        if not np.isfinite(wide).all():  # queries are finite, so the map is damaged
            raise BadMap(DAMAGED)
        columns, best = top_k(scores, k)
        mean, spread = (wide.mean(axis=1), wide.std(axis=1)) if len(self) else (np.zeros(len(scores)),) * 2
        return SearchResult(self.ids[columns], best, mean, spread)

    def prepare(self) -> None:
        """Prepare for many searches: pack integer rows for their kernel."""
        for gallery in self.rows.galleries:
            gallery.prepare()


def direct_sum(weights: Sequence[float], features: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate features, each scaled by the root of its weight (Ψ)."""
    scaled = [f if w == 1 else f * f.dtype.type(np.sqrt(w)) for w, f in zip(weights, features, strict=True)]
    return np.concatenate(scaled, axis=1)


def check_k(k: int, name: str = "k", least: int = 1) -> int:
    """Return k; raise BadSpec if it is not an integer of at least `least`."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer):
        raise BadSpec(f"{name}={k!r} is {type(k).__name__}, must be int")
    if k < least:
        raise BadSpec(f"{name}={k} is out of range: must be at least {least}")
    return k
