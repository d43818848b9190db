"""Reranking: compared images, order and lead."""

import math
import statistics

import numpy as np
import pytest

from tfa.types import AUTO
from tfa.verification.reranking import UNVERIFIED, Compared, compute_leads, is_settled, plan_rounds, reorder, rerank


class ByHand:
    """Evidence by hand, of (query, image); notes what is compared."""

    def __init__(self, evidence=None, weight=5.0):
        self.evidence, self.weight, self.seen = evidence or {}, weight, []

    def with_queries(self, rows, images):
        self.seen += [(row, own.tolist()) for row, own in zip(rows, images, strict=True)]
        tables = [[self.evidence.get((row, image), 0.0) for image in own] for row, own in self.seen[-len(rows) :]]
        return [Compared(np.array(table), np.array(table, np.int64) * 10, self.weight) for table in tables]


@pytest.mark.parametrize("weight", [5.0, 4.0])
def test_candidates_by_score_and_evidence_then_the_others_in_their_order(weight):
    scores = np.array([[5.0, 1.0, 4.0, 3.0, 2.0]])
    found = rerank(scores, 5, 3, ByHand({(0, 3): 9.0, (0, 0): 1.0}, weight))
    assert found.indices.tolist() == [[3, 0, 2, 4, 1]]
    z = (scores[0] - 3) / np.sqrt(2)
    np.testing.assert_allclose(found.standardized[0], z[[3, 0, 2, 4, 1]])
    np.testing.assert_allclose(found.ordering[0], [z[3] + 3 * weight, z[0] + weight, z[2], z[4], z[1]])
    assert found.evidence.tolist() == [[9, 1, 0, 0, 0]]
    assert found.inliers.tolist() == [[90, 10, 0, UNVERIFIED, UNVERIFIED]]
    np.testing.assert_allclose(found.lead[0, :3], weight * compute_leads(np.array([9.0, 1.0, 0.0])))
    assert not found.lead[0, 3:].any()
    short = rerank(scores, 2, 3, ByHand({(0, 3): 9.0, (0, 0): 1.0}))
    assert short.indices.tolist() == [[3, 0]]


def test_exactly_so_many_are_compared_and_of_ties_the_smaller_index():
    comparison = ByHand()
    found = rerank(np.array([[1.0, 3.0, 2.0, 3.0, 2.0, 2.0]]), 6, 3, comparison)
    assert comparison.seen == [(0, [1, 3, 2])]
    assert found.indices.tolist() == [[1, 3, 2, 4, 5, 0]]
    everyone = ByHand()
    rerank(np.array([[1.0, 3.0]]), 1, 99, everyone)
    assert everyone.seen == [(0, [1, 0])]


@pytest.mark.parametrize("given", [{}, {"candidates": 3}, {"comparison": ByHand({(0, 1): 99.0})}])
def test_without_candidates_or_comparison_the_order_is_that_of_the_scores(given):
    found = rerank(np.array([[1.0, 0.0, 2.0]]), 2, **given)
    assert found.indices.tolist() == [[2, 0]]
    assert (found.inliers == UNVERIFIED).all()
    np.testing.assert_array_equal(found.ordering, found.standardized)


def test_many_queries_are_compared_in_blocks_and_none_is_lost():
    scores = np.random.default_rng(0).normal(size=(130, 4))
    comparison = ByHand({(row, row % 4): 50.0 for row in range(130)})
    found = rerank(scores, 1, 4, comparison)
    assert found.indices[:, 0].tolist() == [row % 4 for row in range(130)]
    assert [row for row, _ in comparison.seen] == list(range(130))
    assert rerank(scores[:0], 1, 4, comparison).indices.shape == (0, 1)


# --- as many candidates as pay -----------------------------------------------------------------------------------


class Table:
    """A comparison whose evidence `q m` is given; notes how many queries are compared at a time."""

    def __init__(self, evidence):
        self.evidence, self.together = evidence, []

    def with_queries(self, rows, images):
        self.together.append(len(rows))
        return [Compared(self.evidence[row, own], np.full(len(own), 7)) for row, own in zip(rows, images, strict=True)]


def plain_count(row, evidence):
    """The rule, candidate by candidate: row and evidence `m` of one query."""
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    z = [(row[i] - np.mean(row)) / (np.std(row) + 1e-12) for i in order]
    roots = [math.sqrt(evidence[i]) for i in order]
    count = min(10, len(order))
    while count < min(100, len(order)):
        best = max(z[i] + 5 * roots[i] for i in range(count))
        if best > z[count] + 5 * (statistics.median(roots[:count]) + 0.625):
            break
        count = min(count + 5, 100, len(order))
    return count


