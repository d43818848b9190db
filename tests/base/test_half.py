"""Half precision: every number is widened exactly, for any shape and memory layout."""

import numpy as np
import pytest

from tfa.core import arrays
from tfa.core.arrays import NOT_FINITE, all_finite, to_float32, widen

HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16)
FINITE = np.isfinite(HALVES)


def test_every_finite_half_is_exact_and_the_rest_is_long():
    wide = to_float32(HALVES)
    np.testing.assert_array_equal(wide[FINITE].view(np.int32), HALVES[FINITE].astype(np.float32).view(np.int32))
    assert (np.abs(wide[~FINITE]) >= NOT_FINITE).all()


@pytest.mark.parametrize("block", [1, 700, 1 << 20])
def test_blocks_strides_and_read_only_memory_change_nothing(block, monkeypatch):
    monkeypatch.setattr(arrays, "_BLOCK", block)
    rows = HALVES[FINITE][: 62 * 1024].reshape(62, 1024)[::2, 1::3]
    rows.flags.writeable = False
    np.testing.assert_array_equal(to_float32(rows), rows.astype(np.float32))
    assert to_float32(rows[:0]).shape == (0, rows.shape[1])


def test_other_dtypes_are_converted_as_numpy_does():
    double = np.empty(FINITE.sum())
    widen(HALVES[FINITE], double)
    np.testing.assert_array_equal(double, HALVES[FINITE].astype(np.float64))
    single = np.ones(3, np.float32)
    assert to_float32(single) is single
    np.testing.assert_array_equal(to_float32(np.array([1, -2, 3], np.int8)), np.array([1, -2, 3], np.float32))


def test_all_finite_is_what_isfinite_says():
    assert all_finite(HALVES[FINITE])
    assert all_finite(HALVES[:0])
    assert not any(all_finite(HALVES[index : index + 1]) for index in np.flatnonzero(~FINITE))
