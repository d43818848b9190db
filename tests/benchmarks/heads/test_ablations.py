"""Ablations: one rule replaced, decided by hand-made evidence."""

from dataclasses import replace

import numpy as np
import pytest

from tests.worlds import seen_again, world
from tfa import pipeline
from tfa.errors import BadSpec
from tfa.method.database import METHOD_RULES, Rules
from tfa.method.dual_vocabulary import fit_dual_head
from tfa.method.evidence import Candidate
from tfa.types import HeadSpec
from tfa_bench.heads.controls import (
    ABLATIONS,
    CONTROLS,
    calibrate_by,
    calibrate_on_database,
    fit_by,
    select_branch,
    under_control,
    under_control_of_target,
)


def candidate(support, agreement):
    return Candidate(float(support), (agreement,) * 3)


@pytest.mark.parametrize(
    ("original", "partial", "adaptive", "method", "support_only", "agreement_only"),
    [
        # Partial covers no more but agrees more: the method goes on, support alone falls back.
        ((10, 0.5), (9, 0.6), (12, 0.7), "adaptive", "original", "adaptive"),
        # Partial covers more and agrees less: agreement alone falls back.
        ((10, 0.5), (12, 0.4), (11, 0.4), "partial", "partial", "original"),
        # Adaptive covers more but agrees less in every pair.
        ((10, 0.5), (12, 0.6), (14, 0.5), "partial", "adaptive", "partial"),
    ],
)
def test_each_half_of_the_carrier_rule_alone(original, partial, adaptive, method, support_only, agreement_only):
    given = [candidate(*one) for one in (original, partial, adaptive)]
    assert METHOD_RULES.carrier(*given) == method
    assert ABLATIONS["support-only"].rules.carrier(*given) == support_only
    assert ABLATIONS["agreement-only"].rules.carrier(*given) == agreement_only


def test_a_tie_goes_to_partial():
    given = [candidate(5, 0.5), candidate(8, 0.5), candidate(8, 0.6)]
    assert METHOD_RULES.carrier(*given) == "adaptive"
    assert ABLATIONS["ties-partial"].rules.carrier(*given) == "partial"
    apart = [candidate(5, 0.5), candidate(8, 0.5), candidate(9, 0.6)]
    assert ABLATIONS["ties-partial"].rules.carrier(*apart) == "adaptive"


@pytest.mark.parametrize(
    ("original", "partial", "adaptive", "method", "contraction"),
    [
        ((10, 0.5), (9, 0.6), (12, 0.7), "adaptive", "original"),  # support contracts, agreement does not contradict
        ((10, 0.5), (10, 0.6), (9, 0.7), "partial", "original"),  # as in the method's rule, a tie is no expansion
        ((10, 0.5), (12, 0.6), (14, 0.5), "partial", "partial"),  # the other conditions on agreement stay
        ((10, 0.5), (12, 0.4), (14, 0.5), "adaptive", "adaptive"),
    ],
)
def test_the_fallback_by_contraction_drops_one_condition(original, partial, adaptive, method, contraction):
    given = [candidate(*one) for one in (original, partial, adaptive)]
    assert METHOD_RULES.carrier(*given) == method
    assert ABLATIONS["support-contraction"].rules.carrier(*given) == contraction


def test_support_and_agreement_alone_choose_assignment_and_token():
    wide, steady = candidate(9, 0.4), candidate(8, 0.6)
    assert METHOD_RULES.assignment(wide, steady) == "soft"
    assert ABLATIONS["support-only"].rules.assignment(wide, steady) == "hard"
    assert ABLATIONS["agreement-only"].rules.assignment(steady, wide) == "hard"
    assert not METHOD_RULES.global_token(wide, steady)
    assert ABLATIONS["support-only"].rules.global_token(wide, steady)
    assert ABLATIONS["agreement-only"].rules.global_token(steady, wide)
    same = candidate(8, 0.6)
    assert not ABLATIONS["agreement-only"].rules.global_token(same, steady)  # a tie is no evidence


@pytest.fixture(scope="module")
def head():
    return pipeline.fit(world(20), HeadSpec(words=6))


@pytest.mark.parametrize("assignment", ["hard", "soft"])
def test_a_forced_assignment_is_used(head, assignment):
    rules = ABLATIONS[f"forced-{assignment}"].rules
    assert fit_by(rules, head).decisions.assignment == assignment
    target = calibrate_by(rules, head, seen_again(world(20)))
    assert target.decisions.route == assignment
    assert target.data_used == "target"


