"""Compaction: the patches of a map in few numbers of few bits each, for matching.

y = L2( λ^(−1/4) Uᵀ(p̃ − μ) )        PCA of the map's unit patches, partial whitening, r of d numbers

full     128 numbers of a byte each, scaled by the largest of the patch
small    120 numbers of two bits each, see `two_bits`
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np

from tfa.base.backend import l2_normalize
from tfa.base.half import to_float32
from tfa.base.threads import map_in_threads
from tfa.verification.two_bits import (
    build_level_table,
    count_packed_bytes,
    measure_deviations,
    pack_levels,
    unpack_levels,
)

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
