"""log C by products alone is that of the eigenvalues."""

import numpy as np
import pytest

from tfa.exports.onnx_features import logarithm_by_products
from tfa.method.second_order import COVARIANCE_RIDGE

# Of real photos C has eigenvalues from the ridge to about 0.05; to 1 is more than unit patches ever have.
SPECTRA = {"real": np.r_[np.zeros(40), np.geomspace(1e-5, 0.05, 88)], "widest": np.geomspace(1e-7, 1, 128)}


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