@pytest.mark.parametrize("images", [3, 9, 10, 11, 14, 37, 100, 130])
def test_candidates_go_on_and_stop_as_the_formula_says(images):
    rng = np.random.default_rng(images)
    scores = -rng.gamma(0.3, size=(90, images)).round(1)  # many tie for the first place
    scores[::3] = 0.5  # and some rank nothing
    evidence = rng.gamma(1.0, 0.3, size=scores.shape) * (rng.random(scores.shape) < 0.7)
    evidence[np.arange(90), rng.integers(images, size=90)] += rng.gamma(1.0, 0.5, size=90)
    found = rerank(scores, images, AUTO, Table(evidence))
    counts = [plain_count(*pair) for pair in zip(scores, evidence, strict=True)]
    assert (found.inliers != UNVERIFIED).sum(axis=1).tolist() == counts
    assert len(set(counts)) >= {3: 1, 9: 1, 10: 1, 11: 2, 14: 2}.get(images, 4)
    for row, count in enumerate(counts):
        alone = rerank(scores[[row]], images, count, Table(evidence[[row]]))
        for name in ("indices", "standardized", "ordering", "evidence", "lead", "inliers"):
            np.testing.assert_array_equal(getattr(found, name)[row], getattr(alone, name)[0], name)


def test_photos_together_are_answered_as_each_alone():
    rng = np.random.default_rng(1)
    scores, evidence = rng.normal(size=(70, 60)), rng.gamma(1.0, 0.1, size=(70, 60))
    comparison = Table(evidence)
    together = rerank(scores, 12, AUTO, comparison)
    assert comparison.together[:4] == sorted(comparison.together[:4], reverse=True)  # round by round fewer go on
    assert 64 == comparison.together[0] > comparison.together[3] > 1
    for row in range(70):
        alone = rerank(scores[[row]], 12, AUTO, Table(evidence[[row]]))
        assert alone.indices.tolist() == together.indices[[row]].tolist()
        assert alone.lead.tolist() == together.lead[[row]].tolist()


def test_enough_by_hand():
    z, evidence = np.array([[2.0, 1.0, 0.0]]), np.array([[4.0, 0.25, 0.0]])  # best 2 + 10, median root 0.5
    assert is_settled(z, evidence, np.array([6.37])).tolist() == [True]  # 6.37 + 5 (0.5 + 0.625) = 11.995
    assert is_settled(z, evidence, np.array([6.375])).tolist() == [False]
    assert is_settled(z, evidence, np.array([5.49]), 4.0).tolist() == [True]  # 5.49 + 4 (0.5 + 0.625) = 9.99
    assert is_settled(z, evidence, np.array([5.5]), 4.0).tolist() == [False]


def test_a_clear_answer_takes_ten_and_no_evidence_a_hundred_at_most():
    scores = np.linspace(1, 0, 150)[None]
    clear, none = np.zeros((1, 150)), np.zeros((1, 150))
    clear[0, 4] = 9.0
    assert (rerank(scores, 150, AUTO, Table(clear)).inliers != UNVERIFIED).sum() == 10
    found = rerank(np.concatenate([scores, np.ones_like(scores)]), 150, AUTO, Table(np.zeros((2, 150))))
    assert (found.inliers != UNVERIFIED).sum(axis=1).tolist()[1] == 100  # equal scores: nothing is ever ahead
    assert found.indices.shape == (2, 150)
    assert rerank(scores, 3, AUTO, Table(none)).indices.tolist() == [[0, 1, 2]]


def test_rounds():
    assert plan_rounds(AUTO, 1000) == plan_rounds(AUTO, 100) == list(range(10, 101, 5))
    assert (plan_rounds(AUTO, 12), plan_rounds(AUTO, 10), plan_rounds(AUTO, 4), plan_rounds(AUTO, 0)) == (
        [10, 12],
        [10],
        [4],
        [],
    )
    assert (plan_rounds(20, 50), plan_rounds(20, 7), plan_rounds(0, 7)) == ([20], [7], [])


def test_what_was_given_stays_as_it_is():
    ranked, z = np.array([[3, 1, 2]]), np.array([[1.0, 0.5, 0.0]])
    found = reorder(ranked, z, 3, AUTO, Table(np.array([[0.0, 0.0, 9.0, 0.0]])))
    assert found.indices.tolist() == [[2, 3, 1]]
    assert (ranked.tolist(), z.tolist()) == ([[3, 1, 2]], [[1.0, 0.5, 0.0]])
