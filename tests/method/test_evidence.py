"""Support, agreement and the other statistics, by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfa.method.evidence import (
    NO_ANSWER,
    SAME_COSINE,
    Candidate,
    Mask,
    correlate,
    measure_agreement,
    measure_support,
    penalize_dispersion,
    row_facts,
    row_tops,
    standardize_ranked,
)


def test_support_and_agreement_of_four_pseudo_queries():
    tops = np.array([[1, 0, 3, 2], [1, 0, 0, 0], [1, 2, 3, 2]])
    assert measure_support(tops) == pytest.approx((4 + 2 + 3) / 3)
    assert measure_agreement(tops) == (0.5, 0.75, 0.25)


def test_a_collapsed_retriever_agrees_perfectly_and_is_not_admitted():
    hub, spread = np.zeros((3, 10), int), np.tile(np.arange(10), (3, 1))
    spread[1, :4] = 9  # real vocabularies do not agree on everything
    collapsed, real = Candidate.of(hub), Candidate.of(spread)
    assert collapsed.agreement == (1, 1, 1)
    assert not collapsed.beats(real)
    assert collapsed.gain_over(real) > 0  # its agreement is higher; only support tells it apart


def test_beats_needs_more_support_and_one_pair_that_does_not_lose():
    base = Candidate(10, (0.5, 0.5, 0.5))
    assert Candidate(11, (0.4, 0.5, 0.4)).beats(base)
    assert not Candidate(11, (0.4, 0.4, 0.4)).beats(base)
    assert not Candidate(10, (0.9, 0.9, 0.9)).beats(base)


def test_a_pseudo_query_with_everything_masked_counts_nowhere():
    tops = np.array([[0, NO_ANSWER, 2], [0, 1, 2], [0, NO_ANSWER, 1]])
    assert measure_support(tops) == pytest.approx((2 + 3 + 2) / 3)
    assert measure_agreement(tops) == (1.0, 0.5, 0.5)
    assert measure_agreement(np.full((3, 2), NO_ANSWER)) == (0, 0, 0)


def test_row_facts_by_hand():
    scores = np.array([[9.0, 1, 2, 3], [5, 5, 5, 5], [1, 4, 4, 0]])
    masked = (np.array([0, 2, 2]), np.array([0, 1, 0]))
    facts = row_facts(scores.copy(), masked)
    np.testing.assert_array_equal(facts.top, [3, 0, 2])
    np.testing.assert_allclose(facts.spread, [np.std([1, 2, 3]), 0, 2])
    np.testing.assert_allclose(facts.peak, [1 / np.std([1, 2, 3]), 0, 1])
    everything = row_facts(np.ones((1, 3)), (np.zeros(3, int), np.arange(3)))
    assert everything.top[0] == NO_ANSWER
    assert everything.peak[0] == 0


@given(st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_row_facts_equal_the_plain_statistics(seed):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(5, 8)).round(1)  # ties happen
    allowed = rng.random((5, 8)) < 0.7
    allowed[:, 0] = True
    facts = row_facts(scores.copy(), np.nonzero(~allowed))
    for row in range(5):
        kept = scores[row][allowed[row]]
        assert facts.top[row] == np.where(allowed[row], scores[row], -np.inf).argmax()
        assert facts.spread[row] == pytest.approx(kept.std())
        assert facts.peak[row] == pytest.approx((kept.max() - kept.mean()) / (kept.std() + 1e-12))


def test_z_scores_are_those_of_the_facts_however_a_batch_lies_in_memory():
    scores = np.random.default_rng(0).normal(size=(5, 1000)).astype(np.float32)
    ranked = np.argsort(-scores, axis=1)[:, :7]
    found = standardize_ranked(scores, ranked)
    np.testing.assert_array_equal(standardize_ranked(np.asfortranarray(scores), ranked), found)
    np.testing.assert_array_equal(found[:, 0], row_facts(scores.astype(np.float64)).peak)
    for row, own, z in zip(scores.astype(np.float64), ranked, found, strict=True):  # a row alone, to the last bit
        np.testing.assert_array_equal(z, (row[own] - row.mean()) / (row.std() + 1e-12))
    assert not standardize_ranked(np.ones((1, 3)), np.array([[2]])).any()


def test_duplicates_are_masked_by_cosine_and_zero_descriptors_only_by_themselves():
    v = np.array([[1.0, 0], [2, 0], [1, 1e-4], [0, 0], [0, 0]])
    mask = Mask.of_duplicates(v @ v.T, np.arange(5), np.linalg.norm(v, axis=1))
    pairs = set(zip(mask.rows.tolist(), mask.columns.tolist(), strict=True))
    assert pairs == {(0, 0), (0, 1), (1, 0), (1, 1), (2, 2), (3, 3), (4, 4)}


@given(st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_tops_alone_are_the_tops_of_the_facts(seed):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(6, 5)).round(1)
    masked = np.nonzero(rng.random((6, 5)) < 0.6)  # rows without any answer happen
    np.testing.assert_array_equal(row_tops(scores.copy(), masked), row_facts(scores.copy(), masked).top)


@given(st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_duplicates_are_those_of_the_plain_comparison(seed):
    rng = np.random.default_rng(seed)
    v = rng.normal(size=(12, 3)) * rng.choice([0.0, 1e-3, 1.0, 50.0], 12)[:, None]
    v[rng.integers(12, size=4)] = v[rng.integers(12, size=4)] * rng.choice([1.0, 3.0, 1 + 1e-7], 4)[:, None]
    norms, images = np.linalg.norm(v, axis=1), np.sort(rng.permutation(12)[:7])
    products = v[images] @ v.T
    same = products >= SAME_COSINE * norms[images][:, None] * norms
    same &= (norms[images] > 0)[:, None] & (norms > 0)
    same[np.arange(7), images] = True
    mask = Mask.of_duplicates(products, images, norms, first_row=20)
    np.testing.assert_array_equal(np.stack([mask.rows - 20, mask.columns]), np.stack(np.nonzero(same)))


def test_identical_float32_descriptors_count_as_duplicates():
    rng = np.random.default_rng(0)
    v = rng.normal(size=(3, 20_000)).astype(np.float32)
    v[2] = v[0]
    wide = v.astype(np.float64)
    mask = Mask.of_duplicates(wide @ wide.T, np.arange(3), np.linalg.norm(wide, axis=1))
    assert (0, 2) in set(zip(mask.rows.tolist(), mask.columns.tolist(), strict=True))


def test_mask_blocks_and_union():
    mask = Mask(np.array([0, 1, 1, 3]), np.array([0, 1, 4, 3]))
    rows, columns = mask.within(1, 3)
    assert rows.tolist() == [0, 0]
    assert columns.tolist() == [1, 4]
    union = mask.union(Mask(np.array([1, 2]), np.array([4, 2])))
    assert list(zip(union.rows.tolist(), union.columns.tolist(), strict=True)) == [
        (0, 0),
        (1, 1),
        (1, 4),
        (2, 2),
        (3, 3),
    ]


def test_correlation_and_where_it_is_undefined():
    x = np.array([1.0, 2, 4])
    assert correlate(x, 3 * x + 1) == pytest.approx(1)
    assert correlate(x, -x) == pytest.approx(-1)
    assert correlate(x, np.ones(3)) == 0
    assert correlate(np.array([1.0]), np.array([2.0])) == 0
    assert correlate(np.array([]), np.array([])) == 0


def test_dispersion_penalized_by_hand():
    assert penalize_dispersion([0.5, 0.5, 0.5]) == 0.5
    # median 0.5, MAD 0.1: 0.5 − 1.959964·0.1/(0.674490·1.732051)
    assert penalize_dispersion([0.4, 0.5, 0.7]) == pytest.approx(0.5 - 0.1677696, abs=1e-6)
    assert penalize_dispersion([2, 2, 2]) == 1
    assert penalize_dispersion([0, 0.5, 1]) == 0
