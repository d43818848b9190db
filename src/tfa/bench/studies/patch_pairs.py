"""Evidence of pairs (query, database image), each found once whatever heads, splits and replicas ask for it.

A benchmark asks the same queries of one head after another, and heads agree on most of their candidates.
Patches are made compact when an image is first a candidate; images that never are cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfa.base.config import VerifySpec
from tfa.base.spill import Spill
from tfa.base.tokens import Tokens
from tfa.errors import BadTokens
from tfa.method.vocabulary import sample_patches
from tfa.verification.compaction import Compaction, fit_compaction, quantised, restored
from tfa.verification.matching import evidence


class CompactPatches:
    """Compact patches of a set of images that lie on one grid, each image computed when it is first asked for."""

    def __init__(self, tokens: Tokens, compaction: Compaction, *, levels: bool, spill: Spill) -> None:
        self.tokens, self.compaction, self.levels = tokens, compaction, levels
        self.grid = known_grid(tokens)
        shape = (len(tokens), self.grid[0] * self.grid[1], compaction.dimensions)
        # As a map keeps them: the database's in int8. The file is sparse: what is not asked for takes no room.
        self._kept = spill.empty(shape, np.int8 if levels else np.float32)
        self._made = np.zeros(len(tokens), bool)

    def rows(self, images: np.ndarray) -> np.ndarray:
        """Unit rows `c n r` of some of the images."""
        for image in np.unique(images[~self._made[images]]):  # one at a time: bits do not depend on the company
            rows = self.compaction.compact(self.tokens.load(image, image + 1)[0])
            self._kept[image] = quantised(rows) if self.levels else rows
            self._made[image] = True
        kept = np.asarray(self._kept[images])
        return restored(kept) if self.levels else kept


class PatchPairs:
    """The patches of a database, and the evidence of every pair asked for so far."""

    def __init__(self, database: Tokens, spec: VerifySpec | None = None) -> None:
        self.spec, self._spill = spec or VerifySpec(), Spill()
        known_grid(database)
        sample = sample_patches(database, self.spec.max_patches)
        self.compaction = fit_compaction(sample, self.spec.dimensions)
        self.database = CompactPatches(database, self.compaction, levels=True, spill=self._spill)
        self._among: dict[tuple[int, int], float] = {}
        self._remembered: dict[int, tuple[Any, CompactPatches, np.ndarray]] = {}

    def evidence(self, queries: Tokens, wanted: Sequence[np.ndarray]) -> list[np.ndarray]:
        """For each query the evidence of its `wanted` database images, as float64."""
        if not len(queries):
            return []
        patches, known, rows = self._known(queries)
        found = []
        for row, images in zip(rows, wanted, strict=True):
            missing = images[np.isnan(known[row, images])]
            if len(missing):
                query = patches.rows(np.array([row]))[0]
                known[row, missing] = evidence(query, self.database.rows(missing), patches.grid, self.database.grid)
            found.append(known[row, images].astype(np.float64))
        return found

    def among(self, image: int, images: np.ndarray) -> np.ndarray:
        """The evidence of a database image with others of the database."""
        fresh = np.array([other for other in images if (image, int(other)) not in self._among], np.int64)
        if len(fresh):
            own = self.database.rows(np.array([image]))[0]
            found = evidence(own, self.database.rows(fresh), self.database.grid, self.database.grid)
            self._among.update({(image, int(other)): float(e) for other, e in zip(fresh, found, strict=True)})
        return np.array([self._among[image, int(other)] for other in images], np.float64)

    def between(self, images: np.ndarray, one: int, other: int) -> float:
        """The evidence of two of some database images with each other."""
        return float(self.among(int(images[one]), images[[other]])[0])

    def _known(self, queries: Tokens) -> tuple[CompactPatches, np.ndarray, np.ndarray]:
        """Compact patches and evidence `q m` of the set that the queries are taken from, and which rows they are.

        Selections of one remembered set share its `memory`; without one, nothing is kept beyond this call.
        """
        if queries.memory is None:
            return *self._fresh(queries), np.arange(len(queries))
        key = id(queries.memory)
        if key not in self._remembered:
            # The memory is held too, so that its id stays its own.
            self._remembered[key] = (queries.memory, *self._fresh(queries.memory.tokens))
        _, patches, known = self._remembered[key]
        return patches, known, queries.rows

    def _fresh(self, queries: Tokens) -> tuple[CompactPatches, np.ndarray]:
        patches = CompactPatches(queries, self.compaction, levels=False, spill=self._spill)
        known = self._spill.empty((len(queries), len(self.database.tokens)), np.float32)  # counts: exact to 2²⁴
        known[:] = np.nan
        return patches, known


def known_grid(tokens: Tokens) -> tuple[int, int]:
    if tokens.grid is None:
        raise BadTokens(
            "verification compares where patches lie and these tokens do not say; "
            "give tfa.Tokens(patches, cls, grid=(rows, columns))"
        )
    return tokens.grid
