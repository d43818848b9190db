"""log C by products alone, for what has no eigendecomposition: graphs of operators, batches on an accelerator.

Square roots, one after the other, bring all eigenvalues near 1; each is a coupled Newton–Schulz iteration, which yields
its inverse too:

    A = C / ‖C‖_F      Y_0 = A, Z_0 = I      T = (3I − Z Y) / 2,  Y ← Y T,  Z ← T Z      Y → A^{1/2}, Z → A^{-1/2}

After k roots Y = A^{1/2^k}, Z its inverse, and with c in the middle of what the eigenvalues of Y may be

    log A = 2^k (log(Y/c) + log c),     log(Y/c) = asinh((Y/c − c Z) / 2)

of which the series of asinh needs odd powers only. Eigenvalues of C are at least ε and its trace at most 2 + m ε, so
how many steps a root needs is known beforehand. `exports.onnx_second_order` writes these steps as nodes of a graph.
"""

from __future__ import annotations

from math import factorial

import numpy as np

from tfa.method.second_order import COVARIANCE_RIDGE

ROOTS = 5
TERMS = 7  # of the series; with five roots |x| < 0.2, and the rest of it is below 1e-12
# Σ_j (−1)^j (2j)! / (4^j j!² (2j + 1)) x^{2j+1} = asinh x
ASINH = tuple((-1) ** j * factorial(2 * j) / (4**j * factorial(j) ** 2 * (2 * j + 1)) for j in range(TERMS))


def lowest_eigenvalue(size: int) -> float:
    """Bound the eigenvalues of C / ‖C‖_F from below, C `m m` being that of unit patches and the ridge."""
    return COVARIANCE_RIDGE / (2 + size * COVARIANCE_RIDGE)


def steps_of_root(lowest: float, precision: float = float(np.finfo(np.float64).eps)) -> int:
    """Newton–Schulz steps until the square root of an eigenvalue in (`lowest`, 1] is exact to the last digits.

    x = z y of an eigenvalue goes x ← x (3 − x)² / 4, to 1.
    """
    steps, product = 1, lowest  # one more: what rounding leaves
    while 1 - product > precision:
        product *= (3 - product) ** 2 / 4
        steps += 1
    return steps


def logarithm_by_products(matrices: np.ndarray) -> np.ndarray:
    """log C of symmetric matrices `b m m` as they come of unit patches and the ridge, in their own float type."""
    kind, size = matrices.dtype.type, matrices.shape[-1]
    identity = np.eye(size, dtype=kind)
    scale = np.linalg.norm(matrices, axis=(-2, -1), keepdims=True).astype(kind)
    root, inverse, lowest = matrices / scale, identity, lowest_eigenvalue(size)
    for _ in range(ROOTS):
        inverse = identity
        for _ in range(steps_of_root(lowest, float(np.finfo(kind).eps))):
            turn = kind(1.5) * identity - kind(0.5) * (inverse @ root)
            root, inverse = root @ turn, turn @ inverse
        lowest **= 0.5
    middle = lowest**0.5
    small = kind(0.5 / middle) * root - kind(0.5 * middle) * inverse
    square, series = small @ small, kind(ASINH[-1]) * identity
    for factor in ASINH[-2::-1]:  # Horner's rule
        series = square @ series + kind(factor) * identity
    level = np.log(scale) + kind(2**ROOTS * np.log(middle))
    return np.asarray(kind(2**ROOTS) * (small @ series) + level * identity)
