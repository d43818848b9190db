"""Points within a radius: by a tree as by all distances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfa.evaluate.positives import within


@given(st.integers(0, 10**6), st.sampled_from([2, 3]), st.sampled_from([0.0, 1.0, 5.0, 25.0]))
def test_positives_are_those_of_all_distances(seed: int, axes: int, radius: float):
    """Whole coordinates put many points exactly on the border, which belongs to it."""
    generator = np.random.default_rng(seed)
    database, queries = (generator.integers(-30, 30, (count, axes)).astype(float) for count in (40, 15))
    offsets = queries[:, None] - database[None]
    plain = [np.flatnonzero(row <= radius) for row in np.sqrt((offsets * offsets).sum(axis=2))]
    close = within(database, queries, radius)
    assert len(close) == len(plain)
    assert all(np.array_equal(one, other) and one.dtype == np.int64 for one, other in zip(close, plain, strict=True))


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (0, 0)])
def test_nothing_is_near_nothing(sizes: tuple[int, int]):
    close = within(np.zeros((sizes[0], 2)), np.zeros((sizes[1], 2)), 10.0)
    assert [len(row) for row in close] == [0] * sizes[1]


def test_many_points_take_no_matrix_of_distances():
    """40,000 × 40,000 distances would take 12 GB and minutes."""
    points = np.arange(80_000, dtype=float).reshape(-1, 2)
    close = within(points, points, 1.0)
    assert all(row.tolist() == [index] for index, row in enumerate(close))
