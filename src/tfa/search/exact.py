"""Exact search in this process: every score, then the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tfa.errors import BadMap, BadSpec
from tfa.search.engine import Payload, QueryVectors, SearchResult, checked_k
from tfa.search.gallery import Gallery, inner_of_terms
from tfa.search.ties import find_duplicates, top_k

DAMAGED = (
    "a photo's scores are not finite numbers: files of the map were damaged since they were written; see which with "
    "tfa info MAP --checksum, and build the map again"
)


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
        products = inner_of_terms(self.galleries, vectors.terms, vectors.known)
        for weight, similarity in zip(self.weights, products, strict=True):
            total += similarity if weight == 1 else np.dtype(self.dtype).type(weight) * similarity
        total += self.bias.astype(self.dtype)
        return total if self.duplicates is None else total[:, self.duplicates]

    def taken_apart(self, vectors: np.ndarray | QueryVectors) -> QueryVectors:
        """Vectors `q D` as the terms they are the direct sum of."""
        if isinstance(vectors, QueryVectors):
            return vectors
        vectors = np.asarray(vectors, self.dtype)
        if vectors.ndim != 2 or vectors.shape[1] != sum(self.widths):
            raise BadSpec(f"vectors have shape {vectors.shape}, must be (any number, {sum(self.widths)})")
        pieces = np.split(vectors, np.cumsum(self.widths)[:-1], axis=1)
        terms = [p if w == 1 else p / p.dtype.type(np.sqrt(w)) for w, p in zip(self.weights, pieces, strict=True)]
        return QueryVectors(tuple(terms), self.weights)


class ExactEngine:
    """Searches rows where they lie: those of a map, or its own.

    `rows` may hold images that are not to be found; `alive` are those that are, in the order of their ids.
    """

    name = "exact"

    def __init__(
        self,
        rows: WeightedGalleries,
        ids: np.ndarray,
        alive: np.ndarray | None = None,
        payload: Sequence[Payload] | None = None,
    ) -> None:
        self.rows, ids = rows, np.asarray(ids, np.int64)
        self._hold(ids, np.arange(len(rows)) if alive is None else alive)
        self._payload = {} if payload is None else dict(zip(ids.tolist(), payload, strict=True))

    def _hold(self, ids: np.ndarray, alive: np.ndarray) -> None:
        order = np.argsort(ids, kind="stable")
        self.ids, self.alive = ids[order], alive[order]

    @classmethod
    def create(
        cls, vectors: np.ndarray, bias: np.ndarray, ids: np.ndarray, payload: Sequence[Payload] | None = None
    ) -> Self:
        vectors = np.ascontiguousarray(vectors, np.float32)
        check_counts(len(vectors), ids, bias)
        bias = np.asarray(bias, np.float32)
        same = find_duplicates(vectors, bias[:, None]) if len(vectors) else None
        return cls(WeightedGalleries((1.0,), (Gallery.of(vectors),), bias, same), ids, payload=payload)

    def upsert(
        self, vectors: np.ndarray, bias: np.ndarray, ids: np.ndarray, payload: Sequence[Payload] | None = None
    ) -> None:
        ids, fresh = np.asarray(ids, np.int64), self.rows.taken_apart(vectors)
        check_counts(len(fresh), ids, bias)
        self.delete(ids)
        first, rows = len(self.rows), self.rows
        galleries = tuple(g.appended(np.ascontiguousarray(t)) for g, t in zip(rows.galleries, fresh.terms, strict=True))
        biases = np.concatenate([rows.bias, np.asarray(bias, rows.bias.dtype)])
        every = [gallery.take(np.arange(len(biases))) for gallery in galleries]
        same = find_duplicates(*every, biases[:, None])
        self.rows = WeightedGalleries(rows.weights, galleries, biases, same, rows.dtype)
        self._hold(np.r_[self.ids, ids], np.r_[self.alive, np.arange(first, len(biases))])
        if payload is not None:
            self._payload |= dict(zip(ids.tolist(), payload, strict=True))

    def delete(self, ids: Sequence[int] | np.ndarray) -> None:
        kept = ~np.isin(self.ids, np.asarray(ids, np.int64))
        for gone in self.ids[~kept].tolist():
            self._payload.pop(gone, None)
        self.ids, self.alive = self.ids[kept], self.alive[kept]

    def scores(self, vectors: np.ndarray | QueryVectors, k: int | None = None) -> np.ndarray:
        """`q n` scores of everything that can be found, in the order of `ids`; the k best at least are exact."""
        return self.rows.scores(self.rows.taken_apart(vectors))[:, self.alive]

    def search(self, vectors: np.ndarray | QueryVectors, k: int) -> SearchResult:
        return ranked(self.scores(vectors, checked_k(k)), self.ids, k)

    def payload(self, ids: Sequence[int] | np.ndarray) -> list[Payload]:
        return [self._payload.get(int(one), {}) for one in ids]

    def count(self) -> int:
        return len(self.ids)

    def describe(self) -> dict[str, Any]:
        """What the engine holds, in JSON."""
        stored = sorted({type(chunk).__name__ for g in self.rows.galleries for chunk in g.chunks})
        return {"engine": self.name, "count": self.count(), "dimensions": sum(self.rows.widths), "rows": stored}

    def prepare(self) -> None:
        """Make ready for many searches: rows of integers are packed for their kernel."""
        for gallery in self.rows.galleries:
            gallery.prepare()


def check_counts(vectors: int, ids: np.ndarray, bias: np.ndarray) -> None:
    distinct = len(np.unique(ids))
    if not vectors == distinct == len(ids) == len(bias):
        raise BadSpec(f"{vectors} vectors need as many distinct ids and biases; got {distinct} and {len(bias)}")


def ranked(scores: np.ndarray, ids: np.ndarray, k: int) -> SearchResult:
    """The k best columns of scores `q n`, ties to the smaller id, and mean and spread of each row."""
    wide = np.ascontiguousarray(scores, np.float64)  # sums must not depend on how the rows lie in memory
    if not np.isfinite(wide).all():  # of queries that are finite
        raise BadMap(DAMAGED)
    columns, best = top_k(scores, k)
    empty = not scores.shape[1]
    mean, spread = (np.zeros(len(scores)),) * 2 if empty else (wide.mean(axis=1), wide.std(axis=1))
    return SearchResult(ids[columns], best, mean, spread)
