"""A cache of patch comparisons: each pair (query, database image) is matched once, whatever heads, splits and replicas
need it. How patches are kept and compared is that of maps (`tfa.verification.patches`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfa.core.arrays import Spill
from tfa.core.tokens import Tokens
from tfa.errors import BadTokens
from tfa.method.described_queries import DescribedQueries
from tfa.types import RerankSpec
from tfa.verification.admission import cache_evidence
from tfa.verification.patches import CompactTokens, PhotoPairs
from tfa.verification.reranking import Compared, Comparison


class PatchPairs:
    """The patches of a database, and every pair compared so far."""

    def __init__(self, database: Tokens, spec: RerankSpec | None = None) -> None:
        known_grid(database)
        self.store = CompactTokens.fit(database, spec)
        self.evidence_between = cache_evidence(self.store.evidence_between)
        self._known: dict[Tokens, ComparedQueries] = {}  # by the set that queries are taken from

    @property
    def spec(self) -> RerankSpec:
        return self.store.spec

    def of(self, queries: Tokens) -> Comparison:
        """The comparison of queries with the database, which lasts for the queries of a dataset."""
        if not isinstance(queries, DescribedQueries):
            return ComparedQueries(self, queries)
        if queries.whole not in self._known:
            self._known[queries.whole] = ComparedQueries(self, queries.whole)
        return Selected(self._known[queries.whole], queries.rows)


class ComparedQueries(PhotoPairs):
    """A set of queries beside the database; what was compared is kept."""

    def __init__(self, pairs: PatchPairs, queries: Tokens) -> None:
        store, grid = pairs.store, known_grid(queries)
        super().__init__(store, queries, grid, np.arange(len(store)))
        self._found: dict[tuple[int, int], tuple[float, int]] = {}
        # Every head may bring new candidates of a query, whose patches are needed again: they are kept, in a file.
        self._patches = Spill().empty((len(queries), grid[0] * grid[1], store.compaction.dimensions), np.float32)
        self._made = np.zeros(len(queries), bool)

    def with_queries(self, rows: Sequence[int], images: Sequence[np.ndarray]) -> list[Compared]:
        wanted = list(zip(rows, [own.tolist() for own in images], strict=True))
        missing = [(row, [image for image in own if (row, image) not in self._found]) for row, own in wanted]
        fresh = [(row, np.array(own)) for row, own in missing if own]
        for (row, own), compared in zip(fresh, super().with_queries(*_columns(fresh)), strict=True):
            pairs = zip(own.tolist(), compared.evidence.tolist(), compared.inliers.tolist(), strict=True)
            self._found.update({(row, image): (evidence, matches) for image, evidence, matches in pairs})
        tables = [[self._found[row, image] for image in own] for row, own in wanted]
        return [
            Compared(np.array([e for e, _ in table], np.float64), np.array([m for _, m in table], np.int64))
            for table in tables
        ]

    def patches(self, row: int) -> np.ndarray:
        if not self._made[row]:
            self._patches[row], self._made[row] = super().patches(row), True
        return np.asarray(self._patches[row])


class Selected:
    """Some `rows` of compared queries."""

    def __init__(self, whole: ComparedQueries, rows: np.ndarray) -> None:
        self.whole, self.rows = whole, rows

    def with_queries(self, rows: Sequence[int], images: Sequence[np.ndarray]) -> list[Compared]:
        return self.whole.with_queries(self.rows[list(rows)].tolist(), images)


def _columns(pairs: Sequence[tuple[int, np.ndarray]]) -> tuple[list[int], list[np.ndarray]]:
    return [row for row, _ in pairs], [images for _, images in pairs]


def known_grid(tokens: Tokens) -> tuple[int, int]:
    if tokens.grid is None:
        raise BadTokens(
            "verification compares where patches lie and these tokens do not say; "
            "give tfa.Tokens(patches, cls, grid=(rows, columns))"
        )
    return tokens.grid
