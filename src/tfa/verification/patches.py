"""Compact patch descriptors of map images: centered, projected, quantized, and read from memory or a store.

    y = L2(λ^(−1/4) Uᵀ(p̃ − μ_cell))      p̃: unit patch,   U, λ: PCA of the map's centered patches

μ_cell is the mean of the map's patches in that cell of the patch grid, with 2 pseudo-counts at the mean μ of all cells.
What every photo has in a cell (sky above, road below, a hood, the encoder's position code) would otherwise line up in
photos of different places. A photo with another grid uses the cell at the same relative place. Photos of a stream are
centered on the stream's own cell means (`tfa.online.adaptation.CellMeans`). Older maps have μ in place of μ_cell.

Full patches are int8. Small patches have two bits per dimension, four dimensions in a byte:

    level    the nearest of ±0.4528 σ and ±1.5104 σ     σ: deviation of that dimension over the map's patches
    byte     four levels, the first in the lowest bits

These four levels quantize a normal variable best (Lloyd, Max). Query patches are not quantized, so each similarity has
the quantization error of one side only. Arrays in, arrays out.
"""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, Protocol

import numpy as np
import scipy  # loads its parts on first use

from tfa.core.arrays import Spill, l2_normalize, map_in_threads, to_float32
from tfa.core.tokens import Tokens
from tfa.errors import BadMap, BadTokens
from tfa.method.vocabulary import DrawnPatches
from tfa.search.gallery import Gallery, rows_between, take_rows
from tfa.types import RerankSpec
from tfa.verification.matching import BY_EVIDENCE, ONE_WINDOW, Matches, Windows, find_matches, measure_evidence
from tfa.verification.reranking import EARLIER_WEIGHT, WEIGHT, Compared
from tfa.verification.usual_evidence import PairEvidence, cache_evidence

# --- two bits -------------------------------------------------------------------------------------

_NORMAL_LEVELS = np.array([-1.5104, -0.4528, 0.4528, 1.5104], np.float32)  # in units of σ
BETWEEN = 0.9816  # border between an inner and an outer level, in units of σ; the inner levels meet at 0
TOGETHER = 4  # dimensions per byte


