"""Every branch of every rule of the database-only controller, on evidence made for it."""

import pytest

from tfa.method import database
from tfa.method.database import pick_assignment, pick_carrier
from tfa.method.decisions import Decisions
from tfa.method.evidence import Candidate

EVEN = (0.5, 0.5, 0.5)
LESS = (0.4, 0.4, 0.4)
MIXED = (0.4, 0.6, 0.4)


def rule(support, agreement=EVEN):
    return Candidate(support, agreement)


@pytest.mark.parametrize(
    ("hard", "soft", "chosen"),
    [
        (rule(12), rule(10), "hard"),
        (rule(12, MIXED), rule(10), "hard"),
        (rule(12, LESS), rule(10), "soft"),
        (rule(10), rule(10), "soft"),
        (rule(9), rule(10), "soft"),
    ],
)
def test_assignment(hard, soft, chosen):
    assert pick_assignment(hard, soft) == chosen
    assert database.explain_assignment(hard, soft).startswith(chosen)


@pytest.mark.parametrize(
    ("original", "partial", "adaptive", "chosen", "because"),
    [
        (rule(10), rule(10, LESS), rule(20), "original", "does not cover more"),
        (rule(10), rule(9, LESS), rule(9), "original", "does not cover more"),
        (rule(10), rule(9, MIXED), rule(8), "partial", "covers more of the map than"),
        (rule(10), rule(12), rule(11), "partial", "covers more of the map than"),
        (rule(10), rule(12), rule(13, LESS), "partial", "agrees less in every pair"),
        (rule(10), rule(12), rule(13, MIXED), "adaptive", "covers more and does not"),
        (rule(10), rule(12), rule(12, LESS), "adaptive", "tie"),
        (rule(10), rule(9, MIXED), rule(9), "adaptive", "tie"),
    ],
)
def test_carrier(original, partial, adaptive, chosen, because):
    assert pick_carrier(original, partial, adaptive) == chosen
    words = database.explain_carrier(chosen, original, partial, adaptive)
    assert words.startswith(chosen)
    assert because in words


def test_global_token_reasons():
    assert "used: " in database.explain_global_token(True, rule(12), rule(10))
    assert "must cover more" in database.explain_global_token(True, rule(10), rule(10))
    assert "agree less" in database.explain_global_token(True, rule(12, LESS), rule(10))
    assert "do not vary" in database.explain_global_token(True, None, rule(10))


def test_decisions_survive_json():
    made = Decisions(
        assignment="soft", carrier="partial", admit_cls=True, c=0.1, beta=0.2,
        sigma_local=(1.0, 2.0, 3.0), sigma_cls=(0.1, 0.2, 0.3),
    )  # fmt: skip
    assert Decisions.from_dict(made.to_dict()) == made
