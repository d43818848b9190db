"""Patch sources: compact tokens that lie elsewhere, read by the ids of images, a batch at a time.

`patch_store.CompactTokens` holds the patches of all images of a map in order. Of a map of many images they lie in a
store or a bucket; `SourcedTokens` compares photos with some of the images and reads no others.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tfa.base.config import RerankSpec
from tfa.base.tokens import Tokens
from tfa.verification.compaction import Compaction
from tfa.verification.matching import Matches
from tfa.verification.patch_store import CompactTokens, PatchGrid

CACHED_BYTES = 256_000_000  # of patches kept in memory


class PatchSource(Protocol):
    """Where patches lie."""

    def rows(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """What is kept of these images, `c n g` in their order: one batched read; a missing id is an error."""
        ...


class CachedPatches:
    """The patches that were used last, in memory, up to so many bytes (None: 256 MB): another `PatchSource`."""

    def __init__(self, source: PatchSource, most_bytes: int | None = None) -> None:
        self._source, self._most = source, CACHED_BYTES if most_bytes is None else most_bytes
        self._cached: OrderedDict[int, np.ndarray] = OrderedDict()
        self._bytes, self._lock = 0, threading.Lock()

    def rows(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        wanted = [int(one) for one in ids]
        with self._lock:
            known = {one: self._cached[one] for one in wanted if one in self._cached}
            for one in known:
                self._cached.move_to_end(one)
        missing = sorted(set(wanted) - set(known))
        if missing:
            fresh = dict(zip(missing, self._source.rows(missing), strict=True))
            known |= fresh
            with self._lock:
                self._keep(fresh)
        return np.stack([known[one] for one in wanted])

    def facts(self) -> dict[str, int]:
        """What is kept now, and how much may be."""
        with self._lock:
            return {"images": len(self._cached), "bytes": self._bytes, "most_bytes": self._most}

    def _keep(self, fresh: dict[int, np.ndarray]) -> None:
        for one, patches in fresh.items():
            if one not in self._cached:
                self._cached[one] = np.array(patches)  # of its own: a view would keep the whole batch
                self._bytes += patches.nbytes
        while self._bytes > self._most and self._cached:
            self._bytes -= self._cached.popitem(last=False)[1].nbytes


@dataclass(frozen=True)
class SourcedTokens:
    """Compact tokens of a map whose patches a source brings: compares photos as `CompactTokens` does."""

    compaction: Compaction
    grid: PatchGrid
    spec: RerankSpec
    source: CachedPatches

    @property
    def bytes_per_image(self) -> int:
        return self.grid[0] * self.grid[1] * self.compaction.bytes_per_patch

    def of(self, ids: Sequence[int] | np.ndarray) -> CompactTokens:
        """The compact tokens of some images, a row each in their order."""
        return CompactTokens(self.compaction, self.grid, (self.source.rows(ids),), self.spec)

    def empty(self) -> CompactTokens:
        """Return compact tokens of no image, to describe photos and new images with."""
        return CompactTokens(self.compaction, self.grid, (), self.spec)

    def query(self, tokens: Tokens) -> np.ndarray:
        return self.empty().query(tokens)

    def resolve_grid(self, tokens: Tokens) -> PatchGrid | None:
        return self.empty().resolve_grid(tokens)

    def match_each(
        self, queries: Sequence[np.ndarray], grid: PatchGrid, indices: Sequence[np.ndarray], threads: int | None = None
    ) -> list[list[Matches]]:
        """Match several photos, each with other images, by their ids; all patches come in one read."""
        ids = np.unique(np.concatenate(indices))
        local = [np.searchsorted(ids, own) for own in indices]
        return self.of(ids).match_each(queries, grid, local, threads)