def count_packed_bytes(numbers: int) -> int:
    return -(-numbers // TOGETHER)


def measure_deviations(rows: np.ndarray) -> np.ndarray:
    """Return the root mean square (r,) of each column of (t, r); levels are centered on zero, not on the mean."""
    return np.sqrt(np.mean(np.square(rows, dtype=np.float64), axis=0)).astype(np.float32)


def pack_levels(rows: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """Pack rows (…, r) into bytes (…, g) of two-bit levels; the last byte is padded with zeros."""
    numbers, border = rows.shape[-1], np.float32(BETWEEN) * deviations
    levels = np.zeros((*rows.shape[:-1], count_packed_bytes(numbers), TOGETHER), np.uint8)
    flat = levels.reshape(*rows.shape[:-1], count_packed_bytes(numbers) * TOGETHER)  # the same memory
    for least in (-border, np.float32(0), border):
        flat[..., :numbers] += rows > least
    return np.bitwise_or.reduce(levels << np.arange(0, 8, 2, dtype=np.uint8), axis=-1)


def build_level_table(deviations: np.ndarray) -> np.ndarray:
    """Return the four values of each byte by its place in the patch and its value: (g, 256, 4), float32."""
    padded = np.zeros(count_packed_bytes(len(deviations)) * TOGETHER, np.float32)
    padded[: len(deviations)] = deviations
    level = _NORMAL_LEVELS[np.arange(256)[:, None] >> np.arange(0, 8, 2) & 3]  # 256 4
    return np.ascontiguousarray(level * padded.reshape(-1, 1, TOGETHER))


def unpack_levels(codes: np.ndarray, table: np.ndarray, numbers: int) -> np.ndarray:
    """Unpack bytes (…, g) to rows (…, r) of levels, float32."""
    # Four floats are one item of 16 bytes, so one lookup reads four values.
    items = table.view(np.complex128).ravel()
    places = np.arange(0, items.size, table.shape[1], dtype=np.int64)
    rows = items.take(codes + places).view(np.float32)
    return rows if rows.shape[-1] == numbers else np.ascontiguousarray(rows[..., :numbers])


# --- compaction -----------------------------------------------------------------------------------

_BLOCK = 2048  # patches per product
_INT8_LEVELS = 127
SMALL_DIMENSIONS = 120  # dimensions of two bits: 30 bytes per patch, 15,870 for 23 × 23 patches
_DEVIATION_PATCHES = 20_000  # patches used to measure deviations
_RANK_FLOOR = 1e-9  # directions with a smaller share of the largest variance are rounding
_CELL_PSEUDO_COUNTS = 2.0  # weight of μ in a cell mean, in patches: the cell means of a few photos are the photos


@dataclass(frozen=True)
class Compaction:
    """Projection and quantization of patches."""

    mean: np.ndarray  # (d,)
    projection: np.ndarray  # (d, r): directions scaled by λ^(−1/4)
    deviations: np.ndarray | None = None  # (r,): deviation of each dimension; None for int8 patches
    cells: np.ndarray | None = None  # (n, r): μ_cell − μ, projected; None in older maps

    @property
    def dimensions(self) -> int:
        return int(self.projection.shape[1])

    @property
    def bytes_per_patch(self) -> int:
        return self.dimensions if self.deviations is None else count_packed_bytes(self.dimensions)

    @property
    def dtype(self) -> type[np.int8 | np.uint8]:
        """Dtype of packed patches."""
        return np.int8 if self.deviations is None else np.uint8

    def project(self, patches: np.ndarray) -> np.ndarray:
        """Project patches (…, n, d) to rows (…, n, r) relative to μ, float32; of two depths, those of the later."""
        # ⟨L2(p) − μ, u⟩ = ⟨p, u⟩/‖p‖ − ⟨μ, u⟩: normalizing after the projection scales r values, not d.
        rows = to_float32(patches[..., -len(self.projection) :])
        norm = np.sqrt(np.einsum("...d,...d->...", rows, rows))[..., None]
        return rows @ self.projection / np.where(norm > 0, norm, 1) - self.mean @ self.projection

    def compact(self, patches: np.ndarray, cell: np.ndarray | None = None) -> np.ndarray:
        """Center and project patches (…, n, d) to unit rows (…, n, r), float32.

        `cell` (n,) is the cell of each patch [default: cells in order].
        """
        projected = self.project(patches)
        if self.cells is None:
            return l2_normalize(projected)
        return l2_normalize(projected - (self.cells if cell is None else self.cells[cell]))

    @property
    def weight(self) -> float:
        """Weight of √M next to a z-score."""
        return EARLIER_WEIGHT if self.cells is None else WEIGHT

    def pack(self, rows: np.ndarray) -> np.ndarray:
        """Quantize unit rows (…, n, r) to the stored bytes."""
        return quantize_rows(rows) if self.deviations is None else pack_levels(rows, self.deviations)

    def unpack(self, codes: np.ndarray) -> np.ndarray:
        """Restore unit rows (…, n, r), float32, from the stored bytes."""
        if self._table is None:
            return restore_rows(codes)
        return _unit(unpack_levels(codes, self._table, self.dimensions))

    @cached_property
    def _table(self) -> np.ndarray | None:
        return None if self.deviations is None else build_level_table(self.deviations)


def fit_compaction(patches: np.ndarray, dimensions: int, cell: np.ndarray | None = None, cells: int = 0) -> Compaction:
    """Fit a compaction to unit patches (t, d) of the map; `cell` (t,) is the grid cell of each, of that many cells.

    Without `cell`, patches are centered on μ, as in older maps.
    """
    mean = patches.mean(axis=0, dtype=np.float64)

    def squares(start: int) -> np.ndarray:
        centered = patches[start : start + _BLOCK] - mean
        return centered.T @ centered  # numpy runs it as a symmetric rank-k update

    # Block by block, because a float64 copy of all patches would be several times their size.
    covariance = reduce(np.add, map_in_threads(squares, range(0, len(patches), _BLOCK))) / len(patches)
    offsets = None
    if cell is not None:
        counts = np.bincount(cell, minlength=cells)[:, None]
        members = scipy.sparse.csr_array((np.ones(len(cell)), (cell, np.arange(len(cell)))), (cells, len(cell)))
        offsets = (members @ patches - counts * mean) / (counts + _CELL_PSEUDO_COUNTS)  # o = μ_cell − μ
        # Σ (x − o)(x − o)ᵀ = Σ x xᵀ − (n + 4) o oᵀ over the n patches of a cell, because Σ x = (n + 2) o.
        covariance -= (offsets * (counts + 2 * _CELL_PSEUDO_COUNTS)).T @ offsets / len(patches)
    variance, directions = np.linalg.eigh(covariance)
    variance, directions = variance[::-1], directions[:, ::-1]
    kept = variance[:dimensions] > _RANK_FLOOR * max(float(variance[0]), 0.0)
    kept[0] = True  # identical patches have no direction; keeping one keeps the shapes valid
    variance, directions = variance[:dimensions][kept], directions[:, :dimensions][:, kept]
    scale = np.where(variance > 0, variance, 1.0) ** -0.25
    # C order, as in files: products of other layouts differ in their last bits.
    projection = np.ascontiguousarray(directions * scale, np.float32)
    projected = None if offsets is None else (offsets @ projection).astype(np.float32)
    return Compaction(mean.astype(np.float32), projection, cells=projected)


def count_dimensions(patches: str, dimensions: int) -> int:
    """Return the maximum number of dimensions of a patch; small patches have fewer."""
    return dimensions if patches == "full" else min(dimensions, SMALL_DIMENSIONS)


def use_two_bits(compaction: Compaction, patches: np.ndarray, cell: np.ndarray | None = None) -> Compaction:
    """Return the compaction with two bits per dimension, fitted on unit patches (t, d) of these cells (t,)."""
    every = slice(None, None, -(-len(patches) // _DEVIATION_PATCHES))
    rows = compaction.compact(patches[every], None if cell is None else cell[every])
    return replace(compaction, deviations=measure_deviations(rows))


def quantize_rows(rows: np.ndarray) -> np.ndarray:
    """Quantize unit rows (…, r) to int8, each scaled by its largest entry."""
    largest = np.abs(rows).max(axis=-1, keepdims=True)
    return np.rint(rows * (_INT8_LEVELS / np.where(largest > 0, largest, 1.0))).astype(np.int8)


def restore_rows(levels: np.ndarray) -> np.ndarray:
    return _unit(levels.astype(np.float32))


def _unit(rows: np.ndarray) -> np.ndarray:
    """Normalize rows (…, r) in place."""
    squared = np.einsum("...r,...r->...", rows, rows)[..., None]
    rows *= 1 / np.sqrt(np.where(squared > 0, squared, 1))
    return rows


# --- patch store ----------------------------------------------------------------------------------

_Tensors = Mapping[str, np.ndarray]


def _sum_rows(patches: np.ndarray) -> np.ndarray:
    """Return the CRC-32 of each image's stored patches, `(m,)` int64."""
    return np.array([zlib.crc32(np.ascontiguousarray(row).data) for row in patches], np.int64)


PatchGrid = tuple[int, int]


@dataclass(frozen=True)
class CompactTokens:
    """Compact patches of map images."""

    compaction: Compaction
    grid: PatchGrid  # rows, columns of patches
    chunks: tuple[np.ndarray, ...]  # (rows, n, r) int8, or small (rows, n, g) uint8; an edit adds a chunk
    spec: RerankSpec
    sums: np.ndarray | None = None  # (m,) int64, checksums of patches that are read from files

    @classmethod
    def fit(cls, tokens: Tokens, spec: RerankSpec | None = None, *, cells: bool = True) -> CompactTokens:
        """Fit a compaction on a sample of the patches, and compact all images; without `cells` as in older maps."""
        spec, grid = spec or RerankSpec(), _require_grid(tokens)
        drawn, count = DrawnPatches.draw(tokens.block(-1), spec.max_patches), grid[0] * grid[1]
        cell = drawn.chosen % count if cells else None
        return cls.of(tokens, fit_spec_compaction(drawn.read(), spec, cell, count), spec)

    @classmethod
    def of(cls, tokens: Tokens, compaction: Compaction, spec: RerankSpec | None = None) -> CompactTokens:
        """Compact images, which must have one patch grid."""
        return cls(compaction, _require_grid(tokens), (), spec or RerankSpec()).grown(tokens)

    def grown(self, tokens: Tokens) -> CompactTokens:
        """Return compact tokens with one more chunk of images."""
        rows, columns = self.grid
        if tokens.grid not in (None, self.grid) or (tokens.counts != rows * columns).any():
            raise BadTokens(
                f"new images do not have the map's grid of {rows} × {columns} patches; "
                "encode them with the map's encoder"
            )
        # A large chunk stays in a temporary file until the map is saved.
        shape = (len(tokens), rows * columns, self.compaction.bytes_per_patch)
        chunk = Spill().empty(shape, self.compaction.dtype)

        def written(index: int) -> None:
            chunk[index] = self.compaction.pack(self.compaction.compact(tokens.load(index, index + 1)))[0]

        map_in_threads(written, range(len(tokens)))
        sums = None if self.sums is None else np.concatenate([self.sums, _sum_rows(chunk)])
        return replace(self, chunks=(*self.chunks, chunk), sums=sums)

    def keeping(self, rows: np.ndarray) -> CompactTokens:
        """Drop all other images."""
        chunks: Any = Gallery(self.chunks).select(rows).chunks
        return replace(self, chunks=chunks, sums=None if self.sums is None else self.sums[rows])

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    @property
    def bytes_per_image(self) -> int:
        return self.grid[0] * self.grid[1] * self.compaction.bytes_per_patch

    @property
    def windows(self) -> Windows:
        """Windows in which votes are counted."""
        return ONE_WINDOW if self.compaction.cells is None else BY_EVIDENCE

    def rows(self, indices: np.ndarray | Sequence[int]) -> np.ndarray:
        """Return unit patches (c, n, r) of some images, float32, without reading other rows."""
        patches = take_rows(self.chunks, indices, self.compaction.dtype)
        if self.sums is not None and (_sum_rows(patches) != self.sums[indices]).any():
            text = "stored patches were damaged after the map was written (checksum differs)"
            raise BadMap(f"{text}; find the file with tfa info MAP --checksum, and rebuild the map")
        return self.compaction.unpack(patches)

    def query(self, tokens: Tokens) -> np.ndarray:
        """Return unit patches (q, n, r) of query photos, centered on the map's cells, not quantized."""
        grid = self.resolve_grid(tokens)
        cell = None if grid is None else find_cells(grid, self.grid)
        return self.compaction.compact(tokens.load(0, len(tokens)), cell)

    def project(self, tokens: Tokens) -> np.ndarray | None:
        """Return projected patches (q, n, r) for the cell means of a stream; None without the map's cells."""
        if self.compaction.cells is None or self.resolve_grid(tokens) != self.grid:
            return None
        return self.compaction.project(tokens.load(0, len(tokens)))

    def resolve_grid(self, tokens: Tokens) -> PatchGrid | None:
        """Return the patch grid of query photos: their own, or the map's if the number of patches is equal."""
        if tokens.grid is None and (tokens.counts == self.grid[0] * self.grid[1]).all():
            return self.grid
        return tokens.grid

    def evidence(self, query: np.ndarray, grid: PatchGrid, indices: np.ndarray) -> np.ndarray:
        """Return the evidence (c,) of a photo's compact patches (n, r) with some images."""
        return measure_evidence(query, self.rows(indices), grid, self.grid, self.windows)

    def evidence_between(self, image: int, others: np.ndarray) -> np.ndarray:
        """Return the evidence (c,) of a map image with other map images."""
        return self.evidence(self.rows([image])[0], self.grid, others)

    def matches(self, query: np.ndarray, grid: PatchGrid, indices: np.ndarray) -> list[Matches]:
        """Match a photo's compact patches (n, r) with some images."""
        return find_matches(query, self.rows(indices), grid, self.grid, self.windows)

    def match_each(
        self, queries: Sequence[np.ndarray], grid: PatchGrid, indices: Sequence[np.ndarray], threads: int | None = None
    ) -> list[list[Matches]]:
        """Match several photos, each with its own images, one photo per thread.

        A single photo uses multithreaded products instead: switching to one-thread products would cost more than it
        saves, because the BLAS threads keep spinning.
        """
        if len(queries) == 1:
            return [self.matches(queries[0], grid, indices[0])]
        each = list(zip(queries, indices, strict=True))
        return map_in_threads(lambda one: self.matches(one[0], grid, one[1]), each, threads)

    # --- files ---------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the entry for the map header; without "cells" in older maps."""
        entry: dict[str, Any] = {"spec": self.spec.to_dict(), "grid": list(self.grid)}
        return entry if self.compaction.cells is None else {**entry, "cells": True}

    def compaction_tensors(self) -> dict[str, np.ndarray]:
        names = ("mean", "projection", "deviations", "cells")
        return {name: array for name in names if (array := getattr(self.compaction, name)) is not None}

    def patch_tensors(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return the patches of rows `start` to `stop`."""
        rows = rows_between(self.chunks, start, stop)
        assert isinstance(rows, np.ndarray), "a segment has images"
        return {"patches": rows, "patches.crc32": _sum_rows(rows) if self.sums is None else self.sums[start:stop]}

    @classmethod
    def from_tensors(cls, entry: Mapping[str, Any], head: _Tensors, galleries: Sequence[_Tensors]) -> CompactTokens:
        spec, grid = RerankSpec.from_dict(entry["spec"]), (int(entry["grid"][0]), int(entry["grid"][1]))
        deviations = head["deviations"] if spec.patches == "small" else None
        cells = head["cells"] if entry.get("cells") else None
        compaction = Compaction(head["mean"], head["projection"], deviations, cells)
        if compaction.deviations is not None and compaction.deviations.shape != (compaction.dimensions,):
            raise ValueError(f"deviations must be {compaction.dimensions}, one per dimension of a patch")
        chunks = tuple(gallery["patches"] for gallery in galleries)
        shape, kind = (grid[0] * grid[1], compaction.bytes_per_patch), np.dtype(compaction.dtype)
        if any(chunk.dtype != kind or chunk.shape[1:] != shape for chunk in chunks):
            raise ValueError(f"compact tokens must be {kind} of {shape[0]} patches × {shape[1]} bytes")
        if compaction.cells is not None and compaction.cells.shape != (shape[0], compaction.dimensions):
            raise ValueError(f"cells must be {shape[0]} × {compaction.dimensions}, a row per patch")
        sums = [one["patches.crc32"].ravel() for one in galleries if "patches.crc32" in one]
        whole = bool(sums) and [len(own) for own in sums] == [len(chunk) for chunk in chunks]
        return cls(compaction, grid, chunks, spec, np.concatenate(sums) if whole else None)


def fit_spec_compaction(
    patches: np.ndarray, spec: RerankSpec, cell: np.ndarray | None = None, cells: int = 0
) -> Compaction:
    """Fit the compaction that `spec` names on unit patches (t, d) of the map, as `fit_compaction` does."""
    full = fit_compaction(patches, count_dimensions(spec.patches, spec.dimensions), cell, cells)
    return full if spec.patches == "full" else use_two_bits(full, patches, cell)


def find_cells(grid: PatchGrid, other: PatchGrid) -> np.ndarray:
    """Return the cell of `other` at the place of each cell (n,) of `grid`; the cells in order if both are equal."""
    rows, columns = (
        (2 * np.arange(cells) + 1) * others // (2 * cells) for cells, others in zip(grid, other, strict=True)
    )
    return (rows[:, None] * other[1] + columns).ravel()


def _require_grid(tokens: Tokens) -> PatchGrid:
    if tokens.grid is None:
        raise BadTokens(f"{explain_missing_grid(tokens)}; pass it: Tokens(patches, grid=(rows, columns))")
    return tokens.grid


def fit_compact_tokens(tokens: Tokens, spec: RerankSpec) -> CompactTokens | None:
    """Fit compact tokens of the database; None without a patch grid."""
    return None if tokens.grid is None else CompactTokens.fit(tokens, spec)


def prepare_photo_evidence(compact: CompactTokens | None, photos: Tokens) -> PairEvidence | None:
    """Return a cached function for the evidence of photos with map images; None without a patch grid."""
    grid = None if compact is None else compact.resolve_grid(photos)
    if compact is None or grid is None:
        return None
    # One photo at a time, so that results do not depend on the batch.
    patches = map_in_threads(lambda row: compact.query(photos.select([row]))[0], range(len(photos)))
    return cache_evidence(lambda row, images: compact.evidence(patches[row], grid, images))


class PhotoPairs:
    """A `Comparison` of photos with stored images, computed on demand.

    `grid` is the photos' patch grid; `stored_rows` (m,) maps score columns to rows of the store.
    """

    def __init__(
        self,
        store: ComparesPhotos,
        photos: Tokens,
        grid: PatchGrid,
        stored_rows: np.ndarray,
        patches: Mapping[int, np.ndarray] | None = None,
    ) -> None:
        """Pair photos with images; `patches` are unit patches (n, r) by photo [default: those of `store.query`]."""
        self.store, self.photos, self.grid, self.stored_rows = store, photos, grid, stored_rows
        self._last = dict(patches or {})  # patches of the last photos, which the next round may need again

    def with_queries(self, rows: Sequence[int], images: Sequence[np.ndarray]) -> list[Compared]:
        known = self._last  # another thread may replace it
        self._last = last = {row: known[row] if row in known else self.patches(row) for row in rows}
        patches = [last[row] for row in rows]
        found = self.store.match_each(patches, self.grid, [self.stored_rows[own] for own in images])
        evidence = [np.array([match.evidence for match in one], np.float64) for one in found]
        inliers = [np.array([match.count for match in one], np.int64) for one in found]
        return [Compared(*one, self.store.compaction.weight) for one in zip(evidence, inliers, strict=True)]

    def at(self, patches: np.ndarray) -> PhotoPairs:
        """Return the comparison of one photo, row 0, by its unit patches (n, r)."""
        return PhotoPairs(self.store, self.photos, self.grid, self.stored_rows, {0: patches})

    def patches(self, row: int) -> np.ndarray:
        """Return unit patches (n, r) of a photo, computed separately so that results do not depend on the batch."""
        return self.store.query(self.photos.select([row]))[0]


def explain_missing_grid(tokens: Tokens) -> str | None:
    """Explain why patches cannot be compared geometrically; None if they can."""
    if tokens.grid is not None:
        return None
    if len(np.unique(tokens.counts)) > 1:
        return "the images differ in their number of patches"
    return "the patch grid of the images is unknown"


# --- patch source ---------------------------------------------------------------------------------

CACHED_BYTES = 256_000_000  # bytes of patches cached in memory


class PatchSource(Protocol):
    """A store of patches."""

    def rows(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Read the stored patches (c, n, g) of these images in one batch; a missing id is an error."""


class CachedPatches:
    """A `PatchSource` with a cache of the most recently used patches, up to `most_bytes` [default: 256 MB]."""

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
        """Return the size of the cache and its limit."""
        with self._lock:
            return {"images": len(self._cached), "bytes": self._bytes, "most_bytes": self._most}

    def _keep(self, fresh: dict[int, np.ndarray]) -> None:
        for one, patches in fresh.items():
            if one not in self._cached:
                self._cached[one] = np.array(patches)  # a copy: a view would keep the whole batch alive
                self._bytes += patches.nbytes
        while self._bytes > self._most and self._cached:
            self._bytes -= self._cached.popitem(last=False)[1].nbytes


@dataclass(frozen=True)
class SourcedTokens:
    """Compact tokens whose patches come from a source; compares photos as `CompactTokens` does."""

    compaction: Compaction
    grid: PatchGrid
    spec: RerankSpec
    source: CachedPatches

    @property
    def bytes_per_image(self) -> int:
        return self.grid[0] * self.grid[1] * self.compaction.bytes_per_patch

    def of(self, ids: Sequence[int] | np.ndarray) -> CompactTokens:
        """Return compact tokens of some images, one row per id in this order."""
        return CompactTokens(self.compaction, self.grid, (self.source.rows(ids),), self.spec)

    def empty(self) -> CompactTokens:
        """Return compact tokens without images, to compact photos and new images with."""
        return CompactTokens(self.compaction, self.grid, (), self.spec)

    def query(self, tokens: Tokens) -> np.ndarray:
        return self.empty().query(tokens)

    def resolve_grid(self, tokens: Tokens) -> PatchGrid | None:
        return self.empty().resolve_grid(tokens)

    def match_each(
        self, queries: Sequence[np.ndarray], grid: PatchGrid, indices: Sequence[np.ndarray], threads: int | None = None
    ) -> list[list[Matches]]:
        """Match several photos, each with its own images, by id; one read fetches all patches."""
        ids = np.unique(np.concatenate(indices))
        local = [np.searchsorted(ids, own) for own in indices]
        return self.of(ids).match_each(queries, grid, local, threads)


ComparesPhotos = CompactTokens | SourcedTokens  # holders of map patches that compare photos with them
