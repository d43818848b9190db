"""Rows of integers: rounding, exact products, seven bits on disk."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tfa.search import quantized as module
from tfa.search.quantized import (
    ROW_TOP,
    SEVEN_TOP,
    QuantizedRows,
    from_seven_bits,
    join_rows,
    kernel_for,
    round_rows,
    split_planes,
    sum_products,
    to_seven_bits,
)

RNG = np.random.default_rng(0)


def made(rows: int = 300, width: int = 700) -> np.ndarray:
    rng = np.random.default_rng(rows)
    return (rng.standard_normal((rows, width)) * rng.gamma(1.0, size=(rows, 1))).astype(np.float32)


@pytest.mark.parametrize("top", [SEVEN_TOP, ROW_TOP])
def test_rounding_is_within_half_a_step(top):
    rows = made()
    near = round_rows(rows, top)
    assert np.abs(near.levels).max() == top
    assert (np.abs(np.asarray(near) - rows) <= 0.5001 * near.step[:, None]).all()
    fine = round_rows(rows, top, fine=True)
    assert (np.abs(np.asarray(fine) - rows) <= 0.003 * fine.step[:, None]).all()


def test_zero_rows_and_zero_queries_give_zero():
    rows = made(5, 12)
    rows[2] = 0
    assert (round_rows(rows).inner(made(3, 12))[:, 2] == 0).all()
    assert (round_rows(rows).inner(np.zeros((2, 12), np.float32)) == 0).all()
    assert round_rows(rows[:0]).inner(made(3, 12)).shape == (3, 0)
    assert round_rows(rows).inner(rows[:0]).shape == (0, 5)


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("top", [SEVEN_TOP, ROW_TOP])
def test_a_product_is_the_same_alone_in_a_batch_and_packed(top, fine):
    rows, queries = round_rows(made(), top, fine=fine), made(20)
    together = rows.inner(queries)
    fresh = rows[:]
    np.testing.assert_array_equal(fresh.inner(queries[:7]), together[:7])
    alone = np.concatenate([fresh.inner(query[None]) for query in queries])
    assert fresh._kernels  # packed after the first few
    np.testing.assert_array_equal(alone, together)
    np.testing.assert_array_equal(fresh.inner(queries), together)
    np.testing.assert_array_equal(rows[::-1].inner(queries[::-1])[::-1, ::-1], together)
    # A query is rounded to 1/2016 of its largest entry, or to 1/8001 for fine rows.
    plain = queries.astype(np.float64) @ np.asarray(rows, np.float64).T
    scale = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(np.asarray(rows), axis=1)
    np.testing.assert_allclose(together / scale, plain / scale, atol=1e-3 if not fine else 3e-4)


def test_sums_are_those_of_the_integers():
    rows, planes = round_rows(made()), split_planes(made(6))
    np.testing.assert_array_equal(planes.whole, planes.base * planes.coarse + planes.rest)
    assert max(np.abs(planes.coarse).max(), np.abs(planes.rest).max()) <= 63
    plain = planes.whole.astype(np.int64) @ rows.levels.astype(np.int64).T
    np.testing.assert_array_equal(sum_products(rows.levels, planes), plain)
    kernel = kernel_for(rows.levels.__getitem__, *rows.shape, ROW_TOP)
    if kernel is not None:  # x86 only
        for plane in (planes.coarse, planes.rest):
            plain = plane.astype(np.int64) @ rows.levels.astype(np.int64).T
            np.testing.assert_array_equal(kernel.sums(plane), plain)


@pytest.mark.parametrize("width", [600, 3073, 12288, 13000])
def test_the_largest_sums_are_exact_too(width):
    rows = QuantizedRows(np.full((300, width), ROW_TOP, np.int8), np.ones(300, np.float32), width)
    flat = np.ones((1, width), np.float32)
    rows.prepare()
    expected = np.float32(width * ROW_TOP)
    assert rows.inner(flat)[0, 0] == expected
    assert rows.inner(np.repeat(flat, 8, axis=0))[7, 299] == expected


@pytest.mark.parametrize("top", [SEVEN_TOP, ROW_TOP])
def test_packed_rows_are_in_memory_once(top, monkeypatch):
    monkeypatch.setattr(module, "_PIECE_ROWS", 128)  # several pieces
    whole, queries = round_rows(made(), top), made(3)
    monkeypatch.setattr(module, "_IN_MEMORY_BYTES", 1000)
    spilled = round_rows(made(), top)
    assert isinstance(spilled.stored, np.memmap)
    seven = QuantizedRows(whole.packed, whole.step, whole.width, top)  # seven bits where they fit
    for rows in (spilled, seven):
        expected = rows.inner(queries)
        rows.prepare()
        if rows._kernels["levels"] is not None:  # x86 only
            assert "levels" not in rows.__dict__
        np.testing.assert_array_equal(rows.inner(queries), expected)
        np.testing.assert_array_equal(expected, whole.inner(queries))
        np.testing.assert_array_equal(np.asarray(rows[[7, 299]]), np.asarray(whole)[[7, 299]])
        flat = np.ones((1, whole.width), np.float32)  # may be more than the kernel adds exactly
        np.testing.assert_array_equal(rows.inner(flat), whole.inner(flat))


def test_without_the_kernel_products_are_the_same(monkeypatch):
    rows, queries = round_rows(made()), made(3)
    rows.prepare()
    packed = rows.inner(queries)
    monkeypatch.setattr(module, "kernel_for", lambda *given: None)
    plain = rows[:]
    plain.prepare()
    np.testing.assert_array_equal(plain.inner(queries), packed)


@settings(max_examples=50, deadline=None)
@given(arrays.arrays(np.int8, st.tuples(st.integers(0, 4), st.integers(1, 20)), elements=st.integers(-63, 63)))
def test_seven_bits_give_the_levels_back(levels):
    packed = to_seven_bits(levels)
    assert packed.shape == (len(levels), (7 * levels.shape[1] + 7) // 8)
    np.testing.assert_array_equal(from_seven_bits(packed, levels.shape[1]), levels)


def test_stored_rows_are_slices_and_joints_of_one_another():
    rows = round_rows(made(9, 21), SEVEN_TOP)
    stored = QuantizedRows(rows.packed, rows.step, 21, SEVEN_TOP)
    assert stored.stored.nbytes == 9 * 19
    assert len(stored) == 9
    assert stored.shape == (9, 21)
    queries = made(2, 21)
    np.testing.assert_array_equal(stored.inner(queries), rows.inner(queries))
    joint = join_rows([rows[:4], stored[4:]])
    np.testing.assert_array_equal(joint.inner(queries), rows.inner(queries))


def test_joined_rows_keep_what_is_finer_than_a_step():
    rows = round_rows(made(9, 20), fine=True)
    joint = join_rows([rows[:4], rows[4:]])
    np.testing.assert_array_equal(np.asarray(joint), np.asarray(rows))
