"""Plans: which queries calibrate and which are evaluated, by hand."""

import numpy as np
import pytest

from tfa.errors import BadSpec
from tfa_bench.protocols import FULL_QUERY, NO_CALIBRATION, ONLINE, ONLINE_SHUFFLED, Plan, budget, cross_fit

CONDITIONS = {"day": np.arange(12), "night": np.arange(12, 16)}


def lists(split):
    return [(fold.calibration.tolist(), fold.evaluated.tolist()) for fold in split.folds]


def test_a_budget_draws_by_seed_and_evaluates_the_complement():
    splits = budget(6).splits(20)
    assert [split.seed for split in splits] == list(range(10))
    for split in splits:
        drawn = np.random.default_rng(split.seed).permutation(20)[:6].tolist()
        assert lists(split) == [(drawn, sorted(set(range(20)) - set(drawn)))]
    assert len({tuple(split.folds[0].calibration) for split in splits}) == 10


@pytest.mark.parametrize(
    ("halves", "one", "other"), [("even-odd", [0, 2, 4, 6], [1, 3, 5]), ("contiguous", [0, 1, 2, 3], [4, 5, 6])]
)
def test_cross_fit_evaluates_each_half_with_the_other(halves, one, other):
    [split] = cross_fit(halves).splits(7)
    assert split.seed is None
    assert lists(split) == [(other, one), (one, other)]
    assert sorted(split.evaluated) == list(range(7))


def test_full_query_calibrates_on_what_it_evaluates():
    [split] = FULL_QUERY.splits(5)
    assert lists(split) == [(list(range(5)), list(range(5)))]


def test_without_calibration_all_queries_are_evaluated():
    [split] = NO_CALIBRATION.splits(5, CONDITIONS)
    assert lists(split) == [([], list(range(5)))]
    assert not NO_CALIBRATION.calibrates
    assert budget(4).calibrates


def test_online_all_queries_are_evaluated_in_order_and_none_is_given_before():
    [split] = ONLINE.splits(16, CONDITIONS)
    assert lists(split) == [([], list(range(16)))]
    assert split.seed is None
    [shuffled] = ONLINE_SHUFFLED.splits(16)
    assert lists(shuffled) == [([], np.random.default_rng(0).permutation(16).tolist())]
    assert shuffled.seed == 0
    assert [(plan.calibrates, plan.sees_target) for plan in (ONLINE, NO_CALIBRATION, FULL_QUERY)] == [
        (False, True),
        (False, False),
        (True, True),
    ]
    assert ONLINE.to_dict() == {"kind": "online", "name": "online"}
    assert ONLINE_SHUFFLED.to_dict() == {"kind": "online", "name": "online, shuffled"}


def test_a_shared_budget_is_drawn_over_all_conditions():
    for split in budget(4, splits=3).splits(16, CONDITIONS):
        [fold] = split.folds
        assert fold.calibration.tolist() == np.random.default_rng(split.seed).permutation(16)[:4].tolist()
        assert fold.condition is None


def test_conditions_with_budgets_of_their_own():
    split = budget(2, splits=2, specific=True).splits(16, CONDITIONS)[1]
    assert [fold.condition for fold in split.folds] == ["day", "night"]
    day, night = split.folds
    assert day.calibration.tolist() == np.random.default_rng(1).permutation(12)[:2].tolist()
    assert night.calibration.tolist() == (12 + np.random.default_rng(1).permutation(4)[:2]).tolist()
    assert sorted([*night.calibration, *night.evaluated]) == [12, 13, 14, 15]


def test_a_plan_of_its_own_budgets_without_conditions_is_the_shared_one():
    assert lists(budget(3, specific=True).splits(9)[0]) == lists(budget(3).splits(9)[0])


def test_names_and_what_a_record_keeps():
    assert [plan.name for plan in (NO_CALIBRATION, FULL_QUERY, budget(64), cross_fit())] == [
        "no calibration",
        "FullQ",
        "C64",
        "cross-fit even-odd",
    ]
    assert budget(64, splits=3).to_dict() == {"kind": "budget", "name": "C64", "n": 64, "splits": 3}
    assert cross_fit("contiguous").to_dict()["halves"] == "contiguous"
    assert budget(8, specific=True).to_dict()["specific"] is True


def test_what_is_not_allowed_is_said():
    with pytest.raises(BadSpec, match="20 of 20 queries"):
        budget(20).splits(20)
    with pytest.raises(BadSpec, match="budget of 0"):
        budget(0).splits(20)
    with pytest.raises(BadSpec, match="splits=0"):
        budget(4, splits=0)
    with pytest.raises(BadSpec, match="'thirds' is unknown"):
        cross_fit("thirds")
    with pytest.raises(BadSpec, match="cannot be split in halves"):
        cross_fit().splits(1)
    with pytest.raises(BadSpec, match="4 of 4 queries of 'night'"):
        budget(4, specific=True).splits(16, CONDITIONS)
    with pytest.raises(BadSpec, match="no queries"):
        Plan(kind="none").splits(0)
