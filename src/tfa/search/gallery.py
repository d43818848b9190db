"""The gallery: rows `m D` of floats or integers, in chunks, and their inner products with queries.

A map grows by chunks and a head has one. Rows are float32, float64, float16 or integers (`QuantisedRows`), or such
rows on another scale (`ScaledRows`); what reads them sees floats. Products do not depend on other queries of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from tfa.base.half import widened
from tfa.base.spill import release
from tfa.search.quantised_rows import BASE, FINE_BASE, QuantisedRows, joined_rows, planes_of
from tfa.search.scaled_rows import ScaledRows

# Queries are multiplied in blocks of this many, the last one padded: matrix products then have the same shape for
# any number of queries, and a score does not depend, in its last bit, on the queries beside it.
QUERY_BLOCK = 16
GALLERY_BLOCK = 256  # rows of a float16 gallery widened to float32 at a time
OwnRows = np.ndarray | QuantisedRows  # numbers of their own
Rows = OwnRows | ScaledRows
# Products `q m` that were made already, each with the rows it is of.
Products = Sequence[tuple[Rows, np.ndarray]]
B = TypeVar("B")


@dataclass(frozen=True)
class Gallery:
    """Rows of one term of a score. It never changes: `appended` makes another one that shares its chunks."""

    chunks: tuple[Rows, ...]
    # What was derived from each chunk (`derived`): it lives as long as the chunk is in some gallery.
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
        """With one more chunk."""
        return Gallery((*self.chunks, rows), dict(self._derived))

    def starting_with(self, other: Gallery) -> Gallery:
        """The same rows, the first chunk being that of `other`, which is equal and may have been prepared."""
        return Gallery((other.chunks[0], *self.chunks[1:]), {i: d for i, d in other._derived.items() if i == 0})

    def take(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Some rows as floats, float32 unless they are float64; no other row is read."""
        stored = [chunk.dtype for chunk in self.chunks if isinstance(chunk, np.ndarray)]
        return take_rows(self.chunks, indices, np.result_type(np.float32, *stored))

    def select(self, indices: np.ndarray) -> Gallery:
        """Some rows, by growing index, as they are stored; no other row is read."""
        ends = np.cumsum([len(chunk) for chunk in self.chunks])
        pieces = np.split(indices, np.searchsorted(indices, ends[:-1]))
        starts = [0, *ends[:-1].tolist()]
        chunks = [c[own - start] for c, own, start in zip(self.chunks, pieces, starts, strict=True) if len(own)]
        return Gallery(tuple(chunks))

    def between(self, start: int, stop: int) -> Rows | None:
        """Rows `start` to `stop` as they are stored; None if there are none."""
        return rows_between(self.chunks, start, stop)

    def inner(self, features: np.ndarray, computed: Products = ()) -> np.ndarray:
        """⟨f(q), row⟩ `q m`; products with chunks that are computed already are not made again."""
        return np.concatenate([_products(features, chunk, computed) for chunk in self.chunks], axis=1)

    def derived(self, make: Callable[[Rows], B]) -> list[B]:
        """`make` of each chunk, made once: a chunk that an edit leaves in place is not worked on again."""
        for index, chunk in enumerate(self.chunks):
            if index not in self._derived:
                self._derived[index] = make(chunk)
        return [self._derived[index] for index in range(len(self.chunks))]

    def prepare(self) -> None:
        """Pack rows of integers for their kernel; products stay as they are."""
        for chunk in self.chunks:
            if not isinstance(chunk, np.ndarray):
                chunk.prepare()

    def release(self) -> None:
        """Give back the memory of rows that were read from files."""
        for base in map(_base, self.chunks):
            base.release() if isinstance(base, QuantisedRows) else release(base)


def inner_of_terms(
    galleries: Sequence[Gallery], features: Sequence[np.ndarray], computed: Products = ()
) -> list[np.ndarray]:
    """⟨f_t(q), row⟩ `q m` of each term t. Rows that several terms have on other scales are read once."""
    products: list[np.ndarray] = [np.empty(0)] * len(galleries)
    for terms in _of_equal_bases(galleries):
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


