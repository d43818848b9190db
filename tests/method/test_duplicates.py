"""Equal photos tie in all evidence: the first one is the answer, as in a search with the fitted head.

With every photo of a database twice, and the copies behind the originals, the formulas give:

- equal descriptors, mean and covariance, so equal carriers at equal strengths c and β;
- pseudo queries that mask themselves and their copy, so every answer, counted as the first of equal images, is the
  answer in the single database: equal support, agreement, spreads and peaks;
- equal c and β if the halves are doubled in the same way (else the random halves differ);
- on target photos, equal answers, so equal information, support and agreement. The reference information is divided by
  log 2N instead of log N for both assignments, and other pseudo queries are drawn for the relation.
"""

import dataclasses

import numpy as np
import pytest

from tests.worlds import seen_again, world
from tfa.core.arrays import backend_for
from tfa.core.tokens import Tokens
from tfa.method.branch import DatabaseSplit
from tfa.method.carriers import PAPER_CARRIERS, carrier_terms
from tfa.method.database import Rules
from tfa.method.evidence import NO_ANSWER, count_distinct, relation_terms
from tfa.method.head import assemble
from tfa.method.pseudo_queries import every_score, pseudo_tops
from tfa.method.residuals import ASSIGNMENT_KINDS, describe_residuals
from tfa.method.target import (
    BranchKernel,
    PseudoRows,
    TargetBranch,
    decide_from_target,
    select_counted,
    view_pseudo_queries,
)
from tfa.pipeline import calibrate, fit, fit_second_order
from tfa.reference import database as reference
from tfa.reference import target as reference_target
from tfa.types import HeadSpec

CPU = backend_for("cpu")
COUNT = 22
CENTERS = [reference.l2(np.random.default_rng(s).normal(size=(6, 6))) for s in range(3)]
TWICE = [*range(COUNT), *range(COUNT)]
SEEDS = range(4)


def heads(monkeypatch, seed, order=TWICE):
    """Heads of a single and of a doubled database whose halves hold the same photos, and the two databases."""
    single = world(COUNT, seed=seed, noise=0.3 + 0.1 * (seed % 4))
    doubled = single.select(order)
    fitted = fit(single, centers=CENTERS, dtype="float64")
    halves = fitted.split.halves
    own = DatabaseSplit.of

    def of(images, spec):
        both = tuple(np.flatnonzero(np.isin(order, half)) for half in halves)
        return dataclasses.replace(own(images, spec), halves=both)

    monkeypatch.setattr(DatabaseSplit, "of", of)
    return fitted, fit(doubled, centers=CENTERS, dtype="float64"), single, doubled


def described(tokens):
    return describe_residuals(tokens, CENTERS, ASSIGNMENT_KINDS, HeadSpec().temperature, CPU, dtype="float64")


