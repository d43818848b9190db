"""Rows on another scale: the same products as their numbers written out."""

import numpy as np
import pytest

from tfa.search.gallery import Gallery, ScaledRows, inner, inner_of_terms
from tfa.search.quantized import round_rows


@pytest.fixture(params=["float32", "float16", "integers"])
def scaled(request):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 24)).astype(np.float32)
    base = round_rows(rows) if request.param == "integers" else rows.astype(request.param)
    return ScaledRows(base, rng.uniform(0.5, 2, 40).astype(np.float32), rng.uniform(0.1, 3, 24))


def test_products_are_those_of_the_rows_written_out(scaled):
    queries = np.random.default_rng(1).normal(size=(5, 24)).astype(np.float32)
    written = np.asarray(scaled, np.float64)
    expected = queries @ written.T
    # Features are rounded to 12 bits of their largest entry where rows are integers.
    tolerance = 4e-3 if not isinstance(scaled.base, np.ndarray) else 1e-5
    np.testing.assert_allclose(inner(queries, scaled), expected, atol=tolerance * np.abs(expected).max())
    assert scaled.shape == (40, 24)
    np.testing.assert_array_equal(np.asarray(scaled[[3, 1]]), np.asarray(scaled)[[3, 1]])


def test_a_query_is_answered_alike_alone_and_among_others(scaled):
    queries = np.random.default_rng(2).normal(size=(37, 24)).astype(np.float32)
    gallery = Gallery.of(scaled[:25], scaled[25:])
    together = gallery.inner(queries)
    for row in (0, 17, 36):
        np.testing.assert_array_equal(gallery.inner(queries[row : row + 1])[0], together[row])
    np.testing.assert_array_equal(gallery.take([30, 2]), np.asarray(scaled)[[30, 2]])


def test_terms_of_the_same_numbers_are_multiplied_together_and_to_the_same_bits(scaled, monkeypatch):
    rng = np.random.default_rng(4)
    other = ScaledRows(scaled.base, rng.uniform(0.5, 2, 40), rng.uniform(0.1, 3, 24))
    apart = rng.normal(size=(40, 3)).astype(np.float32)
    galleries = [Gallery.of(rows) for rows in (scaled, apart, other, scaled.base)]
    features = [rng.normal(size=(37, gallery.width)).astype(np.float32) for gallery in galleries]
    expected = [gallery.inner(own) for gallery, own in zip(galleries, features, strict=True)]
    read = []
    monkeypatch.setattr("tfa.search.gallery.inner", lambda some, rows: read.append(rows) or inner(some, rows))
    for own, theirs in zip(inner_of_terms(galleries, features), expected, strict=True):
        np.testing.assert_array_equal(own, theirs)
    blocks = -(-3 * 37 // 16) if isinstance(scaled.base, np.ndarray) else 1
    assert [rows is scaled.base for rows in read].count(True) == blocks  # not three times as many


def test_chunks_of_unlike_numbers_are_multiplied_apart(scaled):
    rng = np.random.default_rng(5)
    ours = Gallery.of(scaled, ScaledRows(scaled.base, scaled.scale, scaled.columns))
    theirs = Gallery.of(scaled, rng.normal(size=(40, 24)).astype(np.float32))
    features = [rng.normal(size=(2, 24)).astype(np.float32) for _ in range(2)]
    for own, gallery, some in zip(inner_of_terms([ours, theirs], features), (ours, theirs), features, strict=True):
        np.testing.assert_array_equal(own, gallery.inner(some))
