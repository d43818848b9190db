"""Invariants of the target-calibrated controller, on its plain form."""

import math

import numpy as np
import pytest

from tfa.reference import database as reference
from tfa.reference import relation
from tfa.reference import target as plain

# --- Information -----------------------------------------------------------------------------------------


def test_a_collapsed_retriever_has_no_information():
    np.testing.assert_allclose(plain.information(np.full((3, 8), 5), 20), 0, atol=1e-11)


def test_a_retriever_that_tells_all_images_apart_has_all_of_it():
    top = np.tile(np.arange(8), (3, 1))
    np.testing.assert_allclose(plain.information(top, 20), 1, atol=1e-9)


def test_information_by_hand():
    # q0: 0 0 1, q1: 1 1 1, so p(0) = 1/3 and p(1) = 2/3
    value = plain.information(np.array([[0, 1], [0, 1], [1, 1]]), 5)
    expected = [2 / 3 * math.log(2) + 1 / 3 * math.log(1 / 2), math.log(3 / 2)]
    np.testing.assert_allclose(value, np.array(expected) / math.log(2), atol=1e-11)


def test_capacity_interval_has_the_sign_of_the_better_assignment():
    rng = np.random.default_rng(3)
    strong, weak = rng.uniform(0.8, 1.0, 16), rng.uniform(0.2, 0.4, 16)
    reference_information = {"hard": 0.9, "soft": 0.9}
    low, high = plain.capacity_bootstrap({"hard": strong, "soft": weak}, reference_information)
    assert low <= high < 0
    mirrored = plain.capacity_bootstrap({"hard": weak, "soft": strong}, reference_information)
    np.testing.assert_allclose(mirrored, (-high, -low))
    assert plain.capacity_bootstrap({"hard": weak, "soft": weak}, reference_information) == (0, 0)


def test_capacity_interval_survives_collapse():
    nothing = np.full(6, -1e-13)  # what ε makes of log 1
    low, high = plain.capacity_bootstrap({"hard": nothing, "soft": np.ones(6)}, {"hard": 0.5, "soft": 0.5})
    assert 0 < low <= high < np.inf


# --- Relation --------------------------------------------------------------------------------------------


def random_gram(images=7, seed=0):
    x = reference.l2(np.random.default_rng(seed).normal(size=(images, 4)))
    return x @ x.T


def test_cka_of_a_gram_with_itself_is_one():
    gram = relation.centered(random_gram())
    assert relation.cka(gram, gram) == pytest.approx(1, abs=1e-12)
    assert relation.cka(gram, 3 * gram) == pytest.approx(1, abs=1e-12)


def test_cka_of_equal_vectors_is_zero():
    constant = relation.centered(np.full((7, 7), 0.1))
    assert not constant.any()
    assert relation.cka(relation.centered(random_gram()), constant) == 0
    assert relation.effective_rank(constant) == 0


def test_effective_rank_counts_equal_directions():
    assert relation.effective_rank(relation.centered(np.eye(6))) == pytest.approx(5)


def test_ratios_are_clipped_to_one():
    assert relation.unit_ratio(2.0, 1.0) == 1
    assert relation.unit_ratio(-1.0, 1.0) == 0
    assert relation.unit_ratio(0.25, 0.5) == pytest.approx(0.5)
    assert relation.unit_ratio(0.1, 0.0) == 1
    assert relation.unit_ratio(0.0, 0.0) == 0


def test_joint_is_a_conjunction():
    ones = (1.0, 1.0, 1.0, 1.0)
    assert relation.joint(ones, ones) == pytest.approx(1)
    for k in range(4):
        assert relation.joint(tuple(0.0 if i == k else 1.0 for i in range(4)), ones) == 0
    assert relation.joint((1 / 8, 1.0, 1.0, 1.0), ones) == pytest.approx(1 / 2)
    assert relation.joint((1.0, 1.0, 1.0, 1 / 8), ones) == pytest.approx(1 / 8)


