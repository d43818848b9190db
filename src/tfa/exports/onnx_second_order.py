"""Second-order sides in an ONNX graph (ours, beyond the paper): they follow `method.second_order` step by step.

The operators of ONNX hold no eigendecomposition, so log C is found by products alone, in float64. Square roots, one
after the other, bring all eigenvalues near 1; each is a coupled Newton–Schulz iteration, which yields its inverse too:

    A = C / ‖C‖_F      Y_0 = A, Z_0 = I      T = (3I − Z Y) / 2,  Y ← Y T,  Z ← T Z      Y → A^{1/2}, Z → A^{-1/2}

After k roots Y = A^{1/2^k}, Z its inverse, and with c in the middle of what the eigenvalues of Y may be

    log A = 2^k (log(Y/c) + log c),     log(Y/c) = asinh((Y/c − c Z) / 2)

of which the series of asinh needs odd powers only. Eigenvalues of C are at least ε and its trace at most 2 + m ε, so
how many steps a root needs is known when the graph is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import factorial

import numpy as np

from tfa.base.onnx_graph import Graph
from tfa.exports.onnx_residuals import shaped
from tfa.method.carriers import MEAN, Gamma
from tfa.method.query_sides import SecondOrderSide
from tfa.method.second_order import RIDGE, half_vector
from tfa.search.quantised_rows import QuantisedRows

ROOTS = 5
TERMS = 7  # of the series; with five roots |x| < 0.2, and the rest of it is below 1e-12


def second_order_features(graph: Graph, side: SecondOrderSide, unit: str, gammas: Iterable[Gamma]) -> dict[Gamma, str]:
    """z + Uᵀμ (None), ⟨v, μ⟩ (MEAN) and φ_γ of photos whose unit patches `b n d` are given."""
    descriptor = _descriptor(graph, side, unit)
    mean = graph.constant(side.mean.astype(np.float64))
    centred = graph.cast(graph.add("Sub", descriptor, mean), np.float32)
    axes = np.asarray(side.axes, np.float32) if isinstance(side.axes, QuantisedRows) else side.axes
    coordinates = graph.add("Gemm", centred, graph.wide(axes), transB=1)
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
            features[gamma] = shaped(graph, side.eigenvalues, coordinates, gamma)
    return features


def _descriptor(graph: Graph, side: SecondOrderSide, unit: str) -> str:
    """v = L2 half(log C), `b m(m+1)/2` in float64."""
    size = len(side.patch_directions)
    wide = graph.cast(unit, np.float64)
    centred = graph.add("Sub", wide, graph.add("ReduceMean", wide, graph.axes(1), keepdims=1))
    directions = np.ascontiguousarray(side.patch_directions.T, np.float64)
    projected = graph.add("MatMul", centred, graph.constant(directions))  # b n m
    squares = graph.add("MatMul", graph.add("Transpose", projected, perm=[0, 2, 1]), projected)
    covariance = graph.add("Add", _per_patch(graph, unit, squares), graph.constant(RIDGE * np.eye(size)))
    flat = graph.constant(np.array([0, size * size]))
    logarithm = graph.add("Reshape", matrix_log(graph, covariance, size), flat)
    places = np.flatnonzero(np.triu(np.ones((size, size))))
    upper = graph.add("Gather", logarithm, graph.constant(places), axis=1)
    weights = half_vector(np.ones((size, size)))  # √2 off the diagonal
    return graph.unit(graph.add("Mul", upper, graph.constant(weights)), np.float64)


def _per_patch(graph: Graph, unit: str, squares: str) -> str:
    """`squares` / max(n − 1, 1), n the number of patches."""
    count = graph.cast(graph.add("Gather", graph.add("Shape", unit), graph.constant(np.array(1))), np.float64)
    one = graph.constant(np.float64(1))
    return graph.add("Div", squares, graph.add("Max", graph.add("Sub", count, one), one))


def matrix_log(graph: Graph, matrix: str, size: int) -> str:
    """log C of symmetric matrices `b m m` in float64, as they come of unit patches and the ridge."""
    identity = graph.constant(np.eye(size))
    flat = graph.add("Reshape", matrix, graph.constant(np.array([0, 1, size * size])))
    scale = graph.norm(flat)  # b 1 1: ‖C‖_F
    root, inverse, lowest = graph.add("Div", matrix, scale), "", RIDGE / (2 + size * RIDGE)
    for _ in range(ROOTS):
        root, inverse = _square_root(graph, root, identity, steps_of_root(lowest))
        lowest **= 0.5
    middle = lowest**0.5
    larger = graph.add("Mul", root, graph.constant(0.5 / middle))
    smaller = graph.add("Mul", inverse, graph.constant(0.5 * middle))
    logarithm = graph.add("Mul", _asinh(graph, graph.add("Sub", larger, smaller), identity), graph.constant(2.0**ROOTS))
    level = graph.add("Add", graph.add("Log", scale), graph.constant(2**ROOTS * np.log(middle)))
    return graph.add("Add", logarithm, graph.add("Mul", identity, level))


def steps_of_root(lowest: float) -> int:
    """Newton–Schulz steps until the square root of an eigenvalue in (`lowest`, 1] is exact to the last digits.

    x = z y of an eigenvalue goes x ← x (3 − x)² / 4, to 1.
    """
    steps, product = 1, lowest  # one more: what rounding leaves
    while 1 - product > np.finfo(np.float64).eps:
        product *= (3 - product) ** 2 / 4
        steps += 1
    return steps


def _square_root(graph: Graph, matrix: str, identity: str, steps: int) -> tuple[str, str]:
    """A^{1/2} and A^{-1/2}."""
    root, inverse = matrix, ""
    half, three_halves = graph.constant(0.5), graph.add("Mul", identity, graph.constant(1.5))
    for _ in range(steps):
        product = graph.add("MatMul", inverse, root) if inverse else root  # Z_0 = I
        turn = graph.add("Sub", three_halves, graph.add("Mul", product, half))
        root = graph.add("MatMul", root, turn)
        inverse = graph.add("MatMul", turn, inverse) if inverse else turn
    return root, inverse


def _asinh(graph: Graph, matrix: str, identity: str) -> str:
    """Σ_j (−1)^j (2j)! / (4^j j!² (2j + 1)) x^{2j+1}, by Horner's rule in x²."""
    factors = [(-1) ** j * factorial(2 * j) / (4**j * factorial(j) ** 2 * (2 * j + 1)) for j in range(TERMS)]
    square = graph.add("MatMul", matrix, matrix)
    scaled = [graph.add("Mul", identity, graph.constant(factor)) for factor in factors]
    total = scaled[-1]
    for one in scaled[-2::-1]:
        total = graph.add("Add", graph.add("MatMul", square, total), one)
    return graph.add("MatMul", matrix, total)
