"""Coarse scores with a proof: the k best of a gallery of floats, at a byte a number.

A row is read as integers L̂ with what rounding left out of it, e = row − L̂, known by its norm; a query as Q̂:

    ⟨q, row⟩ = ⟨Q̂, L̂⟩ + ⟨q, e⟩ + ⟨q − Q̂, L̂⟩,   so   |⟨q, row⟩ − ⟨Q̂, L̂⟩| ≤ ‖q‖ ‖e‖ + ‖q − Q̂‖ ‖L̂‖

Every image whose bound can still reach the k best is scored again from its row. The k best are then those of an
exhaustive search; of the other images the coarse score stays, and no bound of it reaches the k-th best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfa.base.half import to_float32
from tfa.search.engine import QueryVectors
from tfa.search.exact import ExactEngine
from tfa.search.gallery import Rows
from tfa.search.quantised_rows import BASE, ROWS, QuantisedRows, empty_levels, planes_of, rounded

# Beyond the two terms: float32 holds a coarse product, and the score it is compared with, to 2^-24 of itself.
ROUNDING = 2.0**-22


@dataclass(frozen=True)
class BoundedRows:
    """A chunk of gallery rows as integers, and how far each is from what it stands for."""

    rows: QuantisedRows
    lost: np.ndarray  # m: ‖row − L̂‖
    norms: np.ndarray  # m: ‖L̂‖

    @classmethod
    def of(cls, chunk: Rows) -> BoundedRows:
        """int8 rows of a chunk of floats, a block of rows at a time."""
        assert not isinstance(chunk, QuantisedRows), "rows of integers need no bounds: their products are exact"
        stored, step = empty_levels(*chunk.shape), np.empty(len(chunk), np.float32)
        lost, norms = np.empty(len(chunk)), np.empty(len(chunk))
        for start in range(0, len(chunk), ROWS):
            block = chunk[start : start + ROWS]
            exact = to_float32(block) if isinstance(block, np.ndarray) else np.asarray(block)
            coarse = rounded(exact)
            near = np.asarray(coarse)
            lost[start : start + ROWS] = np.linalg.norm(exact - near, axis=1)
            norms[start : start + ROWS] = np.linalg.norm(near, axis=1)
            stored[start : start + ROWS], step[start : start + ROWS] = coarse.stored, coarse.step
        return cls(QuantisedRows(stored, step, chunk.shape[1]), lost, norms)


class BoundedEngine(ExactEngine):
    """Searches rows of floats by integers of them, and proves its k best."""

    name = "bounded"

    def bounds(self) -> list[list[BoundedRows]]:
        """Of each term the integers of its chunks, made when they are first needed."""
        return [gallery.derived(BoundedRows.of) for gallery in self.rows.galleries]

    def prepare(self) -> None:
        """Make the integers and pack them for their kernel."""
        for chunks in self.bounds():
            for chunk in chunks:
                chunk.rows.prepare()

    def scores(self, vectors: np.ndarray | QueryVectors, k: int | None = None) -> np.ndarray:
        """`q n` scores in the order of `ids`: exact for the k best (None: for all), coarse for the others."""
        if k is None:
            return super().scores(vectors)
        features = self.rows.taken_apart(vectors).terms
        coarse, bound = self.bounded(features)
        k = min(k, len(self.alive))
        for query in range(len(coarse)) if k else ():
            row, able = coarse[query], coarse[query, self.alive] + bound[query, self.alive]
            first = self.alive[np.argpartition(-row[self.alive], k - 1)[:k]]
            exact = self._exact([f[query] for f in features], first)
            # Those k reach their lowest exact score, so nothing whose bound is below it is among the k best.
            rest = np.setdiff1d(self.alive[able >= exact.min()], first)
            row[first], row[rest] = exact, self._exact([f[query] for f in features], rest)
        return coarse.astype(np.float32)[:, self.alive]

    def bounded(self, features: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Coarse scores of all rows and how far the exact ones may be from them, `q m` each."""
        shape = len(features[0]), len(self.rows)
        coarse, bound = np.zeros(shape), np.zeros(shape)
        for weight, chunks, feature in zip(self.rows.weights, self.bounds(), features, strict=True):
            planes = planes_of(feature, BASE)
            norms = np.linalg.norm(feature, axis=1)[:, None]
            near = planes.whole * planes.unit[:, None]
            missed = np.linalg.norm(feature - near, axis=1)[:, None] + ROUNDING * norms
            coarse += weight * np.concatenate([c.rows.inner(feature) for c in chunks], axis=1)
            lost, size = np.concatenate([c.lost for c in chunks]), np.concatenate([c.norms for c in chunks])
            bound += weight * (norms * lost + missed * size)
        coarse += self.rows.bias
        bound += ROUNDING * np.abs(coarse)
        same = self.rows.duplicates
        return (coarse, bound) if same is None else (coarse[:, same], bound[:, same])

    def _exact(self, feature: Sequence[np.ndarray], images: np.ndarray) -> np.ndarray:
        """Scores of one query with some images: in float64, each row on its own, so that equal rows tie."""
        rows = images if self.rows.duplicates is None else self.rows.duplicates[images]
        total = self.rows.bias[rows].astype(np.float64)
        for weight, gallery, own in zip(self.rows.weights, self.rows.galleries, feature, strict=True):
            total += weight * (gallery.take(rows).astype(np.float64) * own).sum(axis=1)
        return total.astype(np.float32)
