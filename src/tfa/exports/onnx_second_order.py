"""Second-order sides in an ONNX graph (ours, beyond the paper): they follow `method.second_order` step by step.

The operators of ONNX hold no eigendecomposition, so log C is found by products alone: `method.matrix_logarithm` has the
steps, which are nodes here. `Precision` is the type of the numbers from the covariance to the descriptor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tfa.base.onnx_graph import Graph
from tfa.exports.onnx_residuals import shape_nodes
from tfa.method.carriers import MEAN, Gamma
from tfa.method.matrix_logarithm import ASINH, ROOTS, lowest_eigenvalue, steps_of_root
from tfa.method.query_sides import SecondOrderSide
from tfa.method.second_order import COVARIANCE_RIDGE, half_vector
from tfa.search.gallery import BaseRows
from tfa.search.quantized import FINE, QuantizedRows

Precision = type[np.floating[Any]]


def second_order_features(
    graph: Graph, side: SecondOrderSide, unit: str, gammas: Iterable[Gamma], precision: Precision = np.float64
) -> dict[Gamma, str]:
    """z + Uᵀμ (None), ⟨v, μ⟩ (MEAN) and φ_γ of photos whose unit patches `b n d` are given."""
    descriptor = _second_order_descriptor(graph, side, unit, precision)
    mean = graph.constant(side.mean.astype(precision))
    centred = graph.cast(graph.add("Sub", descriptor, mean), np.float32)
    coordinates = graph.add("Gemm", centred, _rows(graph, side.axes), transB=1)
    if side.shift is not None:
        coordinates = graph.add("Sub", coordinates, graph.constant(side.shift.astype(np.float32)))
    features: dict[Gamma, str] = {}
    for gamma in gammas:
        if gamma is None:
            origin = graph.constant(side.mean_coordinates.astype(np.float32))
            features[gamma] = graph.add("Add", coordinates, origin)
        elif gamma == MEAN:
            level = graph.total(graph.add("Mul", descriptor, mean), 1, keep=True)
            features[gamma] = graph.cast(level, np.float32)
        else:
            assert isinstance(gamma, float)
            features[gamma] = shape_nodes(graph, side.eigenvalues, coordinates, gamma)
    return features


def _rows(graph: Graph, rows: BaseRows) -> str:
    """Rows as float32; the file keeps them as they are stored."""
    if not isinstance(rows, QuantizedRows):
        return graph.wide(rows)
    levels = graph.cast(graph.constant(rows.levels), np.float32)
    if rows.fine is not None:
        fine = graph.cast(graph.constant(rows.fine), np.float32)
        levels = graph.add("Add", levels, graph.add("Div", fine, graph.constant(np.float32(FINE))))
    return graph.add("Mul", levels, graph.constant(rows.step.astype(np.float32)[:, None]))


def _second_order_descriptor(graph: Graph, side: SecondOrderSide, unit: str, precision: Precision) -> str:
    """v = L2 half(log C), `b m(m+1)/2`."""
    size = len(side.patch_directions)
    wide = graph.cast(unit, precision)
    centred = graph.add("Sub", wide, graph.add("ReduceMean", wide, graph.axes(1), keepdims=1))
    directions = np.ascontiguousarray(side.patch_directions.T, precision)
    projected = graph.add("MatMul", centred, graph.constant(directions))  # b n m
    squares = graph.add("MatMul", graph.add("Transpose", projected, perm=[0, 2, 1]), projected)
    ridge = graph.constant((COVARIANCE_RIDGE * np.eye(size)).astype(precision))
    covariance = graph.add("Add", _per_patch(graph, unit, squares, precision), ridge)
    flat = graph.constant(np.array([0, size * size]))
    logarithm = graph.add("Reshape", matrix_log(graph, covariance, size, precision), flat)
    places = np.flatnonzero(np.triu(np.ones((size, size))))
    upper = graph.add("Gather", logarithm, graph.constant(places), axis=1)
    weights = half_vector(np.ones((size, size))).astype(precision)  # √2 off the diagonal
    return graph.unit(graph.add("Mul", upper, graph.constant(weights)), precision)


def _per_patch(graph: Graph, unit: str, squares: str, precision: Precision) -> str:
    """`squares` / max(n − 1, 1), n the number of patches."""
    count = graph.cast(graph.add("Gather", graph.add("Shape", unit), graph.constant(np.array(1))), precision)
    one = graph.constant(precision(1))
    return graph.add("Div", squares, graph.add("Max", graph.add("Sub", count, one), one))


def matrix_log(graph: Graph, matrix: str, size: int, precision: Precision = np.float64) -> str:
    """log C of symmetric matrices `b m m`, as they come of unit patches and the ridge."""
    identity = graph.constant(np.eye(size, dtype=precision))
    flat = graph.add("Reshape", matrix, graph.constant(np.array([0, 1, size * size])))
    scale = graph.norm(flat)  # b 1 1: ‖C‖_F
    root, inverse, lowest = graph.add("Div", matrix, scale), "", lowest_eigenvalue(size)
    for _ in range(ROOTS):
        steps = steps_of_root(lowest, float(np.finfo(precision).eps))
        root, inverse = _square_root(graph, root, size, steps, precision)
        lowest **= 0.5
    middle = lowest**0.5
    larger = graph.add("Mul", root, graph.constant(precision(0.5 / middle)))
    smaller = graph.add("Mul", inverse, graph.constant(precision(0.5 * middle)))
    logarithm = _asinh(graph, graph.add("Sub", larger, smaller), size, precision)
    logarithm = graph.add("Mul", logarithm, graph.constant(precision(2**ROOTS)))
    level = graph.add("Add", graph.add("Log", scale), graph.constant(precision(2**ROOTS * np.log(middle))))
    return graph.add("Add", logarithm, graph.add("Mul", identity, level))


def _square_root(graph: Graph, matrix: str, size: int, steps: int, precision: Precision) -> tuple[str, str]:
    """A^{1/2} and A^{-1/2}."""
    root, inverse = matrix, ""
    half, three_halves = graph.constant(precision(0.5)), graph.constant(1.5 * np.eye(size, dtype=precision))
    for _ in range(steps):
        product = graph.add("MatMul", inverse, root) if inverse else root  # Z_0 = I
        turn = graph.add("Sub", three_halves, graph.add("Mul", product, half))
        root = graph.add("MatMul", root, turn)
        inverse = graph.add("MatMul", turn, inverse) if inverse else turn
    return root, inverse


def _asinh(graph: Graph, matrix: str, size: int, precision: Precision) -> str:
    """The series by Horner's rule in x²."""
    square = graph.add("MatMul", matrix, matrix)
    scaled = [graph.constant((factor * np.eye(size)).astype(precision)) for factor in ASINH]
    total = scaled[-1]
    for one in scaled[-2::-1]:
        total = graph.add("Add", graph.add("MatMul", square, total), one)
    return graph.add("MatMul", matrix, total)
