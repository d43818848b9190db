"""Compact tokens: what verification needs of every image of a map, a byte or two bits for each number of a patch.

Rows stand as the gallery's do. On disk they are memory-mapped, and only rows that are compared are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from tfa.base.config import RerankSpec
from tfa.base.spill import Spill
from tfa.base.threads import map_in_threads
from tfa.base.tokens import Tokens
from tfa.errors import BadTokens
from tfa.method.vocabulary import sample_patches
from tfa.search.gallery import rows_between, take_rows
from tfa.verification.admission import PairEvidence, cache_evidence
from tfa.verification.compaction import Compaction, count_dimensions, fit_compaction, use_two_bits
from tfa.verification.matching import Matches, find_matches, measure_evidence
from tfa.verification.reranking import Compared

_Tensors = Mapping[str, np.ndarray]
PatchGrid = tuple[int, int]


@dataclass(frozen=True)
class CompactTokens:
    """The patches of a map's images, projected and rounded."""

    compaction: Compaction
    grid: PatchGrid  # rows, columns of patches
    chunks: tuple[np.ndarray, ...]  # `rows n r` int8, or small `rows n g` uint8: a map grows by chunks
    spec: RerankSpec

    @classmethod
    def fit(cls, tokens: Tokens, spec: RerankSpec | None = None) -> CompactTokens:
        """Fitted on a sample of the images' own patches (ours)."""
        spec = spec or RerankSpec()
        return cls.of(tokens, fit_spec_compaction(sample_patches(tokens, spec.max_patches), spec), spec)

    @classmethod
    def of(cls, tokens: Tokens, compaction: Compaction, spec: RerankSpec | None = None) -> CompactTokens:
        """Compact images whose patches all lie on one known grid."""
        if tokens.grid is None:
            raise BadTokens(f"{explain_missing_grid(tokens)}; give it: Tokens(patches, grid=(rows, columns))")
        empty = cls(compaction, tokens.grid, (), spec or RerankSpec())
        return empty.grown(tokens)

    def grown(self, tokens: Tokens) -> CompactTokens:
        """Add one more chunk of images."""
        rows, columns = self.grid
        if tokens.grid not in (None, self.grid) or (tokens.counts != rows * columns).any():
            raise BadTokens(
                f"new images do not have the map's grid of {rows} × {columns} patches; "
                "encode them with the encoder of the map"
            )
        # A large map's chunk lies in a temporary file until it is saved.
        shape = (len(tokens), rows * columns, self.compaction.bytes_per_patch)
        chunk = Spill().empty(shape, self.compaction.dtype)

        def written(index: int) -> None:
            chunk[index] = self.compaction.pack(self.compaction.compact(tokens.load(index, index + 1)))[0]

        map_in_threads(written, range(len(tokens)))
        return replace(self, chunks=(*self.chunks, chunk))

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    @property
    def bytes_per_image(self) -> int:
        return self.grid[0] * self.grid[1] * self.compaction.bytes_per_patch

    def rows(self, indices: np.ndarray | Sequence[int]) -> np.ndarray:
        """Unit patches `c n r` of some images, float32; no other row is touched."""
        return self.compaction.unpack(take_rows(self.chunks, indices, self.compaction.dtype))

    def query(self, tokens: Tokens) -> np.ndarray:
        """Unit patches `q n r` of photos to compare, not rounded."""
        patches = tokens.load(0, len(tokens))
        return self.compaction.compact(patches)

    def resolve_grid(self, tokens: Tokens) -> PatchGrid | None:
        """How the patches of photos to compare lie: as they say, else as the map's if there are as many."""
        if tokens.grid is None and (tokens.counts == self.grid[0] * self.grid[1]).all():
            return self.grid
        return tokens.grid

    def evidence(self, query: np.ndarray, grid: PatchGrid, indices: np.ndarray) -> np.ndarray:
        """Evidence `c` of a photo's compact patches `n r` with some images."""
        return measure_evidence(query, self.rows(indices), grid, self.grid)

    def evidence_between(self, image: int, others: np.ndarray) -> np.ndarray:
        """Measure the evidence `c` of an image with others of the map."""
        return self.evidence(self.rows([image])[0], self.grid, others)

    def matches(self, query: np.ndarray, grid: PatchGrid, indices: np.ndarray) -> list[Matches]:
        """The same, match by match."""
        return find_matches(query, self.rows(indices), grid, self.grid)

    def match_each(
        self, queries: Sequence[np.ndarray], grid: PatchGrid, indices: Sequence[np.ndarray], threads: int | None = None
    ) -> list[list[Matches]]:
        """Match several photos, each with other images. Threads take a photo each.

        A single photo is compared by products that are shared among threads: switching between the two ways costs
        more than it saves, because the library's own threads keep waiting for work.
        """
        if len(queries) == 1:
            return [self.matches(queries[0], grid, indices[0])]
        return map_in_threads(
            lambda one: self.matches(one[0], grid, one[1]), list(zip(queries, indices, strict=True)), threads
        )

    # --- files ---------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """What the header says of it."""
        return {"spec": self.spec.to_dict(), "grid": list(self.grid)}

    def compaction_tensors(self) -> dict[str, np.ndarray]:
        tensors = {"mean": self.compaction.mean, "projection": self.compaction.projection}
        deviations = self.compaction.deviations
        return tensors if deviations is None else {**tensors, "deviations": deviations}

    def patch_tensors(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Rows `start` to `stop`."""
        rows = rows_between(self.chunks, start, stop)
        assert isinstance(rows, np.ndarray), "a segment has images"
        return {"patches": rows}

    @classmethod
    def from_tensors(cls, entry: dict[str, Any], head: _Tensors, galleries: Sequence[_Tensors]) -> CompactTokens:
        spec, grid = RerankSpec.from_dict(entry["spec"]), (int(entry["grid"][0]), int(entry["grid"][1]))
        deviations = head["deviations"] if spec.patches == "small" else None
        compaction = Compaction(head["mean"], head["projection"], deviations)
        if compaction.deviations is not None and compaction.deviations.shape != (compaction.dimensions,):
            raise ValueError(f"deviations must be {compaction.dimensions}, one for each number of a patch")
        chunks = tuple(gallery["patches"] for gallery in galleries)
        shape, kind = (grid[0] * grid[1], compaction.bytes_per_patch), np.dtype(compaction.dtype)
        if any(chunk.dtype != kind or chunk.shape[1:] != shape for chunk in chunks):
            raise ValueError(f"compact tokens must be {kind} of {shape[0]} patches × {shape[1]} bytes")
        return cls(compaction, grid, chunks, spec)


def fit_spec_compaction(patches: np.ndarray, spec: RerankSpec) -> Compaction:
    """Fit a compaction of the kind that `spec` names on unit patches `t d` of the map."""
    full = fit_compaction(patches, count_dimensions(spec.patches, spec.dimensions))
    return full if spec.patches == "full" else use_two_bits(full, patches)


def prepare_photo_evidence(compact: CompactTokens | None, photos: Tokens) -> PairEvidence | None:
    """Prepare the evidence of photos, by number, with map images, each pair computed once; None without a grid."""
    grid = None if compact is None else compact.resolve_grid(photos)
    if compact is None or grid is None:
        return None
    # One photo at a time, so that its bits do not depend on its batch.
    patches = map_in_threads(lambda row: compact.query(photos.select([row]))[0], range(len(photos)))
    return cache_evidence(lambda row, images: compact.evidence(patches[row], grid, images))


class ComparesPhotos(Protocol):
    """What holds patches of images and compares photos with them: `CompactTokens`, `patch_source.SourcedTokens`."""

    def query(self, tokens: Tokens) -> np.ndarray:
        """Unit patches `q n r` of photos."""
        ...

    def match_each(
        self, queries: Sequence[np.ndarray], grid: PatchGrid, indices: Sequence[np.ndarray]
    ) -> list[list[Matches]]:
        """Match several photos, each with other images."""
        ...


class PhotoPairs:
    """Photos beside images of a store, compared when that is needed: a `Comparison`.

    `grid` is that of the photos; `stored_rows` `m` says where the images that have a score stand in the store.
    """

    def __init__(self, store: ComparesPhotos, photos: Tokens, grid: PatchGrid, stored_rows: np.ndarray) -> None:
        self.store, self.photos, self.grid, self.stored_rows = store, photos, grid, stored_rows
        self._last: dict[int, np.ndarray] = {}  # of the last photos: they are compared in rounds

    def with_queries(self, rows: Sequence[int], images: Sequence[np.ndarray]) -> list[Compared]:
        known = self._last  # another thread may replace it
        self._last = last = {row: known[row] if row in known else self.patches(row) for row in rows}
        patches = [last[row] for row in rows]
        found = self.store.match_each(patches, self.grid, [self.stored_rows[own] for own in images])
        return [
            Compared(np.array([m.evidence for m in one], np.float64), np.array([m.count for m in one], np.int64))
            for one in found
        ]

    def patches(self, row: int) -> np.ndarray:
        """Unit patches `n r` of a photo; one photo at a time, so that its bits do not depend on its batch."""
        return self.store.query(self.photos.select([row]))[0]


def explain_missing_grid(tokens: Tokens) -> str | None:
    """Explain why the arrangement of patches cannot be compared; None if it can."""
    if tokens.grid is not None:
        return None
    if len(np.unique(tokens.counts)) > 1:
        return "the images differ in their number of patches"
    return "how the patches of an image lie is not known"
