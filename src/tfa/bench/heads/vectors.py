"""Heads that are one unit vector per image, compared by cosine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tfa.bench.heads.contract import Photos
from tfa.core.arrays import Spill, release
from tfa.core.progress import Progress
from tfa.core.tokens import Tokens
from tfa.search.gallery import QUERY_BLOCK, find_duplicates, inner

IMAGES_AT_ONCE = 256
IN_MEMORY_BYTES = 64 << 20  # a gallery larger than this lies in a mapped temporary file

Describe = Callable[[Tokens], np.ndarray]  # b images → b D unit vectors, each image on its own


def described(tokens: Tokens, describe: Describe, progress: Progress) -> np.ndarray:
    """Vectors `m D` of a database, some images at a time: large galleries lie in a mapped temporary file."""
    rows = None
    with progress.task("descriptors", len(tokens), "images") as task:
        for start in range(0, len(tokens), IMAGES_AT_ONCE):
            part = describe(tokens.select(slice(start, start + IMAGES_AT_ONCE)))
            if rows is None:
                rows = Spill(IN_MEMORY_BYTES).empty((len(tokens), part.shape[1]), part.dtype)
            rows[start : start + len(part)] = part
            release(rows)
            task.advance(len(part))
    assert rows is not None, "a database has images"
    return rows


@dataclass(frozen=True)
class VectorHead:
    """A way to describe images and the described database, for each replica."""

    describe: Mapping[str, Describe]
    gallery: Mapping[str, np.ndarray]  # m D
    duplicates: Mapping[str, np.ndarray | None]
    data_used: str

    @classmethod
    def of(cls, database: Photos, describe: Mapping[str, Describe], data_used: str, progress: Progress) -> VectorHead:
        gallery = {replica: described(database.tokens, describe[replica], progress) for replica in describe}
        return cls(describe, gallery, {replica: find_duplicates(rows) for replica, rows in gallery.items()}, data_used)

    @property
    def replicas(self) -> tuple[str, ...]:
        return tuple(self.describe)

    def scores(self, queries: Photos, replica: str) -> np.ndarray:
        gallery, duplicates = self.gallery[replica], self.duplicates[replica]
        blocks = []
        for start in range(0, len(queries), QUERY_BLOCK):
            tokens, count = _padded(queries.tokens, start)  # equal shapes: no score depends on its neighbours
            rows = inner(self.describe[replica](tokens), gallery)[:count]
            blocks.append(rows if duplicates is None else rows[:, duplicates])  # equal images tie to the last bit
        return np.concatenate(blocks) if blocks else np.empty((0, len(gallery)), gallery.dtype)


def _padded(tokens: Tokens, start: int) -> tuple[Tokens, int]:
    """The block of queries at `start`, filled up with its first query, and how many of it are real."""
    count = min(QUERY_BLOCK, len(tokens) - start)
    return tokens.select(np.r_[np.arange(start, start + count), np.full(QUERY_BLOCK - count, start)]), count