def test_the_global_token_always_or_never(head):
    target = seen_again(world(20))
    for name, admitted in (("always-cls", True), ("no-cls", False)):
        rules = ABLATIONS[name].rules
        assert fit_by(rules, head).decisions.admit_cls is admitted
        assert calibrate_by(rules, head, target).decisions.admit_cls is admitted


def test_the_methods_own_rules_change_nothing(head):
    again = fit_by(METHOD_RULES, head)
    assert again.decisions == head.decisions
    assert again.evidence.reasons == head.evidence.reasons
    target = seen_again(world(20))
    assert calibrate_by(METHOD_RULES, head, target).decisions == pipeline.calibrate(head, target).decisions


def test_rules_that_are_not_the_methods_have_no_reasons(head):
    assert fit_by(ABLATIONS["no-cls"].rules, head).evidence.reasons == {}


def test_controls_are_taken_from_a_database_head_only(head):
    target = pipeline.calibrate(head, seen_again(world(20)))
    with pytest.raises(BadSpec, match="database-only head"):
        under_control(target, "soft", CONTROLS["partial"])


def test_only_a_decision_that_evidence_makes_has_a_margin(head):
    assert under_control(head, "soft", CONTROLS["partial"]).evidence.margins == {}
    target = seen_again(world(20))
    assert set(under_control_of_target(head, target, CONTROLS["full"]).evidence.margins) == {"route"}
    assert fit_by(ABLATIONS["forced-partial"].rules, head).evidence.margins["carrier"] == {}
    assert fit_by(ABLATIONS["support-only"].rules, head).evidence.margins["carrier"].keys() == {"photos"}


@pytest.mark.parametrize("carrier", ["original", "partial", "adaptive"])
def test_a_forced_carrier_changes_nothing_else(head, carrier):
    rules, target = ABLATIONS[f"forced-{carrier}"].rules, seen_again(world(20))
    assert fit_by(rules, head).decisions == replace(head.decisions, carrier=carrier)
    calibrated = pipeline.calibrate(head, target)
    assert calibrate_by(rules, head, target).decisions == replace(calibrated.decisions, carrier=carrier)


def test_controls_of_fullq_have_its_assignment_and_strengths(head):
    target = seen_again(world(20))
    made = pipeline.calibrate(head, target).decisions
    adaptive = under_control_of_target(head, target, CONTROLS["adaptive"])
    assert adaptive.decisions == replace(made, carrier="adaptive", admit_cls=False)
    assert adaptive.data_used == "target"
    full = under_control_of_target(head, target, CONTROLS["full"]).decisions
    assert set(full.strengths) == set(made.strengths)
    assert all(own == {"c": 1.0, "beta": 0.0} for own in full.strengths.values())


@pytest.mark.parametrize("control", ["original", "partial", "full"])
def test_a_mixture_mixes_every_control(head, control):
    target = seen_again(world(20))
    mixed = under_control_of_target(head, target, CONTROLS[control], Rules(route=lambda evidence: "mixture"))
    weight = mixed.decisions.soft_weight
    assert 0 < weight < 1
    hard, soft = (under_control(head, assignment, CONTROLS[control]).scores(target) for assignment in ("hard", "soft"))
    np.testing.assert_allclose(mixed.scores(target), (1 - weight) * hard + weight * soft, atol=1e-5)


@pytest.fixture(scope="module")
def dual():
    return fit_dual_head(world(20), source_words=4, spec=HeadSpec(words=6))


def test_the_branches_of_a_dual_head_add_up_calibrated_or_not(dual):
    target = seen_again(world(20))
    source, mapped = select_branch(dual, "source"), select_branch(dual, "map")
    for replica in (0, 1, 2, "ensemble"):
        parts = source.scores(target, replica) + mapped.scores(target, replica)
        np.testing.assert_allclose(parts, dual.scores(target, replica), atol=1e-4)
        calibrated = source.calibrate(target).scores(target, replica) + mapped.calibrate(target).scores(target, replica)
        np.testing.assert_allclose(calibrated, dual.calibrate(target).scores(target, replica), atol=1e-4)
    assert not np.allclose(source.scores(target), mapped.scores(target))


def test_a_dual_head_calibrated_on_its_database_leaves_each_image_out(dual):
    database, target = world(20), seen_again(world(20))
    branch = select_branch(dual, "map")
    scores = branch.scores(database).astype(np.float64)
    np.fill_diagonal(scores, -np.inf)
    usual = np.log(np.exp(scores).sum(axis=0) / (len(database) - 1))
    found = calibrate_on_database(branch, database)
    np.testing.assert_allclose(found.scores(target), branch.scores(target) - usual, atol=1e-4)
    assert (found.data_used, found.decisions.calibration_images) == ("database", 20)
