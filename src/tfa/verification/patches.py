"""Compact patches of map images: projected to few dimensions, stored in bytes or two bits, and read from memory or a
store.

Two bits (ours, beyond the paper): the numbers of a compact patch, four in a byte.

    level    the nearest of ±0.4528 σ and ±1.5104 σ     σ: deviation of that number over the map's patches
    byte     four levels, the first in the lowest bits

The four levels are those that round a normal variable best (Lloyd, Max). A query's patches are not rounded, so an
image's rounding is met once in a similarity, not twice. Arrays in, arrays out.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, Protocol

import numpy as np

from tfa.core.arrays import Spill, l2_normalize, map_in_threads, to_float32
from tfa.core.tokens import Tokens
from tfa.errors import BadTokens
from tfa.method.vocabulary import sample_patches
from tfa.search.gallery import rows_between, take_rows
from tfa.types import RerankSpec
from tfa.verification.admission import PairEvidence, cache_evidence
from tfa.verification.matching import Matches, find_matches, measure_evidence
from tfa.verification.reranking import Compared

# --- two bits -------------------------------------------------------------------------------------

_NORMAL_LEVELS = np.array([-1.5104, -0.4528, 0.4528, 1.5104], np.float32)  # in deviations
BETWEEN = 0.9816  # the two inner levels and the two outer ones; 0 is between the inner ones
TOGETHER = 4  # numbers that share a byte


def count_packed_bytes(numbers: int) -> int:
    return -(-numbers // TOGETHER)


def measure_deviations(rows: np.ndarray) -> np.ndarray:
    """Root mean square `r` of each number of rows `t r`: the levels lie around zero, not around a mean."""
    return np.sqrt(np.mean(np.square(rows, dtype=np.float64), axis=0)).astype(np.float32)


def pack_levels(rows: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """Rows `… r` → bytes `… g` that hold the level of each number; a last byte that is not full ends in zeros."""
    numbers, border = rows.shape[-1], np.float32(BETWEEN) * deviations
    levels = np.zeros((*rows.shape[:-1], count_packed_bytes(numbers), TOGETHER), np.uint8)
    flat = levels.reshape(*rows.shape[:-1], count_packed_bytes(numbers) * TOGETHER)  # the same memory
    for least in (-border, np.float32(0), border):
        flat[..., :numbers] += rows > least
    return np.bitwise_or.reduce(levels << np.arange(0, 8, 2, dtype=np.uint8), axis=-1)


def build_level_table(deviations: np.ndarray) -> np.ndarray:
    """What each byte stands for, by its place in the patch and its value: `g 256 4`, float32."""
    padded = np.zeros(count_packed_bytes(len(deviations)) * TOGETHER, np.float32)
    padded[: len(deviations)] = deviations
    level = _NORMAL_LEVELS[np.arange(256)[:, None] >> np.arange(0, 8, 2) & 3]  # 256 4
    return np.ascontiguousarray(level * padded.reshape(-1, 1, TOGETHER))


def unpack_levels(codes: np.ndarray, table: np.ndarray, numbers: int) -> np.ndarray:
    """Bytes `… g` → rows `… r` of their levels, float32."""
    # Four floats are taken as one item of 16 bytes: one lookup for four numbers.
    items = table.view(np.complex128).ravel()
    places = np.arange(0, items.size, table.shape[1], dtype=np.int64)
    rows = items.take(codes + places).view(np.float32)
    return rows if rows.shape[-1] == numbers else np.ascontiguousarray(rows[..., :numbers])


# --- compaction -----------------------------------------------------------------------------------

_BLOCK = 2048  # patches whose products are added up at a time
_INT8_LEVELS = 127
SMALL_DIMENSIONS = 120  # numbers of two bits: 30 bytes a patch, 15,870 for 23 × 23 of them
_DEVIATION_PATCHES = 20_000  # patches that deviations are measured on
_RANK_FLOOR = 1e-9  # directions with a smaller share of the largest variance are rounding


@dataclass(frozen=True)
class Compaction:
    """How patches of a map are kept small."""

    mean: np.ndarray  # d
    projection: np.ndarray  # d r: directions scaled by λ^(−1/4)
    deviations: np.ndarray | None = None  # r: of each number of the map's patches, if two bits are kept of it

    @property
    def dimensions(self) -> int:
        return int(self.projection.shape[1])

    @property
    def bytes_per_patch(self) -> int:
        return self.dimensions if self.deviations is None else count_packed_bytes(self.dimensions)

    @property
    def dtype(self) -> type[np.int8 | np.uint8]:
        """The type of packed patches."""
        return np.int8 if self.deviations is None else np.uint8

    def compact(self, patches: np.ndarray) -> np.ndarray:
        """Patches `… n d` → unit rows `… n r` in float32."""
        # ⟨L2(p) − μ, u⟩ = ⟨p, u⟩/‖p‖ − ⟨μ, u⟩: the small side of the product is scaled, not the large one.
        rows = to_float32(patches)
        norm = np.sqrt(np.einsum("...d,...d->...", rows, rows))[..., None]
        return l2_normalize(rows @ self.projection / np.where(norm > 0, norm, 1) - self.mean @ self.projection)

    def pack(self, rows: np.ndarray) -> np.ndarray:
        """Pack unit rows `… n r` into the bytes that are stored; `unpack` is the inverse."""
        return quantize_rows(rows) if self.deviations is None else pack_levels(rows, self.deviations)

    def unpack(self, codes: np.ndarray) -> np.ndarray:
        """Unpack stored bytes to unit rows `… n r` in float32."""
        if self._table is None:
            return restore_rows(codes)
        return _unit(unpack_levels(codes, self._table, self.dimensions))

    @cached_property
    def _table(self) -> np.ndarray | None:
        return None if self.deviations is None else build_level_table(self.deviations)


def fit_compaction(patches: np.ndarray, dimensions: int) -> Compaction:
    """Fit a compaction to unit patches `t d` of the map."""
    mean = patches.mean(axis=0, dtype=np.float64)

    def squares(start: int) -> np.ndarray:
        centred = patches[start : start + _BLOCK] - mean
        return centred.T @ centred  # numpy makes it a symmetric rank-k update

    # Block by block: in float64 all patches at once are several times their size.
    covariance = reduce(np.add, map_in_threads(squares, range(0, len(patches), _BLOCK))) / len(patches)
    variance, directions = np.linalg.eigh(covariance)
    variance, directions = variance[::-1], directions[:, ::-1]
    kept = variance[:dimensions] > _RANK_FLOOR * max(float(variance[0]), 0.0)
    kept[0] = True  # patches that are all alike have no direction; one keeps the shapes
    variance, directions = variance[:dimensions][kept], directions[:, :dimensions][:, kept]
    scale = np.where(variance > 0, variance, 1.0) ** -0.25
    # In the order of rows, as files have it: products of other layouts differ in their last bits.
    return Compaction(mean.astype(np.float32), np.ascontiguousarray(directions * scale, np.float32))


def count_dimensions(patches: str, dimensions: int) -> int:
    """Return the most dimensions of a patch; small patches have fewer than full ones."""
    return dimensions if patches == "full" else min(dimensions, SMALL_DIMENSIONS)


def use_two_bits(compaction: Compaction, patches: np.ndarray) -> Compaction:
    """Make the compaction keep two bits of each number, by deviations over unit patches `t d` of the map."""
    spread = patches[:: -(-len(patches) // _DEVIATION_PATCHES)]
    return replace(compaction, deviations=measure_deviations(compaction.compact(spread)))


def quantize_rows(rows: np.ndarray) -> np.ndarray:
    """Quantize unit rows `… r` to int8, each scaled by its largest entry; `restore_rows` is the inverse."""
    largest = np.abs(rows).max(axis=-1, keepdims=True)
    return np.rint(rows * (_INT8_LEVELS / np.where(largest > 0, largest, 1.0))).astype(np.int8)


def restore_rows(levels: np.ndarray) -> np.ndarray:
    return _unit(levels.astype(np.float32))


def _unit(rows: np.ndarray) -> np.ndarray:
    """Rows `… r` made unit; they are overwritten."""
    squared = np.einsum("...r,...r->...", rows, rows)[..., None]
    rows *= 1 / np.sqrt(np.where(squared > 0, squared, 1))  # in place: a candidate's rows are most of what is read
    return rows


# --- patch store ----------------------------------------------------------------------------------

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


# --- patch source ---------------------------------------------------------------------------------

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