def test_ranks_by_hand():
    # Rows 0 and 1 both choose column 0; row 0 is only second there. Row 2 is alone in column 1.
    scores = np.array([[0.8, 0.1], [0.9, 0.2], [0.3, 0.5]])
    gram = random_gram(3)
    _, reciprocal, mutual, _ = relation.terms(plain.Seen(scores, gram, random_gram(2, 1)), np.array([0, 1, 2]))
    assert (reciprocal, mutual) == (pytest.approx((1 / 2 + 1 + 1) / 3), pytest.approx(2 / 3))
    # Ranks count the drawn rows alone: without row 1, row 0 is first.
    assert relation.terms(plain.Seen(scores, gram, random_gram(2, 1)), np.array([2, 0]))[1:3] == (1, 1)


def test_ties_do_not_lower_a_rank():
    seen = plain.Seen(np.full((4, 3), 0.5), random_gram(4), random_gram(3))
    assert relation.terms(seen, np.arange(4))[1:3] == (1, 1)


def test_masked_entries_neither_win_nor_outrank():
    gallery = random_gram(6)
    seen = plain.pseudo(gallery, ~np.eye(6, dtype=bool))
    assert (seen.top != np.arange(6)).all()
    column = seen.scores[:, seen.top[0]]
    assert column[seen.top[0]] == -np.inf


def test_a_target_like_its_reference_keeps_all_of_the_relation():
    seen = [plain.pseudo(random_gram(9, s), ~np.eye(9, dtype=bool)) for s in range(3)]
    draws = [(i, i) for i, _ in plain.subsamples(9, 9)][:20]
    np.testing.assert_allclose(plain.relation(seen, seen, draws), 1, atol=1e-6)


@pytest.mark.parametrize(("images", "drawn"), [(2, 2), (3, 3), (5, 4), (64, 52), (640, 512), (5000, 512)])
def test_subsample_sizes(images, drawn):
    draws = plain.subsamples(images, 40)
    assert len(draws) == 200
    for i, j in draws:
        assert len(set(i.tolist())) == len(i) == drawn
        assert len(set(j.tolist())) == len(j) == min(drawn, 40)


# --- Route, carrier --------------------------------------------------------------------------------------

LESS, NONE, MORE = (-0.2, -0.1), (-0.1, 0.1), (0.1, 0.2)


@pytest.mark.parametrize(
    ("capacity", "medians", "a", "g", "route"),
    [
        (NONE, (-0.15, -0.15), LESS, LESS, "hard"),  # both views say so
        (MORE, (-0.15, -0.15), LESS, LESS, "hard"),  # whatever the capacity
        (LESS, (-0.01, -0.01), NONE, NONE, "hard"),  # capacity says so, both views lean that way
        (LESS, (-0.15, -0.01), LESS, NONE, "hard"),
        (LESS, (0.0, -0.01), NONE, NONE, "soft"),  # a view that does not lean
        (LESS, (-0.01, 0.01), NONE, NONE, "soft"),
        (NONE, (-0.01, -0.01), NONE, NONE, "soft"),  # leaning alone
        (NONE, (-0.15, -0.01), LESS, NONE, "soft"),  # one view alone
        (NONE, (-0.01, -0.15), NONE, LESS, "soft"),
        (NONE, (0.15, 0.0), MORE, NONE, "mixture"),
        (LESS, (0.15, -0.15), MORE, LESS, "mixture"),
        (MORE, (0.0, 0.15), NONE, MORE, "soft"),  # the direction view alone mixes nothing
        (NONE, (0.1, 0.0), (0.0, 0.2), NONE, "soft"),  # zero is not above zero
        (NONE, (-0.1, -0.1), (-0.2, 0.0), LESS, "soft"),  # nor below
    ],
)
def test_route(capacity, medians, a, g, route):
    median = dict(zip("AG", medians, strict=True))
    assert plain.choose_route(capacity, median, {"A": a, "G": g}) == route


