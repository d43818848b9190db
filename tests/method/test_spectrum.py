"""The dual form against PCA with an explicit basis."""

import numpy as np
import pytest

from tfa.core.arrays import Spill, backend_for, to_numpy
from tfa.errors import BadSpec
from tfa.method import spectrum
from tfa.method import spectrum as geometry
from tfa.method.carriers import carrier_terms, smooth_step
from tfa.method.spectrum import fit_geometry, gram_matrix, probe_products
from tfa.reference import database as reference

GAMMAS = (0.0, 0.3, 0.5, 1.0)


def descriptors(images=18, width=40, seed=0):
    rng = np.random.default_rng(seed)
    return reference.l2(rng.normal(size=(images, width)) * np.linspace(2, 0.3, width) + 0.4)


def fitted(v, device="cpu", max_rank=4096):
    gram = gram_matrix(v, backend_for(device))
    return fit_geometry(gram, v.shape[1], max_rank, np.arange(len(v)))


@pytest.mark.parametrize("device", ["cpu", "torch"])
@pytest.mark.parametrize("width", [40, 9])  # more and fewer columns than images
@pytest.mark.parametrize("gamma", GAMMAS)
def test_dual_features_equal_the_basis_form(gamma, width, device):
    v, q = descriptors(width=width), descriptors(7, width, seed=1)
    dual, pca = fitted(v, device), reference.Pca.fit(v)
    assert dual.rank == len(pca.eigenvalues)
    np.testing.assert_allclose(dual.eigenvalues, pca.eigenvalues, rtol=1e-9)
    database = dual.shaped(dual.anchor_coordinates(), gamma)
    query = dual.shaped(dual.coordinates(q @ v.T), gamma)
    np.testing.assert_allclose(query @ database.T, pca.whitened(q, v, gamma), atol=1e-9)
    np.testing.assert_allclose(database @ database.T, pca.whitened(v, v, gamma), atol=1e-9)


@pytest.mark.parametrize("max_rank", [4, 8, 30])
def test_a_large_gram_matrix_is_decomposed_in_place(monkeypatch, max_rank):
    v, q = descriptors(width=9), descriptors(7, 9, seed=1)
    whole = fitted(v, max_rank=max_rank)
    monkeypatch.setattr(spectrum, "LARGE", 5)
    part = fitted(v, max_rank=max_rank)
    assert (part.rank, part.complete) == (whole.rank, whole.complete) == (min(max_rank, 9), max_rank >= 9)
    np.testing.assert_allclose(part.eta, whole.eta, rtol=1e-12)
    one, other = (abs(geometry.coordinates(q @ v.T)) for geometry in (part, whole))  # signs are arbitrary
    np.testing.assert_allclose(one, other, atol=1e-10)


def test_numpy_and_torch_give_the_same_coordinates():
    v, q = descriptors(), descriptors(5, seed=2)
    dual, torch_backend = fitted(v), backend_for("torch")
    on_torch = dual.coordinates(torch_backend.put(q @ v.T))
    np.testing.assert_allclose(to_numpy(on_torch), dual.coordinates(q @ v.T), atol=1e-12)


@pytest.mark.parametrize("device", ["cpu", "torch"])
def test_products_are_float64_and_blockwise(device, monkeypatch):
    v = np.random.default_rng(0).normal(size=(6, 5000)).astype(np.float32)
    expected = v.astype(np.float64) @ v.astype(np.float64).T
    whole = to_numpy(gram_matrix(v, backend_for(device)))
    some, every = np.empty((2, 6)), np.empty((6, 6))
    probe_products(v, np.array([4, 1]), backend_for(device), some)
    monkeypatch.setattr(spectrum, "IMAGE_BLOCK", 4)
    probe_products(v, np.arange(6), backend_for(device), every)
    np.testing.assert_allclose(every, expected, rtol=1e-13)
    assert whole.dtype == np.float64
    np.testing.assert_allclose(whole, expected, rtol=1e-13)
    np.testing.assert_allclose(some, expected[[4, 1]], rtol=1e-13)


def test_participation_is_that_of_the_uncentred_eigenvalues():
    v = descriptors()
    nu = np.linalg.eigvalsh(v @ v.T)
    assert fitted(v).participation == pytest.approx(nu.sum() ** 2 / (nu**2).sum())