def decide(head, target, route):
    return decide_from_target(
        head.branches, described(target), head.cls, target.cls, CPU, rules=Rules(route=lambda evidence: route)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_every_photo_twice_changes_no_decision_of_the_database(seed, monkeypatch):
    single, doubled, *_ = heads(monkeypatch, seed)
    assert doubled.evidence.candidates == single.evidence.candidates
    one, two = single.decisions, doubled.decisions
    assert (two.assignment, two.carrier, two.admit_cls) == (one.assignment, one.carrier, one.admit_cls)
    for name in ("c", "beta", "sigma_local", "sigma_cls"):
        np.testing.assert_allclose(getattr(two, name), getattr(one, name), rtol=1e-8, atol=1e-10)


def test_the_order_of_copies_does_not_matter(monkeypatch):
    order = np.repeat(np.arange(COUNT), 2)  # every copy next to its original
    single, doubled, *_ = heads(monkeypatch, 1, order)
    assert doubled.evidence.candidates == single.evidence.candidates


def test_some_photos_twice_answer_with_the_first(monkeypatch):
    _, head, _, _ = heads(monkeypatch, 2, [*range(COUNT), 3, 7, 3, 11])
    for branch in head.branches.values():
        for carrier in PAPER_CARRIERS:
            block = every_score(branch, carrier_terms(carrier, 0.6, 0.4), CPU)
            assert pseudo_tops(block, branch.mask, len(head), len(head)).max() < COUNT


@pytest.mark.parametrize("route", ["hard", "soft", "mixture"])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_photo_twice_changes_no_answer_on_target_photos(seed, route, monkeypatch):
    single, doubled, tokens, _ = heads(monkeypatch, seed)
    target = seen_again(tokens, seed + 50, 0.4).select(range(14))
    (one, before), (two, after) = decide(single, target, route), decide(doubled, target, route)
    if route != "mixture":  # the weight of a mixture depends on the pseudo queries drawn
        assert after.candidates == before.candidates
        assert two.carrier == one.carrier
        np.testing.assert_allclose(two.sigma_local, one.sigma_local, rtol=1e-8)
        assert pytest.approx(before.global_token.local.T) == after.global_token.local.T
        assert pytest.approx(before.global_token.local.H) == after.global_token.local.H
    for a, strengths in one.strengths.items():
        np.testing.assert_allclose(list(two.strengths[a].values()), list(strengths.values()), rtol=1e-8, atol=1e-10)
    assert after.route.information_target == pytest.approx(before.route.information_target)
    for a in ASSIGNMENT_KINDS:
        expected = before.route.information_database[a] * np.log(COUNT) / np.log(2 * COUNT)
        assert after.route.information_database[a] == pytest.approx(expected)
    np.testing.assert_allclose(after.route.interval_capacity, before.route.interval_capacity, atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_equal_pseudo_queries_tie_when_a_column_is_ranked(seed, monkeypatch):
    single, doubled, tokens, _ = heads(monkeypatch, seed)
    views = described(seen_again(tokens).select(range(5)))
    mutual = []
    for head in (single, doubled):
        branch, split = head.branches["soft", 1], head.split
        kernel = BranchKernel([(1.0, TargetBranch.of(branch, views["soft", 1], CPU), carrier_terms("partial"))], CPU)
        rows = PseudoRows(split.images, split.pseudo, [branch.mask] * 3, select_counted(head.branches))
        tops = pseudo_tops(kernel.pseudo_block(), branch.mask, len(split.pseudo), split.images)
        view = view_pseudo_queries(kernel, split.pseudo, tops, rows.excluded(1))
        mutual.append(relation_terms(view, np.arange(split.images)[None]).mutual[0])
    assert mutual[1] == pytest.approx(mutual[0])


def search_first(head, carrier, tokens):
    """Answers (s, q) of the head under another carrier, without the global token."""
    decisions = dataclasses.replace(head.decisions, carrier=carrier, admit_cls=False)
    forced = assemble(head, decisions, head.evidence, CPU)
    return np.stack([forced.search(tokens, len(head), s)[0] for s in range(3)])


@pytest.mark.parametrize("seed", SEEDS)
def test_evidence_has_the_answers_of_the_heads_search(seed, monkeypatch):
    _, doubled, tokens, database = heads(monkeypatch, seed)
    target = seen_again(tokens, seed + 50, 0.4).select(range(14))
    calibrated = calibrate(doubled, target)
    for carrier in PAPER_CARRIERS:
        ranked = search_first(calibrated, carrier, target)
        assert count_distinct(ranked[:, :, 0]) == calibrated.evidence.candidates[carrier].supports
        found, tops = search_first(doubled, carrier, database), np.full((3, 2 * COUNT), NO_ANSWER)
        for s in range(3):
            mask = doubled.branches[doubled.decisions.assignment, s].mask
            hidden = [set(mask.columns[mask.rows == i].tolist()) for i in range(2 * COUNT)]
            tops[s] = [next(j for j in found[s, i].tolist() if j not in hidden[i]) for i in range(2 * COUNT)]
        candidate = doubled.evidence.candidates[f"{doubled.decisions.assignment}/{carrier}"]
        assert count_distinct(tops) == candidate.supports


@pytest.mark.parametrize("seed", [0, 3])
def test_equals_the_plain_formulas_with_duplicates(seed):
    single = world(COUNT, seed=seed, noise=0.5)
    doubled = single.select([*TWICE[: COUNT + 9], 2, 2])
    target = seen_again(single, 7, 0.4).select([*range(12), 3, 3])  # target photos twice, too
    head = fit(doubled, centers=CENTERS, dtype="float64")
    sets = [
        {a: [np.asarray(getattr(described(t)[a, s], name)) for s in range(3)] for a in ASSIGNMENT_KINDS}
        for t in (doubled, target)
        for name in ("descriptors", "mass")
    ]
    plain = reference.decide(sets[0], doubled.cls)
    found = head.decisions
    assert (found.assignment, found.carrier, found.admit_cls) == (plain.assignment, plain.carrier, plain.admit_cls)
    made = calibrate(head, target)
    expected = reference_target.calibrate(*sets, doubled.cls, target.cls)
    assert (made.decisions.route, made.decisions.carrier) == (expected.route, expected.carrier)
    for carrier, (support, agreement) in expected.candidates.items():
        assert made.evidence.candidates[carrier].support == pytest.approx(support)
        assert made.evidence.candidates[carrier].agreement == pytest.approx(agreement)
    assert made.evidence.route.m_A == pytest.approx(expected.relation_median["A"], abs=1e-9)
    assert made.evidence.route.m_G == pytest.approx(expected.relation_median["G"], abs=1e-9)
    np.testing.assert_allclose(made.evidence.route.interval_capacity, expected.capacity_interval, atol=1e-9)


def test_zero_descriptors_tie():
    tokens = world(12)
    patches = np.asarray(tokens.patches).copy()
    patches[3], patches[8] = CENTERS[0][1], CENTERS[0][2]  # every residual is zero under construction 0
    head = fit(Tokens(patches), centers=CENTERS, dtype="float64")
    first = head.branches["hard", 0].duplicates
    assert first is not None
    assert first[8] == 3


def test_second_order_pseudo_queries_tie():
    single = world(16, channels=12, seed=4)  # fewer images than dimensions: the dual form
    head = fit_second_order(single.select([*range(16), *range(16)]), constructions=1, dtype="float64")
    space = head.fitted.spaces[0]
    block = space.pseudo_scores(head.decisions.kernel("second_order", 0))
    assert pseudo_tops(block, space.mask, 32, 32).max() < 16
