"""The one rerank(): which images are compared, and what order, lead and margin follow."""

import numpy as np
import pytest

from tfa.verification.reranking import UNVERIFIED, Compared, leads, margins, rerank


class ByHand:
    """Evidence by hand, of (query, image) and of (image, other); notes what is compared."""

    def __init__(self, evidence=None, between=None):
        self.evidence, self.of_images, self.seen = evidence or {}, between or {}, []

    def with_queries(self, rows, images):
        self.seen += [(row, own.tolist()) for row, own in zip(rows, images, strict=True)]
        tables = [[self.evidence.get((row, image), 0.0) for image in own] for row, own in self.seen[-len(rows) :]]
        return [Compared(np.array(table), np.array(table, np.int64) * 10) for table in tables]

    def between(self, image, other):
        return self.of_images.get((image, other), 0.0)


def test_candidates_by_score_and_evidence_then_the_others_in_their_order():
    scores = np.array([[5.0, 1.0, 4.0, 3.0, 2.0]])
    found = rerank(scores, 5, 3, ByHand({(0, 3): 9.0, (0, 0): 1.0}))
    assert found.indices.tolist() == [[3, 0, 2, 4, 1]]
    z = (scores[0] - 3) / np.sqrt(2)
    np.testing.assert_allclose(found.standardised[0], z[[3, 0, 2, 4, 1]])
    np.testing.assert_allclose(found.ordering[0], [z[3] + 12, z[0] + 4, z[2], z[4], z[1]])
    assert found.evidence.tolist() == [[9, 1, 0, 0, 0]]
    assert found.matches.tolist() == [[90, 10, 0, UNVERIFIED, UNVERIFIED]]
    np.testing.assert_allclose(found.lead[0, :3], leads(np.array([9.0, 1.0, 0.0])))
    np.testing.assert_allclose(found.margin[0, :3], margins(found.ordering[0, :3]))
    assert not found.lead[0, 3:].any()
    short = rerank(scores, 2, 3, ByHand({(0, 3): 9.0, (0, 0): 1.0}))
    assert short.indices.tolist() == [[3, 0]]
    assert short.margin.tolist() == found.margin[:, :2].tolist()


def test_exactly_so_many_are_compared_and_of_ties_the_smaller_index():
    comparison = ByHand()
    found = rerank(np.array([[1.0, 3.0, 2.0, 3.0, 2.0, 2.0]]), 6, 3, comparison)
    assert comparison.seen == [(0, [1, 3, 2])]
    assert found.indices.tolist() == [[1, 3, 2, 4, 5, 0]]
    everyone = ByHand()
    rerank(np.array([[1.0, 3.0]]), 1, 99, everyone)
    assert everyone.seen == [(0, [1, 0])]


def test_the_heads_first_stays_where_the_winner_shows_its_place():
    scores = np.array([[3.0, 2.0, 1.0]])
    apart = rerank(scores, 3, 3, ByHand({(0, 1): 4.0}, {(1, 0): 10.0}))
    one_place = rerank(scores, 3, 3, ByHand({(0, 1): 4.0}, {(1, 0): 10.1}))
    assert (apart.indices[0, 0], one_place.indices[0, 0]) == (1, 0)


@pytest.mark.parametrize("given", [{}, {"candidates": 3}, {"comparison": ByHand({(0, 1): 99.0})}])
def test_without_candidates_or_comparison_the_order_is_that_of_the_scores(given):
    found = rerank(np.array([[1.0, 0.0, 2.0]]), 2, **given)
    assert found.indices.tolist() == [[2, 0]]
    assert (found.matches == UNVERIFIED).all()
    np.testing.assert_array_equal(found.ordering, found.standardised)


def test_many_queries_are_compared_in_blocks_and_none_is_lost():
    scores = np.random.default_rng(0).normal(size=(130, 4))
    comparison = ByHand({(row, row % 4): 50.0 for row in range(130)})
    found = rerank(scores, 1, 4, comparison)
    assert found.indices[:, 0].tolist() == [row % 4 for row in range(130)]
    assert [row for row, _ in comparison.seen] == list(range(130))
    assert rerank(scores[:0], 1, 4, comparison).indices.shape == (0, 1)
