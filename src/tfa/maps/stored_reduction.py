"""Reduced rows of a head as a map keeps them (ours, beyond the paper): the reduction in float16, int8 rows, moments.

Moments of a segment are written where it has so many rows that they take less room than the rows themselves; of fewer
rows they are made again in less than a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfa.maps.stored_rows import Tensors
from tfa.search.gallery import Gallery, Rows
from tfa.search.quantized import QuantizedRows
from tfa.search.reduced import Moments, ReducedRows, Reduction

MOMENTS_FROM = 8  # rows for each of the dims numbers: dims × dims float64 are then as large as the int8 rows


def describe_reduction(reduced: ReducedRows) -> dict[str, Any]:
    """What the header says of it."""
    return {"dims": reduced.reduction.dims, "mean_bias": reduced.reduction.mean_bias}


def collect_reduction_tensors(reduced: ReducedRows) -> dict[str, np.ndarray]:
    """Return the tensors of the head's file."""
    reduction = reduced.reduction
    return {"reduction.matrix": reduction.matrix, "reduction.bias_axis": reduction.bias_axis}


def collect_reduced_tensors(reduced: ReducedRows, start: int, stop: int) -> dict[str, np.ndarray]:
    """Return the tensors of the gallery file with rows `start` to `stop`."""
    rows = reduced.rows.between(start, stop)
    assert isinstance(rows, QuantizedRows), "a segment has images"
    tensors = {"reduced": rows.levels, "reduced.step": rows.step}
    if len(rows) < MOMENTS_FROM * reduced.reduction.dims:
        return tensors
    own = [moments for chunk, moments in zip(reduced.rows.chunks, reduced.moments(), strict=True) if chunk is rows]
    moments = own[0] if own else ReducedRows(reduced.reduction, Gallery.of(rows)).moments()[0]
    return {**tensors, "reduced.first": moments.first, "reduced.second": moments.second}


def read_reduced(layout: dict[str, Any], head: Tensors, galleries: Sequence[Tensors]) -> ReducedRows:
    """The inverse; raises ValueError where tensors do not fit each other."""
    dims, matrix, axis = layout["dims"], head["reduction.matrix"], head["reduction.bias_axis"]
    if matrix.ndim != 2 or len(matrix) != dims or matrix.dtype != np.float16 or axis.shape != (dims,):
        raise ValueError(f"a reduction of shape {matrix.shape} and {axis.shape}, must be to {dims} numbers")
    chunks: list[Rows] = []
    known: dict[int, Moments] = {}
    for number, tensors in enumerate(galleries):
        levels, step = tensors["reduced"], tensors["reduced.step"]
        if levels.shape != (len(tensors["bias"]), dims) or levels.dtype != np.int8 or step.shape != levels.shape[:1]:
            raise ValueError(f"reduced rows of shape {levels.shape}, must be {(len(tensors['bias']), dims)}")
        chunks.append(QuantizedRows(levels, step, dims))
        if "reduced.second" in tensors:
            first, second = tensors["reduced.first"], tensors["reduced.second"]
            if first.shape != (dims,) or second.shape != (dims, dims):
                raise ValueError(f"moments of shape {second.shape}, must be {(dims, dims)}")
            known[number] = Moments(len(levels), first, second)
    return ReducedRows(Reduction(matrix, axis, layout["mean_bias"]), Gallery(tuple(chunks), known))
