"""Ablations: one rule replaced, decided by hand-made evidence."""

import pytest

from tests.worlds import seen_again, world
from tfa import pipeline
from tfa.errors import BadSpec
from tfa.method.database import METHOD_RULES
from tfa.method.evidence import Candidate
from tfa.types import HeadSpec
from tfa_bench.heads.controls import ABLATIONS, CONTROLS, calibrate_by, fit_by, under_control


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
