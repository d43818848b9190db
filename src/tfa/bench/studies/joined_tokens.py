"""Tokens of several datasets as those of one, without a copy of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfa.core.tokens import Tokens


class _Chained(Sequence):
    """Arrays of several sequences, one sequence after the other; each is loaded when it is asked for."""

    def __init__(self, parts: Sequence[Tokens]) -> None:
        self.parts = [part.patches for part in parts]
        self.shapes = np.concatenate([part.shapes for part in parts])
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: Any) -> Any:
        part = int(np.searchsorted(self._ends, index, side="right"))
        return self.parts[part][index - (self._ends[part - 1] if part else 0)]


def joined_tokens(parts: Sequence[Tokens]) -> Tokens:
    """Of all images, in the order given. Where parts differ in their grid, or one has none, the grid is unknown."""
    grids = {part.grid for part in parts}
    globals_ = [part.cls for part in parts if part.cls is not None]
    cls = np.concatenate(globals_) if len(globals_) == len(parts) else None
    return Tokens(_Chained(parts), cls, grid=grids.pop() if len(grids) == 1 else None)
