"""log C by products alone is that of the eigenvalues."""

import numpy as np
import pytest

from tfa.exports.onnx_head import ASINH, ROOTS, lowest_eigenvalue, steps_of_root
from tfa.method.second_order import COVARIANCE_RIDGE

# Of real photos C has eigenvalues from the ridge to about 0.05; to 1 is more than unit patches ever have.
SPECTRA = {"real": np.r_[np.zeros(40), np.geomspace(1e-5, 0.05, 88)], "widest": np.geomspace(1e-7, 1, 128)}


def logarithm_by_products(matrices: np.ndarray) -> np.ndarray:
    """log C of symmetric matrices `b m m`, by the steps of the graph, in their own float type."""
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


# Largest error of an entry of log C, whose own are up to log ε = −11.5.
@pytest.mark.parametrize(
    ("kind", "spectrum", "close"),
    [("float64", "real", 1e-11), ("float64", "widest", 1e-10), ("float32", "real", 5e-4), ("float32", "widest", 5e-3)],
)
def test_a_batch_of_logarithms(kind, spectrum, close):
    rng, values = np.random.default_rng(7), SPECTRA[spectrum] + COVARIANCE_RIDGE
    turns = [np.linalg.qr(rng.normal(size=(128, 128)))[0] for _ in range(2)]
    matrices = np.stack([(turn * values) @ turn.T for turn in turns])
    found = logarithm_by_products(((matrices + matrices.swapaxes(1, 2)) / 2).astype(kind))
    assert found.dtype == kind
    for one, turn in zip(found, turns, strict=True):
        np.testing.assert_allclose(one, (turn * np.log(values)) @ turn.T, atol=close)