def test_weight_of_soft():
    assert plain.weight_of_soft("hard", 0.7) == 0
    assert plain.weight_of_soft("soft", -0.7) == 1
    assert plain.weight_of_soft("mixture", 0.0) == pytest.approx(1 / 2)
    assert plain.weight_of_soft("mixture", 1.0) == plain.weight_of_soft("mixture", 1.5) == pytest.approx(1)
    assert plain.weight_of_soft("mixture", -1.0) == plain.weight_of_soft("mixture", -1.5) == pytest.approx(0)
    weights = [plain.weight_of_soft("mixture", m) for m in np.linspace(-1, 1, 9)]
    assert weights == sorted(weights)


def tops(*rows):
    return np.array(rows)


WIDE = tops([0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3])  # covers 4, agrees everywhere
WIDE_LOOSE = tops([0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1])  # covers 4, agrees nowhere
NARROW = tops([0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1])  # covers 2, agrees everywhere
NARROW_LOOSE = tops([0, 0, 1, 1], [1, 1, 2, 2], [2, 2, 0, 0])


@pytest.mark.parametrize(
    ("original", "partial", "adaptive", "carrier"),
    [
        (NARROW, NARROW_LOOSE, WIDE, "original"),
        (NARROW, WIDE_LOOSE, NARROW, "partial"),
        (NARROW, NARROW, WIDE_LOOSE, "partial"),
        (NARROW, NARROW, WIDE, "adaptive"),
        (NARROW, NARROW, NARROW_LOOSE, "adaptive"),
    ],
)
def test_carrier(original, partial, adaptive, carrier):
    top = {"original": original, "partial": partial, "adaptive": adaptive}
    assert plain.choose_carrier(top) == carrier


# --- Global token ----------------------------------------------------------------------------------------


def test_coverage():
    spread = np.tile(np.arange(8), (3, 1))
    assert plain.coverage(spread, 8) == pytest.approx(1)
    assert plain.coverage(spread, 100) == pytest.approx(1)
    assert plain.coverage(np.full((3, 8), 2), 8) == pytest.approx(1 / 8)
    # Three disjoint sets of tops occupy more than one construction can; the bound holds.
    assert plain.coverage(np.arange(24).reshape(3, 8), 100) == 1


def test_top_z_sees_unmasked_entries_only():
    scores = np.array([[-np.inf, 1.0, 0.0, 0.0, 0.0]])
    assert plain.top_z(plain.Seen(scores, scores, scores)) == pytest.approx(math.sqrt(3))


def branch(q=0.5, t=1.0, b=0.5, j=0.5, sigma=(1.0, 1.0, 1.0)):
    return plain.Branch(list(sigma), [], b, j, 0.5, q, t)


APART, TOGETHER, MIXED = [-0.1, -0.2, -0.3], [0.1, 0.2, 0.3], [-0.1, 0.0, -0.1]


@pytest.mark.parametrize(
    ("cls", "corr", "admitted"),
    [
        (branch(q=0.6, t=1.1), TOGETHER, True),  # better, and retained
        (branch(q=0.6, t=0.9), TOGETHER, False),  # better, but vetoed
        (branch(q=0.6, t=0.9, b=0.6, j=0.6), APART, False),  # nothing rescues from the veto
        (branch(q=0.4, t=1.1, b=0.6, j=0.6), APART, True),  # complementary
        (branch(q=0.4, t=1.1, b=0.6, j=0.6), MIXED, False),  # not in every construction
        (branch(q=0.4, t=1.1, b=0.4, j=0.9), APART, False),  # less information
        (branch(q=0.4, t=1.1, b=0.6, j=0.1), APART, False),  # less coherent
        (branch(q=0.6, t=1.1, sigma=(1.0, 0.0, 1.0)), TOGETHER, False),  # a score that does not vary
    ],
)
def test_admission(cls, corr, admitted):
    assert plain.admits(branch(), cls, corr) is admitted


def test_share_of_local():
    assert plain.share_of_local(branch(q=0.6), branch(q=0.2)) == pytest.approx(0.75)
    assert plain.share_of_local(branch(q=0.0), branch(q=0.0)) == 0.5
    assert plain.share_of_local(branch(q=0.0), branch(q=0.1)) == 0
