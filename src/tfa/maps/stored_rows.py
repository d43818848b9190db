"""Rows as a map keeps them: rounded to its storage, and written to and read from tensors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfa.search.gallery import BaseRows, Rows
from tfa.search.quantized import ROW_TOP, SEVEN_TOP, QuantizedRows, round_rows

Tensors = Mapping[str, np.ndarray]
INTEGERS = "int7"  # descriptors, and axes as long as they are, in seven bits a number, the rest of a row in eight


def convert_rows(rows: Rows, storage: str, *, wide: bool) -> BaseRows:
    """Rows as they are kept. Of integers those as `wide` as a descriptor have seven bits a number, other rows eight."""
    if storage != INTEGERS:
        return np.asarray(rows).astype(storage)
    return round_rows(np.asarray(rows), SEVEN_TOP if wide else ROW_TOP)


def write_rows(name: str, rows: Rows) -> dict[str, np.ndarray]:
    """The tensors of rows; integers have their steps beside them."""
    if not isinstance(rows, QuantizedRows):
        return {name: np.asarray(rows)}
    tensors = {name: rows.packed, f"{name}.step": rows.step}
    return tensors if rows.fine is None else {**tensors, f"{name}.fine": rows.fine}


def read_rows(name: str, tensors: Tensors, width: int | None) -> BaseRows:
    """The inverse. `width` is that of descriptors, whose levels are stored in fewer bytes."""
    rows, step = tensors[name], tensors.get(f"{name}.step")
    if step is None:
        return rows
    if rows.dtype == np.uint8 and width is not None:
        if rows.shape[1] != (7 * width + 7) // 8:
            raise ValueError(f"{name} has {rows.shape[1]} bytes a row, {width} numbers need {(7 * width + 7) // 8}")
        return QuantizedRows(rows, step, width, SEVEN_TOP)
    return QuantizedRows(rows, step, rows.shape[1], ROW_TOP, tensors.get(f"{name}.fine"))
