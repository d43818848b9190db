"""Every branch of every rule of the database-only controller, on evidence made for it."""

import dataclasses

import numpy as np
import pytest

from tests.worlds import seen_again, world
from tfa.method import database
from tfa.method.database import find_flips, pick_assignment, pick_carrier
from tfa.method.decisions import BranchQuality, Decisions, Flip, GlobalEvidence, RouteEvidence, list_close_decisions
from tfa.method.evidence import Candidate
from tfa.pipeline import calibrate, fit
from tfa.types import HeadSpec

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


def flips(pick, *candidates, photos=100):
    found = find_flips(pick, *candidates, photos=photos)
    return {unit: (pytest.approx(flip.change), flip.choice) for unit, flip in found.items()}


def test_the_change_of_support_that_flips_a_decision():
    assert flips(pick_assignment, rule(12), rule(10))["photos"] == (2, "soft")
    assert flips(pick_assignment, rule(10), rule(10))["photos"] == (0, "hard")
    assert flips(pick_assignment, rule(9), rule(10))["photos"] == (1, "hard")
    assert flips(pick_carrier, rule(10), rule(12), rule(11))["photos"] == (1, "adaptive")
    assert flips(pick_carrier, rule(10), rule(12), rule(12, LESS))["photos"] == (0, "partial")
    assert flips(pick_carrier, rule(10), rule(10, LESS), rule(20))["photos"] == (0, "adaptive")
    assert flips(database.admit_database_token, rule(12), rule(10))["photos"] == (2, "left out")
    assert flips(database.admit_database_token, rule(10), rule(12))["photos"] == (2, "used")


def test_a_change_of_agreement_is_counted_in_photos():
    assert flips(pick_assignment, rule(12, LESS), rule(10)) == {"photos of agreement": (10, "hard")}
    assert flips(pick_assignment, rule(12, LESS), rule(10), photos=85) == {"photos of agreement": (8.5, "hard")}
    assert flips(pick_assignment, rule(12), rule(10)) == {"photos": (2, "soft"), "photos of agreement": (0, "soft")}
    assert flips(pick_carrier, rule(10), rule(12), rule(13, LESS)) == {
        "photos": (1, "adaptive"), "photos of agreement": (10, "adaptive")
    }  # fmt: skip
    always = (1.0, 1.0, 1.0)  # equal constructions
    assert flips(pick_assignment, rule(12, always), rule(10, always)) == {"photos": (2, "soft")}


def test_support_and_agreement_may_have_to_change_together():
    assert flips(pick_assignment, rule(10, LESS), rule(12)) == {"photos of both": (10, "hard")}
    assert flips(pick_assignment, rule(10, LESS), rule(12), photos=5) == {"photos of both": (2, "hard")}
    smaller = flips(pick_carrier, rule(10), rule(12), rule(5))
    assert smaller == {"photos": (7, "adaptive"), "photos of both": (2, "original")}


@pytest.mark.parametrize("seed", range(40))
def test_no_smaller_change_of_one_support_flips_the_carrier(seed):
    rng = np.random.default_rng(seed)
    candidates = [rule(int(rng.integers(10, 22)), tuple(rng.integers(0, 4, 3) / 4)) for _ in range(3)]
    chosen, found = pick_carrier(*candidates), find_flips(pick_carrier, *candidates).get("photos")
    outcomes = {}
    for at, one in enumerate(candidates):
        for step in np.arange(-40, 41) / 2:  # photos, and between them
            moved = [*candidates[:at], dataclasses.replace(one, support=one.support + step), *candidates[at + 1 :]]
            outcomes.setdefault(abs(step), set()).add(pick_carrier(*moved))
    changed = [size for size, outcome in outcomes.items() if outcome != {chosen}]
    if found is None:
        assert not changed
    else:  # a threshold itself may not flip, but the next step does
        assert found.change <= min(changed) <= found.change + 0.5


def test_the_change_that_flips_a_decision_on_target_photos():
    both = {"hard": 1.0, "soft": 1.0}
    evidence = RouteEvidence(both, both, both, (-0.5, 0.5), -0.3, -0.2, (-0.6, -0.1), (-0.4, -0.02))
    assert database.pick_route(evidence) == "hard"
    assert find_flips(database.pick_route, evidence) == {"relation": Flip(0.02, "soft")}
    soft = dataclasses.replace(evidence, interval_G=(-0.4, 0.1), interval_capacity=(-0.5, 0.03))
    assert database.pick_route(soft) == "soft"
    flip = find_flips(database.pick_route, soft)
    assert flip["log capacity"] == Flip(0.03, "hard")
    assert flip["relation"] == Flip(0.1, "hard")
    local, cls = BranchQuality(0.5, 0.5, 0.5, 0.50, 1.0), BranchQuality(0.5, 0.5, 0.5, 0.47, 1.0)
    token = GlobalEvidence(local, cls, 1.2, 0.9, 0.9, (0.1, 0.2, 0.3))
    assert find_flips(database.admit_target_token, token) == {"quality": Flip(pytest.approx(0.03), "used")}


def test_every_decision_that_rests_on_less_than_one_photo_is_listed():
    def flip(change, choice="partial"):
        return {"change": change, "choice": choice}

    assert list_close_decisions({"assignment": {"photos": flip(1.0)}, "carrier": {}}) == []
    rounded = {"photos": flip(3.0), "photos of agreement": flip(1 - 5e-14)}  # a difference of shares, times photos
    assert list_close_decisions({"carrier": rounded}) == []
    for unit in ("photos", "photos of agreement", "photos of both"):
        margins = {"route": {"relation": flip(0.0)}, "carrier": {"photos": flip(0.9, "original"), unit: flip(0.3)}}
        assert list_close_decisions(margins) == [("carrier", flip(0.3))]
    carrier = {"photos": flip(1 / 3)}
    older = {"assignment": {"agreement": flip(0.0, "soft"), "photos": flip(5 / 3, "soft")}, "carrier": carrier}
    assert list_close_decisions(older) == [("assignment", flip(0.0, "soft")), ("carrier", carrier["photos"])]
    older["assignment"]["agreement"] = flip(0.001, "soft")  # a share of unknown photos
    assert list_close_decisions(older) == [("carrier", carrier["photos"])]


def test_a_head_keeps_its_margins():
    head = fit(world(), HeadSpec(words=6))
    assert set(head.evidence.margins) == {"assignment", "admit_cls", "carrier"}
    own = head.evidence.candidates["hard/adaptive"], head.evidence.candidates["soft/adaptive"]
    photos = head.evidence.pseudo_queries
    assert head.evidence.margins["assignment"] == find_flips(pick_assignment, *own, photos=photos)
    target = calibrate(head, seen_again(world()).select(range(8)))
    assert set(target.evidence.margins) == {"route", "carrier", "admit_cls"}
    assert target.evidence.to_dict()["margins"]["route"].keys() <= {"relation", "log capacity"}