def test_rank_is_capped_and_rounding_is_no_direction():
    assert fitted(descriptors(), max_rank=5).rank == 5
    assert fitted(np.repeat(descriptors(1), 6, axis=0)).rank == 0  # identical images
    two = fitted(np.repeat(descriptors(2), 3, axis=0))
    assert two.rank == 1
    assert fitted(np.zeros((4, 10))).rank == 0


def test_the_kernel_at_zero_strength_is_the_original_bit_for_bit():
    (term,) = carrier_terms("adaptive", 0.0, 0.0)
    assert term == carrier_terms("original", 0.7, 0.7)[0]
    assert (term.weight, term.gamma) == (1.0, None)


def test_an_unknown_carrier_is_refused():
    with pytest.raises(BadSpec, match="carrier='adaptiv' is unknown; use one of original, partial, adaptive"):
        carrier_terms("adaptiv", 0.5, 0.5)


def test_kernel_terms_equal_the_formula():
    v, q = descriptors(), descriptors(5, seed=3)
    pca = reference.Pca.fit(v)
    for c, beta in [(0.4, 0.2), (1.0, 0.5), (0.0, 1.0), (0.3, 0.0)]:
        terms = carrier_terms("adaptive", c, beta)
        assert sum(term.weight for term in terms) == pytest.approx(1)
        assert all(term.weight > 0 for term in terms)
        total = sum(t.weight * (q @ v.T if t.gamma is None else pca.whitened(q, v, t.gamma)) for t in terms)
        np.testing.assert_allclose(total, pca.adaptive(q, v, c, beta), atol=1e-12)


def test_smooth_step():
    assert (smooth_step(0), smooth_step(1)) == (0, 1)
    assert smooth_step(0.5) == pytest.approx(0.5)


def half_empty(images=150, words=6, channels=5, seed=0):
    """Descriptors some of whose words are zero blocks, and which are not; word 2 is in all, word 3 in none."""
    rng = np.random.default_rng(seed)
    filled = rng.random((images, words)) < rng.random(words)
    filled[:, 2], filled[:, 3], filled[7] = True, False, False
    v = rng.normal(size=(images, words, channels)) * filled[:, :, None]
    return v.reshape(images, -1).astype(np.float32), filled


def test_products_by_word_equal_the_whole_product():
    v, filled = half_empty()
    products = geometry._products_by_word(v, filled)
    np.testing.assert_allclose(products, v.astype(np.float64) @ v.astype(np.float64).T, atol=1e-14)
    np.testing.assert_array_equal(products, products.T)
    np.testing.assert_array_equal(products, geometry._products_by_word(v, filled))  # and the same every time


def test_zero_blocks_are_used_where_it_is_less_work(monkeypatch):
    v, filled = half_empty(channels=400)
    calls, real = [], geometry._products_by_word
    monkeypatch.setattr(geometry, "_products_by_word", lambda *given: calls.append(1) or real(*given))
    expected = v.astype(np.float64) @ v.astype(np.float64).T
    np.testing.assert_allclose(gram_matrix(v, backend_for("cpu"), filled=filled), expected, atol=1e-11)
    assert len(calls) == 1
    gram_matrix(v, backend_for("cpu"), filled=np.ones_like(filled))  # nothing to leave out
    gram_matrix(v, backend_for("torch"), filled=filled)  # not where one large product is what is fast
    narrow, few = half_empty(channels=2)
    gram_matrix(narrow, backend_for("cpu"), filled=few)  # more to add up than to multiply
    assert len(calls) == 1


@pytest.mark.parametrize("device", ["cpu", "torch"])
def test_products_with_probes_come_in_blocks_of_images(device, monkeypatch):
    monkeypatch.setattr(geometry, "IMAGE_BLOCK", 4)
    monkeypatch.setattr(geometry, "COLUMN_BLOCK", 3)
    v = np.random.default_rng(0).normal(size=(11, 8)).astype(np.float32)
    room = Spill(spill_bytes=0).empty((2, 11), np.float64)
    probe_products(v, np.array([9, 2]), backend_for(device), room)
    np.testing.assert_allclose(room, v[[9, 2]].astype(np.float64) @ v.astype(np.float64).T, rtol=1e-13)


def test_a_geometry_knows_whether_it_is_complete():
    assert fitted(descriptors()).complete
    assert not fitted(descriptors(), max_rank=5).complete
