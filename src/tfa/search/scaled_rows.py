"""Rows that are other rows on another scale, without a copy of them.

    row_i = scale_i · columns ∘ base_i,   so   ⟨q, row_i⟩ = scale_i · ⟨columns ∘ q, base_i⟩

All features of a second-order map are its coordinates on some scale: it keeps them once, for every head and term.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.search.quantised_rows import QuantisedRows


@dataclass(frozen=True)
class ScaledRows:
    """Rows `m D` over a base of floats or integers. It stands where an array of rows stands."""

    base: np.ndarray | QuantisedRows
    scale: np.ndarray  # m
    columns: np.ndarray  # D

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.base), self.base.shape[1]

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, rows: Any) -> ScaledRows:
        return ScaledRows(self.base[rows], self.scale[rows], self.columns)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The rows in floats."""
        rows = np.asarray(self.base, np.float64) * self.columns
        return (rows * self.scale[:, None]).astype(np.float32 if dtype is None else dtype)

    def prepare(self) -> None:
        """Pack a base of integers for its kernel."""
        if isinstance(self.base, QuantisedRows):
            self.base.prepare()
