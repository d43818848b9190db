"""Coarse scores with a proof: the k best of a gallery of floats, at a byte a number.

A row is read as integers L̂ with what rounding left out of it, e = row − L̂, known by its norm; a query as Q̂:

    ⟨q, row⟩ = ⟨Q̂, L̂⟩ + ⟨q, e⟩ + ⟨q − Q̂, L̂⟩,   so   |⟨q, row⟩ − ⟨Q̂, L̂⟩| ≤ ‖q‖ ‖e‖ + ‖q − Q̂‖ ‖L̂‖

Every image whose bound can still reach the k best is scored again from its row. The k best are then those of an
exhaustive search; of the other images the coarse score stays, and no bound of it reaches the k-th best.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfa.base.half import widened
from tfa.base.tokens import Tokens
from tfa.method.scorer import Scorer, ScoreTerm
from tfa.search.gallery import Rows
from tfa.search.quantised_rows import BASE, ROWS, QuantisedRows, planes_of, rounded

# Beyond the two terms: float32 holds a coarse product, and the score it is compared with, to 2^-24 of itself.
ROUNDING = 2.0**-22


@dataclass(frozen=True)
class BoundedRows:
    """A chunk of gallery rows as integers, and how far each is from what it stands for."""

    rows: QuantisedRows
    lost: np.ndarray  # m: ‖row − L̂‖
    norms: np.ndarray  # m: ‖L̂‖

    @classmethod
    def of(cls, chunk: np.ndarray) -> BoundedRows:
        """int8 rows of a chunk, a block of rows at a time."""
        blocks, lost, norms = [], np.empty(len(chunk)), np.empty(len(chunk))
        for start in range(0, len(chunk), ROWS):
            exact = widened(chunk[start : start + ROWS])
            block = rounded(exact)
            near = np.asarray(block)
            lost[start : start + ROWS] = np.linalg.norm(exact - near, axis=1)
            norms[start : start + ROWS] = np.linalg.norm(near, axis=1)
            blocks.append(block)
        stored = np.concatenate([block.stored for block in blocks])
        return cls(QuantisedRows(stored, np.concatenate([block.step for block in blocks]), chunk.shape[1]), lost, norms)


class BoundedScorer:
    """A scorer of floats that answers from integers and proves its k best."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.parts = [[bounded_rows(chunk) for chunk in part.gallery] for part in scorer.terms]

    def prepare(self) -> None:
        """Pack the integers for their kernel; scores stay as they are."""
        for chunks in self.parts:
            for chunk in chunks:
                chunk.rows.prepare()

    def scores(self, tokens: Tokens, k: int, alive: np.ndarray | None = None) -> np.ndarray:
        """`q m` scores: exact for the k best of the images `alive` (None: all), coarse for the others."""
        self.scorer._check(tokens)
        features = self.scorer.query_features(tokens) if len(tokens) else []
        return self.scores_of(features, k, alive) if features else np.empty((0, len(self.scorer.bias)), np.float32)

    def scores_of(self, features: Sequence[np.ndarray], k: int, alive: np.ndarray | None = None) -> np.ndarray:
        """The same of queries whose feature of each part is given."""
        coarse, bound = self.bounded(features)
        alive = np.arange(coarse.shape[1]) if alive is None else alive
        k = min(k, len(alive))
        for query in range(len(coarse)) if k else ():
            row, able = coarse[query], coarse[query, alive] + bound[query, alive]
            first = alive[np.argpartition(-row[alive], k - 1)[:k]]
            exact = self._exact([f[query] for f in features], first)
            # Those k reach their lowest exact score, so nothing whose bound is below it is among the k best.
            rest = np.setdiff1d(alive[able >= exact.min()], first)
            row[first], row[rest] = exact, self._exact([f[query] for f in features], rest)
        return coarse.astype(np.float32)

    def bounded(self, features: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Coarse scores and how far the exact ones may be from them, `q m` each."""
        shape = len(features[0]), len(self.scorer.bias)
        coarse, bound = np.zeros(shape), np.zeros(shape)
        for part, chunks, asked in zip(self.scorer.terms, self.parts, features, strict=True):
            planes = planes_of(asked, BASE)
            norms = np.linalg.norm(asked, axis=1)[:, None]
            near = planes.whole * planes.unit[:, None]
            missed = np.linalg.norm(asked - near, axis=1)[:, None] + ROUNDING * norms
            coarse += part.weight * np.concatenate([c.rows.inner(asked) for c in chunks], axis=1)
            lost, size = np.concatenate([c.lost for c in chunks]), np.concatenate([c.norms for c in chunks])
            bound += part.weight * (norms * lost + missed * size)
        coarse += self.scorer.bias
        bound += ROUNDING * np.abs(coarse)
        duplicates = self.scorer.duplicates
        return (coarse, bound) if duplicates is None else (coarse[:, duplicates], bound[:, duplicates])

    def _exact(self, feature: Sequence[np.ndarray], images: np.ndarray) -> np.ndarray:
        """Scores of one query with some images: in float64, each row on its own, so that equal rows tie."""
        rows = images if self.scorer.duplicates is None else self.scorer.duplicates[images]
        total = self.scorer.bias[rows].astype(np.float64)
        for part, asked in zip(self.scorer.terms, feature, strict=True):
            total += part.weight * (_gathered(part, rows).astype(np.float64) * asked).sum(axis=1)
        return total.astype(np.float32)


def _gathered(part: ScoreTerm, rows: np.ndarray) -> np.ndarray:
    """Some rows of a part's gallery; no other is read."""
    found, start = np.empty((len(rows), part.width), np.float32), 0
    for chunk in part.gallery:
        here = np.flatnonzero((rows >= start) & (rows < start + len(chunk)))
        if len(here):
            found[here] = widened(np.asarray(chunk[rows[here] - start]))
        start += len(chunk)
    return found


# A chunk that an edit leaves in place is not rounded again: its integers live as long as it does.
_known: dict[int, BoundedRows] = {}


def bounded_rows(chunk: Rows) -> BoundedRows:
    """The integers of a chunk, made once."""
    if id(chunk) not in _known:
        assert isinstance(chunk, np.ndarray)
        _known[id(chunk)] = BoundedRows.of(chunk)
        weakref.finalize(chunk, _known.pop, id(chunk), None)
    return _known[id(chunk)]
