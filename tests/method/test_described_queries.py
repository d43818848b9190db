"""Descriptors of a dataset's queries: computed once, the same bits, and no business of `Tokens`."""

from __future__ import annotations

import numpy as np
import pytest

from tests.worlds import world
from tfa.core.arrays import backend_for
from tfa.method import described_queries
from tfa.method.described_queries import DescribedQueries
from tfa.method.residuals import ASSIGNMENT_KINDS, describe_residuals
from tfa.method.second_order import describe_second_order

CPU = backend_for("cpu")
CENTERS = [np.random.default_rng(seed).normal(size=(4, 6)).astype(np.float32) for seed in range(2)]


@pytest.fixture
def computed(monkeypatch):
    """How many images were described, in each call."""
    images, real = [], describe_residuals

    def watched(tokens, *given, **options):
        images.append(len(tokens))
        return real(tokens, *given, **options)

    monkeypatch.setattr(described_queries, "describe_residuals", watched)
    return images


def test_selections_have_the_bits_of_a_fresh_pass_and_are_computed_once(computed):
    tokens = world(images=9)
    queries = DescribedQueries(tokens)
    for rows in ([3, 1], slice(2, 7), [8, 8, 0]):
        found = describe_residuals(queries.select(rows), CENTERS, ASSIGNMENT_KINDS, 0.01, CPU)
        fresh = describe_residuals(tokens.select(rows), CENTERS, ASSIGNMENT_KINDS, 0.01, CPU)
        assert found.keys() == fresh.keys()
        for key, one in fresh.items():
            np.testing.assert_array_equal(found[key].descriptors, one.descriptors)
            np.testing.assert_array_equal(found[key].mass, one.mass)
    assert computed == [9] * len(CENTERS) * len(ASSIGNMENT_KINDS)
    describe_residuals(queries.select([4]).select([0]), CENTERS[:1], ("hard",), 0.01, CPU)
    assert len(computed) == len(CENTERS) * len(ASSIGNMENT_KINDS)


def test_what_shapes_a_descriptor_is_computed_anew(computed):
    queries = DescribedQueries(world(images=3))
    describe_residuals(queries, CENTERS[:1], ("soft",), 0.01, CPU)
    describe_residuals(queries, CENTERS[:1], ("soft",), 0.02, CPU)
    describe_residuals(queries, CENTERS[:1], ("soft",), 0.01, CPU, dtype="float64")
    describe_residuals(queries, CENTERS[:1], ("soft",), 0.01, backend_for("torch"))
    assert computed == [3] * 4


def test_second_order_descriptors_have_the_bits_of_a_fresh_pass_and_are_computed_once(monkeypatch):
    images = []

    def watched(tokens, *given, **options):
        images.append(len(tokens))
        return describe_second_order(tokens, *given, **options)

    monkeypatch.setattr(described_queries, "describe_second_order", watched)
    tokens = world(images=9)
    queries = DescribedQueries(tokens)
    directions = [np.linalg.qr(np.random.default_rng(seed).normal(size=(6, 6)))[0][:4] for seed in range(2)]
    for rows in ([3, 1], slice(2, 7), [8, 8, 0]):
        found = describe_second_order(queries.select(rows), directions)
        for one, fresh in zip(found, describe_second_order(tokens.select(rows), directions), strict=True):
            np.testing.assert_array_equal(one, fresh)
    assert images == [9, 9]
    describe_second_order(queries, directions[:1], dtype="float64")
    assert images == [9, 9, 9]


def test_a_selection_knows_its_rows_of_the_whole():
    tokens = world(images=6)
    some = DescribedQueries(tokens).select([5, 2, 4]).select(slice(1, None))
    assert some.whole is tokens
    assert some.rows.tolist() == [2, 4]
    np.testing.assert_array_equal(some.patches[0], tokens.patches[2])
    assert not {"memory", "rows"} & vars(tokens).keys()
