"""Rows rounded to integers, with inner products that are exact sums of integers.

    row ≈ step · L,  |L_i| ≤ 127          query ≈ unit · Q,  Q = base · P + R,  |P_i|, |R_i| ≤ 63
    ⟨query, row⟩ := unit · step · Σ Q_i L_i

A sum of integers does not depend on the order of addition. So a product is the same to the last bit for every batch,
kernel and number of threads. Rows are packed for an int8 kernel if there is one; until then float32 products are used,
which add integers exactly below 2^24, over runs of columns short enough for that.

Only one copy of large row sets is in memory: the packed one, once it exists. The levels, from which single rows are
read, are then in a file of the map or a temporary file.

The kernel is torch's dynamically quantized linear layer (FBGEMM, x86 only). Its own quantization has no effect: planes
contain integers between −63 and 63, and two extra planes reach −63 and 64, so its scale is 1 and every product is an
exact integer. Without such a kernel, or if it is not exact, products use float32. Packed rows take one byte per value,
padded to a multiple of 512 values; single rows cannot be read from them.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tfa.core.arrays import Spill, release, start_threads

ROW_TOP = 127  # largest level of a row
SEVEN_TOP = 63  # largest level stored in seven bits
_QUERY_TOP = 63  # largest level of a query plane: int8 kernels add two products in 16 bits
PLANE_BASE = 32  # base of query planes for plain rows: 12 bits
FINE_PLANE_BASE = 127  # base for rows with `fine`: 14 bits
FINE = 254  # subdivisions of a step by `fine`
_EXACT = 1 << 24  # limit below which float32 represents every integer
_RUN = 512  # columns of a float32 product
_ROWS = 512  # rows of a float32 product: a block of 1 MB stays in the CPU cache
_IN_MEMORY_BYTES = 64 << 20  # size above which levels are in a mapped temporary file
_SMALL = 256  # number of rows up to which packing for the int8 kernel is not worthwhile
_PACKED_AFTER = 2  # products before rows are packed, so that a program with one query does not wait


@dataclass(frozen=True)
class QuantizedRows:
    """Array-like rows `(m, D)` of integers with a step per row."""

    stored: np.ndarray  # int8 (m, D), or seven bits per level: uint8 (m, ⌈7D/8⌉)
    step: np.ndarray  # float32 (m,)
    width: int  # D
    top: int = ROW_TOP  # largest level
    fine: np.ndarray | None = None  # int8 (m, D): row ≈ step · (levels + fine / 254)
    _kernels: dict[str, _Kernel | None] = field(default_factory=dict, repr=False, compare=False)
    _uses: list[int] = field(default_factory=lambda: [0], repr=False, compare=False)

    @cached_property
    def levels(self) -> np.ndarray:
        """Levels, int8 `(m, D)`; seven-bit storage is unpacked on first use."""
        return from_seven_bits(self.stored, self.width) if self.stored.dtype == np.uint8 else self.stored

    @property
    def packed(self) -> np.ndarray:
        """Levels in the form written to disk: seven bits if they fit."""
        fit = self.top <= SEVEN_TOP and self.stored.dtype != np.uint8
        return to_seven_bits(self.stored) if fit else self.stored

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.stored), self.width

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, rows: Any) -> QuantizedRows:
        fine = None if self.fine is None else self.fine[rows]
        return QuantizedRows(self.stored[rows], self.step[rows], self.width, self.top, fine)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the rows as floats."""
        levels = self.levels.astype(np.float64)
        if self.fine is not None:
            levels += self.fine / FINE
        return (levels * self.step[:, None]).astype(np.float32 if dtype is None else dtype)

    def inner(self, features: np.ndarray) -> np.ndarray:
        """Return ⟨query, row⟩ `(q, m)` for features `(q, D)`, in the features' dtype."""
        self._uses[0] += 1
        if self._uses[0] > _PACKED_AFTER:
            self.prepare()
        planes = split_planes(features, PLANE_BASE if self.fine is None else FINE_PLANE_BASE)
        sums = self._sums("levels", planes)
        if self.fine is not None:
            sums += self._sums("fine", planes) / FINE
        sums *= planes.unit[:, None]
        sums *= self.step
        return sums.astype(features.dtype)

    def _sums(self, name: str, planes: Planes) -> np.ndarray:
        """Return Σ Q_i L_i `(q, m)`, integers in float64."""
        kernel = self._kernels.get(name)
        if kernel is not None:
            both = np.concatenate([planes.coarse, planes.rest])
            if kernel.exact_for(both):
                sums = kernel.sums(both)
                return sums[: len(planes.unit)] * planes.base + sums[len(planes.unit) :]
        if name == "fine":
            assert self.fine is not None
            return sum_products(self.fine, planes)
        return sum_products(self.levels if kernel is None else self._levels_of(slice(None)), planes, self.top)

    def _levels_of(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return int8 levels of some rows, without unpacking others."""
        own = self.stored[rows]
        return from_seven_bits(own, self.width) if own.dtype == np.uint8 else own

    def prepare(self) -> None:
        """Pack the rows for the int8 kernel: a second for a large gallery; products do not change."""
        if len(self) <= _SMALL or self._kernels:
            return
        self._kernels["levels"] = kernel_for(self._levels_of, *self.shape, self.top)
        if self.fine is not None:
            self._kernels["fine"] = kernel_for(self.fine.__getitem__, *self.shape, ROW_TOP)
        if self._kernels["levels"] is not None:
            self.__dict__.pop("levels", None)  # unpacked levels, now in the kernel
            self.release()

    def release(self) -> None:
        """Release the memory of data read from files."""
        release(self.stored)
        if self.fine is not None:
            release(self.fine)


def empty_levels(rows: int, width: int) -> np.ndarray:
    """Allocate int8 `(m, D)`, in a temporary file if it is large."""
    return Spill(_IN_MEMORY_BYTES).empty((rows, width), np.int8)


@dataclass(frozen=True)
class Planes:
    """Queries as integers Q = base · coarse + rest, in multiples of `unit`."""

    coarse: np.ndarray  # float32 (q, D), integers
    rest: np.ndarray
    unit: np.ndarray  # float64 (q,)
    base: int

    @property
    def whole(self) -> np.ndarray:
        return self.coarse * np.float32(self.base) + self.rest


def split_planes(features: np.ndarray, base: int = PLANE_BASE) -> Planes:
    """Round features `(q, D)` to base · 63 steps of their largest entry, in two planes."""
    top = _QUERY_TOP * base
    unit = np.abs(features).max(axis=1, initial=0.0).astype(np.float64) / top
    unit[unit == 0] = 1.0  # a zero feature
    whole = np.rint(features / unit[:, None].astype(features.dtype)).clip(-top, top).astype(np.float32)
    coarse = np.rint(whole / np.float32(base))
    return Planes(coarse, whole - coarse * np.float32(base), unit, base)


def sum_products(levels: np.ndarray, planes: Planes, top: int = ROW_TOP) -> np.ndarray:
    """Return Σ Q_i L_i `(q, m)` by float32 products of blocks that fit in the CPU cache."""
    total, whole = np.zeros((len(levels), len(planes.unit))), planes.whole
    runs: list[tuple[slice, list[tuple[int, np.ndarray]]]] = []
    for low in range(0, levels.shape[1], _RUN):
        run = slice(low, low + _RUN)
        # |Σ Q_i L_i| ≤ top · Σ |Q_i|, and so is every partial sum: below 2^24 one product is exact, else two are,
        # since 127 · 63 · 512 < 2^24.
        one = top * np.abs(whole[:, run]).sum(axis=1).max(initial=0.0) < _EXACT
        terms = [(1, whole)] if one else [(planes.base, planes.coarse), (1, planes.rest)]
        runs.append((run, [(factor, np.ascontiguousarray(plane[:, run].T)) for factor, plane in terms]))
    for start in range(0, len(levels), _ROWS):
        sums = total[start : start + _ROWS]  # stays in the CPU cache over all runs
        for run, terms in runs:
            block = levels[start : start + _ROWS, run].astype(np.float32)
            for factor, plane in terms:
                product = block @ plane
                sums += product if factor == 1 else factor * product.astype(np.float64)
    return np.ascontiguousarray(total.T)


def round_rows(rows: np.ndarray, top: int = ROW_TOP, *, fine: bool = False) -> QuantizedRows:
    """Round rows `(m, D)` to levels, with the largest entry of a row at `top`."""
    levels, step = empty_levels(*rows.shape), np.empty(len(rows), np.float32)
    rest = empty_levels(*rows.shape) if fine else None
    for start in range(0, len(rows), _ROWS):
        block = np.asarray(rows[start : start + _ROWS], np.float32)
        steps = np.abs(block).max(axis=1, initial=0.0) / np.float32(top)
        steps[steps == 0] = 1.0  # a zero row
        scaled = block / steps[:, None]
        nearest = np.rint(scaled)
        levels[start : start + _ROWS], step[start : start + _ROWS] = nearest.clip(-top, top), steps
        if rest is not None:
            rest[start : start + _ROWS] = np.rint((scaled - nearest) * FINE).clip(-ROW_TOP, ROW_TOP)
    return QuantizedRows(levels, step, rows.shape[1], top, rest)


def join_rows(chunks: Sequence[QuantizedRows]) -> QuantizedRows:
    """Concatenate chunks of rows, in the form written to disk."""
    if len(chunks) == 1:
        return chunks[0]
    stored, step = np.concatenate([c.packed for c in chunks]), np.concatenate([c.step for c in chunks])
    fine = None if chunks[0].fine is None else np.concatenate([c.fine for c in chunks if c.fine is not None])
    return QuantizedRows(stored, step, chunks[0].width, chunks[0].top, fine)


def to_seven_bits(levels: np.ndarray) -> np.ndarray:
    """Pack int8 levels `(m, D)` of at most 63 to uint8 `(m, ⌈7D/8⌉)`: level + 64 in seven bits, high bit first."""
    packed = np.empty((len(levels), (levels.shape[1] * 7 + 7) // 8), np.uint8)
    for start in range(0, len(levels), _ROWS):
        shifted = (levels[start : start + _ROWS] + np.int8(64)).view(np.uint8)
        bits = np.unpackbits(shifted[:, :, None], axis=2)[:, :, 1:]
        packed[start : start + _ROWS] = np.packbits(bits.reshape(len(shifted), -1), axis=1)
    return packed


def from_seven_bits(packed: np.ndarray, width: int) -> np.ndarray:
    """Unpack int8 levels `(m, width)`."""
    levels = np.empty((len(packed), width), np.int8)
    groups = -(-width // 8)
    for start in range(0, len(packed), _ROWS):
        block = packed[start : start + _ROWS]
        whole = np.zeros((len(block), groups * 7 + 1), np.uint16)  # one extra byte, so that every level has a next byte
        whole[:, : block.shape[1]] = block
        fields = np.empty((len(block), groups, 8), np.uint16)
        for place in range(8):  # level `place` of eight starts at bit 7·place of their seven bytes
            byte, shift = divmod(7 * place, 8)
            pair = (whole[:, byte:-1:7][:, :groups] << 8) | whole[:, byte + 1 :: 7][:, :groups]
            fields[:, :, place] = (pair >> (9 - shift)) & 127
        levels[start : start + _ROWS] = fields.reshape(len(block), -1)[:, :width].astype(np.int8) - 64
    return levels


# Columns of a packed piece by largest level: sums of evenly spread planes then stay below 2^24.
_PIECE_COLUMNS = {63: 12288, 127: 3072}
_PIECE_ROWS = 1 << 16  # rows of a packed piece, which limits the memory for packing
_PROBED = 64  # rows on which the kernel is checked
_WORTH = 1 << 26  # size in bytes from which importing torch, a second or two, is worthwhile
_torch_setting = threading.Lock()  # guards torch's process-wide choice of the quantized engine


_Levels = Callable[[slice | np.ndarray], np.ndarray]  # returns int8 levels of some rows
_Piece = tuple[slice, slice, Any]  # rows, columns and their packed block


@dataclass(frozen=True)
class _Kernel:
    """Packed int8 rows `(m, D)`."""

    pieces: tuple[_Piece, ...]
    columns: int  # of a piece
    width: int
    rows: int
    top: int  # largest level of a row

    def exact_for(self, planes: np.ndarray) -> bool:
        """Return True if every sum is below 2^24: |Σ P_i L_i| ≤ top · Σ |P_i|."""
        edges = np.arange(0, self.width, self.columns)
        return bool(self.top * np.add.reduceat(np.abs(planes), edges, axis=1).max() < _EXACT)

    def sums(self, planes: np.ndarray) -> np.ndarray:
        """Return Σ P_i L_i `(p, m)` in float64 for planes `(p, D)` of integers between −63 and 63."""
        import torch

        total = np.zeros((len(planes), self.rows))
        for rows, columns, packed in self.pieces:
            # The extremes of two extra planes make the kernel's scale 1 and its offset 63.
            own = np.zeros((len(planes) + 2, columns.stop - columns.start), np.float32)
            own[:-2], own[-2, 0], own[-1, 0] = planes[:, columns], -63, 64
            sums = torch.ops.quantized.linear_dynamic(torch.from_numpy(own), packed, True)
            total[:, rows] += sums.numpy()[:-2]
        return total


def kernel_for(levels: _Levels, rows: int, width: int, top: int) -> _Kernel | None:
    """Pack int8 rows `(rows, width)` of at most `top`; None if there are few rows or no exact kernel."""
    if rows * width < _WORTH and "torch" not in sys.modules:
        return None
    try:
        import torch
    except ImportError:  # numpy's products are exact too, only slower
        return None
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return None
    columns = _PIECE_COLUMNS[63 if top <= 63 else 127]

    def pack(start: int) -> list[_Piece]:
        part, pieces = slice(start, min(start + _PIECE_ROWS, rows)), list[_Piece]()
        block = levels(part)
        for low in range(0, width, columns):
            run = slice(low, min(low + columns, width))
            own = torch._make_per_tensor_quantized_tensor(torch.from_numpy(np.array(block[:, run], np.int8)), 1.0, 0)
            pieces.append((part, run, torch.ops.quantized.linear_prepack(own, None)))
        return pieces

    with _torch_setting:
        before, torch.backends.quantized.engine = torch.backends.quantized.engine, "fbgemm"
        try:
            with warnings.catch_warnings(), start_threads(max(torch.get_num_threads(), 1), "tfa-pack") as pool:
                warnings.simplefilter("ignore")  # torch deprecates quantized tensors; without them there is no kernel
                pieces = tuple(piece for some in pool.map(pack, range(0, rows, _PIECE_ROWS)) for piece in some)
        except (RuntimeError, AttributeError):
            return None
        finally:
            torch.backends.quantized.engine = before
    kernel = _Kernel(pieces, columns, width, rows, top)
    return kernel if _is_exact(kernel, levels) else None


def _is_exact(kernel: _Kernel, levels: _Levels) -> bool:
    """Return True if the kernel agrees with plain sums, for rows across the gallery and extreme planes."""
    chosen = np.unique(np.linspace(0, kernel.rows - 1, _PROBED).astype(np.int64))
    probed = levels(chosen)
    planes = np.random.default_rng(0).choice(np.array([-63, 0, 0, 0, 0, 0, 0, 63], np.float32), (2, kernel.width))
    planes[1, :256] = np.where(probed[0, :256] < 0, -63, 63)  # products of one sign, where 16 bits would overflow
    plain = planes.astype(np.float64) @ probed.astype(np.float64).T
    return not kernel.exact_for(planes) or bool((kernel.sums(planes)[:, chosen] == plain).all())
