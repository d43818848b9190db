"""Queries whose descriptors are computed once and shared by all heads and splits."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfa.core.arrays import Backend, Spill
from tfa.core.tokens import Tokens
from tfa.method.residuals import Described, DescribedTokens, describe_residuals
from tfa.method.second_order import describe_second_order


class DescribedQueries(DescribedTokens):
    """All queries of a dataset, or `rows` of the `whole`. Selections share computed descriptors."""

    def __init__(self, tokens: Tokens, memory: DescriptorMemory | None = None, rows: np.ndarray | None = None) -> None:
        super().__init__(tokens.patches, tokens.cls, names=tokens.names, grid=tokens.grid, depths=tokens.depths)
        self.memory = memory or DescriptorMemory(tokens)
        self.rows = np.arange(len(tokens)) if rows is None else rows

    @property
    def whole(self) -> Tokens:
        return self.memory.tokens

    def select(self, indices: Any) -> DescribedQueries:
        return DescribedQueries(super().select(indices), self.memory, self.rows[indices])

    def described(
        self,
        centers: Sequence[np.ndarray],
        assignments: Sequence[str],
        temperature: float,
        backend: Backend,
        dtype: str,
    ) -> dict[tuple[str, int], Described]:
        return {
            (assignment, construction): self.memory.rows(self.rows, words, assignment, temperature, backend, dtype)
            for construction, words in enumerate(centers)
            for assignment in assignments
        }

    def described_second_order(self, directions: Sequence[np.ndarray], dtype: str) -> list[np.ndarray]:
        return [self.memory.second_order_rows(self.rows, one, dtype) for one in directions]


class DescriptorMemory:
    """Cache of descriptors by vocabulary and assignment, or by directions.

    A descriptor does not depend on its batch, to the last bit, so every selection is rows of the same array.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self._spill = Spill()
        self._residual: dict[tuple[bytes, str, float, str, str], Described] = {}
        self._second_order: dict[tuple[bytes, str], np.ndarray] = {}

    def rows(
        self, rows: np.ndarray, words: np.ndarray, assignment: str, temperature: float, backend: Backend, dtype: str
    ) -> Described:
        key = (_digest(words), assignment, temperature, backend.device, dtype)
        if key not in self._residual:
            made = describe_residuals(
                self.tokens, [words], [assignment], temperature, backend, dtype=dtype, spill=self._spill
            )
            self._residual[key] = made[assignment, 0]
        every = self._residual[key]
        return Described(np.array(every.descriptors[rows]), every.mass[rows])

    def second_order_rows(self, rows: np.ndarray, directions: np.ndarray, dtype: str) -> np.ndarray:
        key = (_digest(directions), dtype)
        if key not in self._second_order:
            [made] = describe_second_order(self.tokens, [directions], dtype=dtype, spill=self._spill)
            self._second_order[key] = made
        return np.array(self._second_order[key][rows])


def _digest(array: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes()).digest()
