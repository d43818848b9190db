"""int8 rows packed for the integer kernel of torch, which adds products at the speed it reads them.

The kernel is torch's dynamically quantised linear layer (FBGEMM, x86 only). Its own quantisation does nothing here:
planes hold integers between −63 and 63 and stand above two that reach −63 and 64, so its scale is 1 and every product
is an exact integer. Where it is missing or not exact, there is no kernel and products go by float32.

Packed rows take a byte a number, numbers filled up to a multiple of 512. They serve products alone: rows cannot be read
from them one by one.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

EXACT = 1 << 24  # below it every integer is a float32, which the kernel answers in
# Columns of one packed piece, by the largest level: planes that are spread evenly then stay below 2^24.
COLUMNS = {63: 12288, 127: 3072}
ROWS = 1 << 16  # of one packed piece: what packing holds beside the pieces stays small
PROBED = 64  # rows that the kernel is checked on
WORTH = 1 << 26  # bytes of rows that are worth importing torch for, which takes a second or two
_engine = threading.Lock()  # which kernels torch packs for is one setting of the process


Levels = Callable[[slice | np.ndarray], np.ndarray]  # int8 levels of some rows


@dataclass(frozen=True)
class Piece:
    """Some rows and columns, packed."""

    rows: slice
    columns: slice
    packed: Any

    def sums(self, planes: np.ndarray) -> np.ndarray:
        """Σ P_i L_i `p m` of planes `p D` of all columns, integers in float32."""
        import torch

        # Two more planes, whose extremes make the kernel's scale 1 and its offset 63.
        own = np.zeros((len(planes) + 2, self.columns.stop - self.columns.start), np.float32)
        own[:-2], own[-2, 0], own[-1, 0] = planes[:, self.columns], -63, 64
        return torch.ops.quantized.linear_dynamic(torch.from_numpy(own), self.packed, True).numpy()[:-2]


@dataclass(frozen=True)
class Kernel:
    """int8 rows `m D`, packed."""

    pieces: tuple[Piece, ...]
    columns: int  # of a piece
    width: int
    rows: int
    top: int  # largest level of a row

    def exact_for(self, planes: np.ndarray) -> bool:
        """Is every sum below 2^24? |Σ P_i L_i| ≤ top · Σ |P_i|."""
        edges = np.arange(0, self.width, self.columns)
        return bool(self.top * np.add.reduceat(np.abs(planes), edges, axis=1).max() < EXACT)

    def sums(self, planes: np.ndarray) -> np.ndarray:
        """Σ P_i L_i `p m` of planes `p D` of integers between −63 and 63, in float64."""
        total = np.zeros((len(planes), self.rows))
        for piece in self.pieces:
            total[:, piece.rows] += piece.sums(planes)
        return total


def kernel_for(levels: Levels, rows: int, width: int, top: int) -> Kernel | None:
    """A kernel of int8 rows `rows width` of at most `top`; None if this machine has none that is exact, or for few."""
    if rows * width < WORTH and "torch" not in sys.modules:
        return None
    import torch

    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return None
    columns = COLUMNS[63 if top <= 63 else 127]

    def packed(start: int) -> list[Piece]:
        own = slice(start, min(start + ROWS, rows))
        block = levels(own)
        runs = [slice(low, min(low + columns, width)) for low in range(0, width, columns)]
        return [Piece(own, run, _packed(block[:, run])) for run in runs]

    with _engine:
        before, torch.backends.quantized.engine = torch.backends.quantized.engine, "fbgemm"
        try:
            with warnings.catch_warnings(), ThreadPoolExecutor(max(torch.get_num_threads(), 1)) as pool:
                warnings.simplefilter("ignore")  # torch means to drop quantised tensors; then there is no kernel
                pieces = tuple(piece for some in pool.map(packed, range(0, rows, ROWS)) for piece in some)
        except (RuntimeError, AttributeError):
            return None
        finally:
            torch.backends.quantized.engine = before
    kernel = Kernel(pieces, columns, width, rows, top)
    return kernel if _is_exact(kernel, levels) else None


def _packed(levels: np.ndarray) -> Any:
    import torch

    own = torch.from_numpy(np.array(levels, np.int8))
    return torch.ops.quantized.linear_prepack(torch._make_per_tensor_quantized_tensor(own, 1.0, 0), None)


def _is_exact(kernel: Kernel, levels: Levels) -> bool:
    """Does the kernel agree with plain sums, over rows from all of the gallery and planes of the extremes?"""
    chosen = np.unique(np.linspace(0, kernel.rows - 1, PROBED).astype(np.int64))
    probed = levels(chosen)
    planes = np.random.default_rng(0).choice(np.array([-63, 0, 0, 0, 0, 0, 0, 63], np.float32), (2, kernel.width))
    planes[1, :256] = np.where(probed[0, :256] < 0, -63, 63)  # products of one sign: where 16 bits would fail
    plain = planes.astype(np.float64) @ probed.astype(np.float64).T
    return not kernel.exact_for(planes) or bool((kernel.sums(planes)[:, chosen] == plain).all())
