"""int8 rows packed for the integer kernel of torch, which adds products at the speed it reads them.

The kernel is torch's dynamically quantised linear layer (FBGEMM, x86 only). Its own quantisation does nothing here:
planes hold integers between −63 and 63 beside a row that spans −63 … 64, so its scale is 1 and every product is an
exact integer. Where it is missing or not exact, there is no kernel and products go by float32.
"""

from __future__ import annotations

import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

EXACT = 1 << 24  # below it every integer is a float32, which the kernel answers in
# Columns of one packed piece, by the largest level: planes that are spread evenly then stay below 2^24.
COLUMNS = {63: 12288, 127: 3072}
PROBED = 64  # rows that the kernel is checked on
WORTH = 1 << 26  # bytes of rows that are worth importing torch for, which takes a second or two
_engine = threading.Lock()  # which kernels torch packs for is one setting of the process


@dataclass(frozen=True)
class Kernel:
    """The packed columns of int8 rows, in pieces."""

    pieces: tuple[Any, ...]
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
        import torch

        total = np.zeros((len(planes), self.rows))
        for number, piece in enumerate(self.pieces):
            columns = planes[:, number * self.columns : (number + 1) * self.columns]
            # Two more columns, zero in the rows, whose entries make the kernel's scale 1 and its offset 63.
            padded = np.empty((len(columns), columns.shape[1] + 2), np.float32)
            padded[:, :-2], padded[:, -2], padded[:, -1] = columns, -63, 64
            total += torch.ops.quantized.linear_dynamic(torch.from_numpy(padded), piece, True).numpy()
        return total


def kernel_for(levels: np.ndarray, top: int) -> Kernel | None:
    """A kernel of int8 rows `m D` of at most `top`; None if this machine has none that is exact, or for few rows."""
    if levels.nbytes < WORTH and "torch" not in sys.modules:
        return None
    import torch

    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return None
    columns = COLUMNS[63 if top <= 63 else 127]
    starts = range(0, levels.shape[1], columns)
    with _engine:
        before, torch.backends.quantized.engine = torch.backends.quantized.engine, "fbgemm"
        try:
            with warnings.catch_warnings(), ThreadPoolExecutor(max(torch.get_num_threads(), 1)) as pool:
                warnings.simplefilter("ignore")  # torch means to drop quantised tensors; then there is no kernel
                pieces = tuple(pool.map(lambda low: _packed(levels[:, low : low + columns]), starts))
        except (RuntimeError, AttributeError):
            return None
        finally:
            torch.backends.quantized.engine = before
    kernel = Kernel(pieces, columns, levels.shape[1], len(levels), top)
    return kernel if _is_exact(kernel, levels) else None


def _packed(levels: np.ndarray) -> Any:
    import torch

    piece = np.zeros((len(levels), levels.shape[1] + 2), np.int8)
    piece[:, :-2] = levels
    rows = torch._make_per_tensor_quantized_tensor(torch.from_numpy(piece), 1.0, 0)
    return torch.ops.quantized.linear_prepack(rows, None)


def _is_exact(kernel: Kernel, levels: np.ndarray) -> bool:
    """Does the kernel agree with plain sums, over rows from all of the gallery and planes of the extremes?"""
    chosen = np.unique(np.linspace(0, kernel.rows - 1, PROBED).astype(np.int64))
    planes = np.random.default_rng(0).choice(np.array([-63, 0, 0, 0, 0, 0, 0, 63], np.float32), (2, kernel.width))
    planes[1, :256] = np.where(levels[chosen[0], :256] < 0, -63, 63)  # products of one sign: where 16 bits would fail
    plain = planes.astype(np.float64) @ levels[chosen].astype(np.float64).T
    return not kernel.exact_for(planes) or bool((kernel.sums(planes)[:, chosen] == plain).all())