def _of_equal_bases(galleries: Sequence[Gallery]) -> list[list[int]]:
    """Terms whose galleries have the same numbers below their scales, in the order of the first of each."""
    groups: list[list[int]] = []
    for term, gallery in enumerate(galleries):
        for group in groups:
            first = galleries[group[0]].chunks
            if len(first) == len(gallery.chunks) and all(
                _base(one) is _base(other) for one, other in zip(first, gallery.chunks, strict=True)
            ):
                group.append(term)
                break
        else:
            groups.append([term])
    return groups


def _base(rows: Rows) -> OwnRows:
    return rows.base if isinstance(rows, ScaledRows) else rows


def _onto_base(features: np.ndarray, rows: Rows) -> np.ndarray:
    """Features whose products with the base are, but for a scale a row, those with the rows."""
    return features * rows.columns.astype(features.dtype) if isinstance(rows, ScaledRows) else features


def _scaled(products: np.ndarray, rows: Rows) -> np.ndarray:
    """Products `q m` with the base as those with the rows."""
    return products * rows.scale.astype(products.dtype) if isinstance(rows, ScaledRows) else products


def take_rows(chunks: Sequence[Rows], indices: Sequence[int] | np.ndarray, dtype: Any) -> np.ndarray:
    """Some rows of chunks, as `dtype`, in the order of `indices`."""
    indices = np.asarray(indices, np.int64)
    taken, start = np.empty((len(indices), *chunks[0].shape[1:]), dtype), 0
    for chunk in chunks:
        here = np.flatnonzero((indices >= start) & (indices < start + len(chunk)))
        if len(here):
            taken[here] = np.asarray(chunk[indices[here] - start], dtype)
        start += len(chunk)
    return taken


def rows_between(chunks: Sequence[Rows], start: int, stop: int) -> Rows | None:
    """Rows `start` to `stop` of chunks, as they are stored; a whole chunk is not copied."""
    pieces, row = [], 0
    for chunk in chunks:
        low, high = max(start - row, 0), min(stop - row, len(chunk))
        if low < high:
            pieces.append(chunk if (low, high) == (0, len(chunk)) else chunk[low:high])
        row += len(chunk)
    if len(pieces) < 2:
        return pieces[0] if pieces else None
    integers = [piece for piece in pieces if isinstance(piece, QuantisedRows)]
    return joined_rows(integers) if integers else np.concatenate([np.asarray(piece) for piece in pieces])


def query_blocks(features: np.ndarray, rows: Rows) -> list[np.ndarray]:
    """Features `q D` in blocks of 16, the last filled up with its first; in one where the rows are integers."""
    if isinstance(rows, ScaledRows):
        return query_blocks(features, rows.base)
    if isinstance(rows, QuantisedRows):
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
    """Features `q D` as products with such rows see them, float64: beside rows of integers they are rounded, too."""
    if isinstance(rows, ScaledRows):
        onto = as_multiplied(_onto_base(features, rows), rows.base)
        return np.divide(onto, rows.columns, out=np.zeros_like(onto), where=rows.columns != 0)
    if isinstance(rows, QuantisedRows):
        planes = planes_of(features, BASE if rows.fine is None else FINE_BASE)
        return planes.whole.astype(np.float64) * planes.unit[:, None]
    return features.astype(np.float64)


def inner(features: np.ndarray, rows: Rows) -> np.ndarray:
    """⟨f(q), row⟩ `q m`; rows stored in another dtype are widened a block at a time.

    The rows stand left of the product, so that a query is a column: BLAS kernels treat the columns of a block of 16
    alike, which they do not do for rows.
    """
    if isinstance(rows, ScaledRows):
        return _scaled(inner(_onto_base(features, rows), rows.base), rows)
    if isinstance(rows, QuantisedRows):
        return rows.inner(features)
    if rows.dtype == features.dtype:
        return (rows @ features.T).T
    products = np.empty((len(rows), len(features)), features.dtype)
    for low in range(0, len(rows), GALLERY_BLOCK):
        block = rows[low : low + GALLERY_BLOCK]
        half = block.dtype == np.float16 and features.dtype == np.float32
        products[low : low + GALLERY_BLOCK] = (widened(block) if half else block.astype(features.dtype)) @ features.T
    return products.T
