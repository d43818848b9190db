"""Rows rounded to integers, and inner products with them that are exact sums of integers.

    row ≈ step · L,  |L_i| ≤ 127          query ≈ unit · Q,  Q = base · P + R,  |P_i|, |R_i| ≤ 63
    ⟨query, row⟩ := unit · step · Σ Q_i L_i

A sum of integers does not depend on the order it is added in. So a product is the same to the last bit whatever
the batch, the kernel or the number of threads: rows are packed for an int8 kernel where there is one, and until then
float32 products serve (they add integers exactly below 2^24, and columns are taken in runs short enough for that).

One copy of many rows is in memory: once they are packed, that. The levels, of which single rows are read, are then in a
file: that of a map, or a temporary one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tfa.base.spill import Spill, release
from tfa.search.int8_kernel import Kernel, kernel_for

TOP = 127  # largest level of a row
SEVEN_TOP = 63  # largest level that is stored in seven bits
QUERY_TOP = 63  # largest level of a query's plane: int8 kernels add two products in 16 bits
BASE = 32  # planes of a query of plain rows: 12 bits
FINE_BASE = 127  # of rows that are kept fine: 14 bits
FINE = 254  # parts that `fine` divides a step into
EXACT = 1 << 24  # below it every integer is a float32
RUN = 512  # columns of a float32 product
ROWS = 512  # rows of it: a block of 1 MB stays in a cache
IN_MEMORY_BYTES = 64 << 20  # levels of more than this lie in a mapped temporary file
SMALL = 256  # rows up to which the int8 kernel is not worth its packing
PACKED_AFTER = 2  # products after which rows are packed for it: a program that queries once need not wait


@dataclass(frozen=True)
class QuantisedRows:
    """Rows `m D` as integers with a step each. It stands where an array of rows stands."""

    stored: np.ndarray  # int8 `m D`, or seven bits a level: uint8 `m ⌈7D/8⌉`
    step: np.ndarray  # float32 `m`
    width: int  # D
    top: int = TOP  # largest level
    fine: np.ndarray | None = None  # int8 `m D`: row ≈ step · (levels + fine / 254)
    _kernels: dict[str, Kernel | None] = field(default_factory=dict, repr=False, compare=False)
    _uses: list[int] = field(default_factory=lambda: [0], repr=False, compare=False)

    @cached_property
    def levels(self) -> np.ndarray:
        """int8 `m D`; what is stored in seven bits is widened when it is first needed."""
        return from_seven_bits(self.stored, self.width) if self.stored.dtype == np.uint8 else self.stored

    @property
    def packed(self) -> np.ndarray:
        """The levels as they are written to disk: in seven bits where they fit."""
        fit = self.top <= SEVEN_TOP and self.stored.dtype != np.uint8
        return to_seven_bits(self.stored) if fit else self.stored

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.stored), self.width

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, rows: Any) -> QuantisedRows:
        fine = None if self.fine is None else self.fine[rows]
        return QuantisedRows(self.stored[rows], self.step[rows], self.width, self.top, fine)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The rows that the integers stand for."""
        levels = self.levels.astype(np.float64)
        if self.fine is not None:
            levels += self.fine / FINE
        return (levels * self.step[:, None]).astype(np.float32 if dtype is None else dtype)

    def inner(self, features: np.ndarray) -> np.ndarray:
        """⟨query, row⟩ `q m` of features `q D`, in the features' dtype."""
        self._uses[0] += 1
        if self._uses[0] > PACKED_AFTER:
            self.prepare()
        planes = planes_of(features, BASE if self.fine is None else FINE_BASE)
        sums = self._sums("levels", planes)
        if self.fine is not None:
            sums += self._sums("fine", planes) / FINE
        sums *= planes.unit[:, None]
        sums *= self.step
        return sums.astype(features.dtype)

    def _sums(self, name: str, planes: Planes) -> np.ndarray:
        """Σ Q_i L_i `q m`, integers in float64."""
        kernel = self._kernels.get(name)
        if kernel is not None:
            both = np.concatenate([planes.coarse, planes.rest])
            if kernel.exact_for(both):
                sums = kernel.sums(both)
                return sums[: len(planes.unit)] * planes.base + sums[len(planes.unit) :]
        if name == "fine":
            assert self.fine is not None
            return widened_sums(self.fine, planes)
        return widened_sums(self.levels if kernel is None else self._levels_of(slice(None)), planes, self.top)

    def _levels_of(self, rows: slice | np.ndarray) -> np.ndarray:
        """int8 levels of some rows; those of others are not widened."""
        own = self.stored[rows]
        return from_seven_bits(own, self.width) if own.dtype == np.uint8 else own

    def prepare(self) -> None:
        """Pack the rows for the int8 kernel. It takes a second for a large gallery and changes no product."""
        if len(self) <= SMALL or self._kernels:
            return
        self._kernels["levels"] = kernel_for(self._levels_of, *self.shape, self.top)
        if self.fine is not None:
            self._kernels["fine"] = kernel_for(self.fine.__getitem__, *self.shape, TOP)
        if self._kernels["levels"] is not None:
            self.__dict__.pop("levels", None)  # what was widened: the kernel has it now
            self.release()

    def release(self) -> None:
        """Give back the memory of what was read from files."""
        release(self.stored)
        if self.fine is not None:
            release(self.fine)


def empty_levels(rows: int, width: int) -> np.ndarray:
    """int8 `m D` to be filled; many of them in a temporary file, which they are read from once."""
    return Spill(IN_MEMORY_BYTES).empty((rows, width), np.int8)


