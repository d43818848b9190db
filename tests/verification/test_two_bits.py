"""Two bits per number: levels, bytes and decoding."""

import numpy as np
import pytest

from tfa.core.arrays import l2_normalize
from tfa.verification import patches
from tfa.verification.patches import SMALL_DIMENSIONS, count_dimensions, fit_compaction, use_two_bits

DEVIATIONS = np.array([1.0, 2.0, 0.5, 1.0, 4.0], np.float32)


def read_back(rows, deviations):
    return patches.unpack_levels(
        patches.pack_levels(rows, deviations), patches.build_level_table(deviations), len(deviations)
    )


def test_bytes_by_hand():
    rows = np.array([[-3.0, -0.1, 0.1, 3.0, 0.1], [0.0, 1.9, 0.6, -1.0, -9.0]], np.float32)
    # Levels 0, 1, 2, 3 from the lowest bits up, then 2 alone; 1 (zero is below it), 2, 3, 0, then 0 alone.
    kept = patches.pack_levels(rows, DEVIATIONS)
    assert kept.dtype == np.uint8
    np.testing.assert_array_equal(kept, [[0b11100100, 0b10], [0b00111001, 0b00]])
    expected = np.array([[-1.5104, -2 * 0.4528, 0.5 * 0.4528, 1.5104, 4 * 0.4528],
                         [-0.4528, 2 * 0.4528, 0.5 * 1.5104, -1.5104, -4 * 1.5104]])  # fmt: skip
    found = read_back(rows, DEVIATIONS)
    assert (found.dtype, found.flags.c_contiguous) == (np.float32, True)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("numbers", [1, 3, 4, 6, 120])
def test_each_number_becomes_its_nearest_level_whatever_shape_it_lies_in(numbers):
    rng = np.random.default_rng(numbers)
    deviations = rng.uniform(0.1, 2, numbers).astype(np.float32)
    rows = rng.normal(size=(2, 7, numbers)).astype(np.float32) * deviations
    levels = patches._NORMAL_LEVELS * deviations[:, None]  # r 4
    nearest = np.take_along_axis(
        np.broadcast_to(levels, (2, 7, *levels.shape)), np.abs(rows[..., None] - levels).argmin(-1)[..., None], -1
    )[..., 0]
    np.testing.assert_array_equal(read_back(rows, deviations), nearest)
    assert patches.pack_levels(rows, deviations).shape == (2, 7, patches.count_packed_bytes(numbers))
    np.testing.assert_array_equal(read_back(nearest, deviations), nearest)  # what was read back is kept as it is
    assert read_back(rows[:0], deviations).shape == (0, 7, numbers)


def test_the_levels_are_those_that_round_a_normal_variable_best():
    drawn = np.random.default_rng(0).normal(size=(400_000, 1)).astype(np.float32)
    one = np.ones(1, np.float32)
    error = np.mean((read_back(drawn, one) - drawn) ** 2)
    assert error == pytest.approx(0.1175, abs=0.001)  # Max, 1960
    for level in patches._NORMAL_LEVELS:  # each is the mean of what is rounded to it
        assert drawn[read_back(drawn, one) == level].mean() == pytest.approx(level, abs=0.005)


def test_a_compaction_in_two_bits_keeps_directions():
    rng = np.random.default_rng(0)
    patches = l2_normalize(rng.normal(size=(3000, 160)) * np.geomspace(1, 0.1, 160)).astype(np.float32)
    full = fit_compaction(patches, count_dimensions("small", 128))
    small = use_two_bits(full, patches)
    assert (small.dimensions, small.bytes_per_patch, small.dtype) == (SMALL_DIMENSIONS, 30, np.uint8)
    assert (full.bytes_per_patch, full.dtype) == (SMALL_DIMENSIONS, np.int8)
    rows = small.compact(patches[:200])
    np.testing.assert_array_equal(rows, full.compact(patches[:200]))  # queries are compared as they are
    found = small.unpack(small.pack(rows))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    # Rounding that takes 0.1175 of the variance leaves a cosine of √(1 − 0.1175).
    assert (found * rows).sum(axis=1).mean() == pytest.approx(np.sqrt(1 - 0.1175), abs=0.01)


def test_patches_that_are_all_alike_have_no_direction_to_keep():
    alike = np.tile(l2_normalize(np.ones((1, 5), np.float32)), (9, 1))
    small = use_two_bits(fit_compaction(alike, 4), alike)
    found = small.unpack(small.pack(small.compact(alike)))
    assert np.isfinite(found).all()
    assert (found == found[0]).all()
