"""Exact search in memory: every score, then the k best.

    score(q, d) = ⟨vector(q), vector(d)⟩ + bias(d),   ties to the smaller id

A compiled head (`method.scorer`) is all it needs: it knows nothing of photos, words or spectra.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.errors import BadMap, BadSpec
from tfa.search.gallery import Gallery, Products, find_duplicates, inner_of_terms, top_k

DAMAGED = (
    "a photo's scores are not finite numbers: files of the map were damaged since they were written; see which with "
    "tfa info MAP --checksum, and build the map again"
)


@dataclass(frozen=True)
class SearchResult:
    """The best rows of each query, best first, and the mean and spread of all its scores."""

    ids: np.ndarray  # q k, int64
    scores: np.ndarray  # q k, float32
    mean: np.ndarray  # q, float64: over everything that can be found
    spread: np.ndarray  # q, float64: the population standard deviation


@dataclass(frozen=True)
class QueryVectors:
    """Queries `q D`, still as the terms they are the direct sum of. `np.asarray` makes one array of them.

    The search multiplies the terms as they are, so that scores are those of the formula to the last bit, and reuses
    the `products` with rows that describing the queries needed anyway.
    """

    terms: tuple[np.ndarray, ...]  # q D_t each
    weights: tuple[float, ...]
    products: Products = ()

    def __len__(self) -> int:
        return len(self.terms[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return direct_sum(self.weights, self.terms).astype(dtype or self.terms[0].dtype, copy=False)


@dataclass(frozen=True)
class WeightedGalleries:
    """score(q, d) = Σ_t weight_t · ⟨f_t(q), f_t(d)⟩ + b_d: all that scoring needs of the database."""

    weights: tuple[float, ...]
    galleries: tuple[Gallery, ...]  # m D_t each
    bias: np.ndarray  # m
    duplicates: np.ndarray | None = None  # m: the first image of the very same content; None if all differ
    dtype: str = "float32"

    def __len__(self) -> int:
        return len(self.bias)

    @property
    def widths(self) -> list[int]:
        return [gallery.width for gallery in self.galleries]

    def scores(self, vectors: QueryVectors) -> np.ndarray:
        """`q m`. Duplicates tie to the last bit, so that the smaller index wins."""
        total = np.zeros((len(vectors), len(self)), self.dtype)
        similarities = inner_of_terms(self.galleries, vectors.terms, vectors.products)
        for weight, similarity in zip(self.weights, similarities, strict=True):
            total += similarity if weight == 1 else np.dtype(self.dtype).type(weight) * similarity
        total += self.bias.astype(self.dtype)
        return total if self.duplicates is None else total[:, self.duplicates]

    def split_terms(self, vectors: np.ndarray | QueryVectors) -> QueryVectors:
        """Vectors `q D` as the terms they are the direct sum of."""
        if isinstance(vectors, QueryVectors):
            return vectors
        vectors = np.asarray(vectors, self.dtype)
        if vectors.ndim != 2 or vectors.shape[1] != sum(self.widths):
            raise BadSpec(f"vectors have shape {vectors.shape}, must be (any number, {sum(self.widths)})")
        pieces = np.split(vectors, np.cumsum(self.widths)[:-1], axis=1)
        terms = [p if w == 1 else p / p.dtype.type(np.sqrt(w)) for w, p in zip(self.weights, pieces, strict=True)]
        return QueryVectors(tuple(terms), self.weights)


class ExactSearch:
    """Searches rows where they lie: those of a map, or its own.

    `rows` may hold images that are not to be found; `alive` are those that are, in the order of their ids.
    """

    def __init__(self, rows: WeightedGalleries, ids: np.ndarray, alive: np.ndarray | None = None) -> None:
        ids, alive = np.asarray(ids, np.int64), np.arange(len(rows)) if alive is None else alive
        order = np.argsort(ids, kind="stable")
        self.rows, self.ids, self.alive = rows, ids[order], alive[order]

    def __len__(self) -> int:
        """How many images can be found."""
        return len(self.ids)

    def scores(self, vectors: np.ndarray | QueryVectors) -> np.ndarray:
        """Return scores `q n` of everything that can be found, in the order of `ids`."""
        return self.rows.scores(self.rows.split_terms(vectors))[:, self.alive]

    def search(self, vectors: np.ndarray | QueryVectors, k: int) -> SearchResult:
        """Return the k best for each query `q D`, or all if there are fewer."""
        return _rank(self.scores(vectors), self.ids, check_k(k))

    def prepare(self) -> None:
        """Make ready for many searches: pack rows of integers for their kernel."""
        for gallery in self.rows.galleries:
            gallery.prepare()


def gather_rows(vectors: np.ndarray, bias: np.ndarray) -> WeightedGalleries:
    """Return vectors `m D` with a bias `m` each as rows to search."""
    vectors, bias = np.ascontiguousarray(vectors, np.float32), np.asarray(bias, np.float32)
    if len(vectors) != len(bias):
        raise BadSpec(f"{len(vectors)} vectors need as many biases; got {len(bias)}")
    same = find_duplicates(vectors, bias[:, None]) if len(vectors) else None
    return WeightedGalleries((1.0,), (Gallery.of(vectors),), bias, same)


def _rank(scores: np.ndarray, ids: np.ndarray, k: int) -> SearchResult:
    """The k best columns of scores `q n`, ties to the smaller id, and mean and spread of each row."""
    wide = np.ascontiguousarray(scores, np.float64)  # sums must not depend on how the rows lie in memory
    if not np.isfinite(wide).all():  # of queries that are finite
        raise BadMap(DAMAGED)
    columns, best = top_k(scores, k)
    empty = not scores.shape[1]
    mean, spread = (np.zeros(len(scores)),) * 2 if empty else (wide.mean(axis=1), wide.std(axis=1))
    return SearchResult(ids[columns], best, mean, spread)


def direct_sum(weights: Sequence[float], features: Sequence[np.ndarray]) -> np.ndarray:
    """Ψ: features side by side, each scaled by the root of its weight."""
    scaled = [f if w == 1 else f * f.dtype.type(np.sqrt(w)) for w, f in zip(weights, features, strict=True)]
    return np.concatenate(scaled, axis=1)


def check_k(k: int) -> int:
    """Return k, refused below 1."""
    if k < 1:
        raise BadSpec(f"k={k} is out of range: must be at least 1")
    return k