@dataclass(frozen=True)
class Planes:
    """Queries as integers Q = base · coarse + rest, each a number of units."""

    coarse: np.ndarray  # float32 `q D`, integers
    rest: np.ndarray
    unit: np.ndarray  # float64 `q`
    base: int

    @property
    def whole(self) -> np.ndarray:
        return self.coarse * np.float32(self.base) + self.rest


def planes_of(features: np.ndarray, base: int = BASE) -> Planes:
    """Features `q D` rounded to base · 63 steps of their largest entry, in two planes."""
    top = QUERY_TOP * base
    unit = np.abs(features).max(axis=1, initial=0.0).astype(np.float64) / top
    unit[unit == 0] = 1.0  # a zero feature
    whole = np.rint(features / unit[:, None].astype(features.dtype)).clip(-top, top).astype(np.float32)
    coarse = np.rint(whole / np.float32(base))
    return Planes(coarse, whole - coarse * np.float32(base), unit, base)


def widened_sums(levels: np.ndarray, planes: Planes, top: int = TOP) -> np.ndarray:
    """Σ Q_i L_i `q m` by float32 products of blocks that are widened in the cache."""
    total, whole = np.zeros((len(levels), len(planes.unit))), planes.whole
    runs: list[tuple[slice, list[tuple[int, np.ndarray]]]] = []
    for low in range(0, levels.shape[1], RUN):
        run = slice(low, low + RUN)
        # |Σ Q_i L_i| ≤ top · Σ |Q_i|, and so is every partial sum: below 2^24 one product is exact, else two are,
        # since 127 · 63 · 512 < 2^24.
        one = top * np.abs(whole[:, run]).sum(axis=1).max(initial=0.0) < EXACT
        terms = [(1, whole)] if one else [(planes.base, planes.coarse), (1, planes.rest)]
        runs.append((run, [(factor, np.ascontiguousarray(plane[:, run].T)) for factor, plane in terms]))
    for start in range(0, len(levels), ROWS):
        sums = total[start : start + ROWS]  # stays in the cache over all runs
        for run, terms in runs:
            block = levels[start : start + ROWS, run].astype(np.float32)
            for factor, plane in terms:
                product = block @ plane
                sums += product if factor == 1 else factor * product.astype(np.float64)
    return np.ascontiguousarray(total.T)


def rounded(rows: np.ndarray, top: int = TOP, *, fine: bool = False) -> QuantisedRows:
    """Rows `m D` to the nearest levels, the largest entry of a row being `top` steps."""
    levels, step = empty_levels(*rows.shape), np.empty(len(rows), np.float32)
    rest = empty_levels(*rows.shape) if fine else None
    for start in range(0, len(rows), ROWS):
        block = np.asarray(rows[start : start + ROWS], np.float32)
        steps = np.abs(block).max(axis=1, initial=0.0) / np.float32(top)
        steps[steps == 0] = 1.0  # a zero row
        scaled = block / steps[:, None]
        nearest = np.rint(scaled)
        levels[start : start + ROWS], step[start : start + ROWS] = nearest.clip(-top, top), steps
        if rest is not None:
            rest[start : start + ROWS] = np.rint((scaled - nearest) * FINE).clip(-TOP, TOP)
    return QuantisedRows(levels, step, rows.shape[1], top, rest)


def joined_rows(chunks: Sequence[QuantisedRows]) -> QuantisedRows:
    """Chunks of rows as one, in the form they would be written in."""
    if len(chunks) == 1:
        return chunks[0]
    stored, step = np.concatenate([c.packed for c in chunks]), np.concatenate([c.step for c in chunks])
    fine = None if chunks[0].fine is None else np.concatenate([c.fine for c in chunks if c.fine is not None])
    return QuantisedRows(stored, step, chunks[0].width, chunks[0].top, fine)


# --- seven bits a level on disk ---------------------------------------------------------------------------------


def to_seven_bits(levels: np.ndarray) -> np.ndarray:
    """int8 levels `m D` of at most 63 → uint8 `m ⌈7D/8⌉`: each level + 64 in seven bits, the highest bit first."""
    packed = np.empty((len(levels), (levels.shape[1] * 7 + 7) // 8), np.uint8)
    for start in range(0, len(levels), ROWS):
        shifted = (levels[start : start + ROWS] + np.int8(64)).view(np.uint8)
        bits = np.unpackbits(shifted[:, :, None], axis=2)[:, :, 1:]
        packed[start : start + ROWS] = np.packbits(bits.reshape(len(shifted), -1), axis=1)
    return packed


def from_seven_bits(packed: np.ndarray, width: int) -> np.ndarray:
    """The int8 levels `m width` again."""
    levels = np.empty((len(packed), width), np.int8)
    groups = -(-width // 8)
    for start in range(0, len(packed), ROWS):
        block = packed[start : start + ROWS]
        whole = np.zeros((len(block), groups * 7 + 1), np.uint16)  # a byte more, so that every level has a next one
        whole[:, : block.shape[1]] = block
        fields = np.empty((len(block), groups, 8), np.uint16)
        for place in range(8):  # level `place` of eight starts at bit 7·place of their seven bytes
            byte, shift = divmod(7 * place, 8)
            pair = (whole[:, byte:-1:7][:, :groups] << 8) | whole[:, byte + 1 :: 7][:, :groups]
            fields[:, :, place] = (pair >> (9 - shift)) & 127
        levels[start : start + ROWS] = fields.reshape(len(block), -1)[:, :width].astype(np.int8) - 64
    return levels
