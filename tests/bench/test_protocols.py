"""Protocols on hand-made heads: who calibrates, who is asked, and what the numbers come to."""

import json

import numpy as np
import pytest

from tests.core.worlds import seen_again, world
from tfa import pipeline
from tfa.bench.protocols import budget, conditions, cross_fit, full_query, no_calibration
from tfa.config import HeadSpec
from tfa.dual import fit_dual
from tfa.errors import BadSpec
from tfa.tokens import Tokens

PLACES = 12
NOWHERE = PLACES  # a database image that is right for no query


def queries_of(numbers, cls=True):
    """Queries that carry their own number: one patch of it, and maybe a global token of it."""
    numbers = np.asarray(numbers, np.float64)
    return Tokens(numbers[:, None, None], numbers[:, None] if cls else None)


def numbers_of(tokens):
    return [int(patch[0, 0]) for patch in tokens.patches]


class Told:
    def __init__(self, **values):
        self.values = values

    def to_dict(self):
        return self.values


class Oracle:
    """Right for queries with a last digit below `right` (less the replica's number); sends the others nowhere."""

    def __init__(self, right=12, calibrated_on=()):
        self.right, self.calibrated_on = right, list(calibrated_on)
        self.decisions = Told(seen=len(self.calibrated_on))

    def scores(self, tokens, replica=0):
        scores = np.zeros((len(tokens), PLACES + 1))
        scores[:, NOWHERE] = 1
        for row, number in enumerate(numbers_of(tokens)):
            skill = self.right if replica == "ensemble" else self.right - replica
            if number % 10 < skill:
                scores[row, number % PLACES] = 2
        return scores


class Spy:
    """Makes heads and notes what each was calibrated on and what it was asked."""

    def __init__(self, right=12):
        self.heads, self.asked, self.right = [], [], right

    def __call__(self, target):
        spy = self

        class Noted(Oracle):
            def scores(self, tokens, replica=0):
                spy.asked.append((tuple(self.calibrated_on), numbers_of(tokens)))
                return super().scores(tokens, replica)

        self.heads.append(Noted(self.right, numbers_of(target)))
        return self.heads[-1]


def right_answers(numbers):
    return [[number % PLACES] for number in numbers]


NUMBERS = list(range(20))
QUERIES, POSITIVES = queries_of(NUMBERS), right_answers(NUMBERS)


def test_a_budget_draws_by_seed_and_asks_the_complement():
    spy = Spy()
    result = budget(None, QUERIES, POSITIVES, 6, fit_target=spy)
    assert [split.seed for split in result.splits] == list(range(10))
    for split, head in zip(result.splits, spy.heads, strict=True):
        drawn = np.random.default_rng(split.seed).permutation(20)[:6].tolist()
        [fold] = split.folds
        assert head.calibrated_on == list(fold.calibration) == drawn
        assert list(fold.evaluated) == sorted(set(NUMBERS) - set(drawn))
        assert fold.decisions == {"seen": 6}
    assert {len(numbers) for _, numbers in spy.asked} == {14}
    assert all(not set(seen) & set(numbers) for seen, numbers in spy.asked)
    assert result.protocol == "C6"
    assert result.saw == "target"


def test_mean_over_replicas_then_mean_and_sample_deviation_over_splits():
    # Replica r is right for numbers with a last digit below 5 − r.
    result = budget(None, QUERIES, POSITIVES, 6, splits=4, ks=(1, 2), fit_target=lambda target: Oracle(5))
    means = []
    for seed in range(4):
        rest = set(NUMBERS) - set(np.random.default_rng(seed).permutation(20)[:6].tolist())
        replicas = [sum(number % 10 < 5 - r for number in rest) / 14 for r in range(3)]
        means.append(sum(replicas) / 3)
        assert result.splits[seed].recalls["2"][0] == pytest.approx(replicas[2])
        assert result.splits[seed].mean[0] == pytest.approx(means[-1])
    assert len(set(means)) > 1
    assert result.mean[0] == pytest.approx(sum(means) / 4)
    by_hand = (sum((value - sum(means) / 4) ** 2 for value in means) / 3) ** 0.5
    assert result.sd[0] == pytest.approx(by_hand)
    alone = budget(None, QUERIES, POSITIVES, 6, splits=1, fit_target=lambda target: Oracle(5))
    assert alone.sd == (0.0, 0.0, 0.0)


def test_the_ensemble_is_one_value_instead_of_three():
    result = budget(None, QUERIES, POSITIVES, 6, splits=2, ensemble=True, fit_target=lambda target: Oracle(5))
    assert set(result.splits[0].recalls) == {"ensemble"}
    assert result.protocol == "C6 ensemble"
    assert set(no_calibration(Oracle(), QUERIES, POSITIVES).splits[0].recalls) == {"0", "1", "2"}


@pytest.mark.parametrize(
    ("halves", "one", "other"),
    [
        ("even-odd", [0, 2, 4, 6], [1, 3, 5]),
        ("contiguous", [0, 1, 2, 3], [4, 5, 6]),
    ],
)
def test_cross_fit_uses_the_opposite_half_alone(halves, one, other):
    numbers = list(range(7))
    spy = Spy()
    result = cross_fit(None, queries_of(numbers), right_answers(numbers), halves=halves, fit_target=spy)
    assert [head.calibrated_on for head in spy.heads] == [other, one]
    assert {(seen, tuple(asked)) for seen, asked in spy.asked} == {
        (tuple(other), tuple(one)),
        (tuple(one), tuple(other)),
    }
    [split] = result.splits
    assert [(list(f.calibration), list(f.evaluated)) for f in split.folds] == [(other, one), (one, other)]
    assert result.mean == (1.0, 1.0, 1.0)


def test_cross_fit_pools_queries_not_halves():
    numbers = list(range(7))
    # The head asked the first half (of four) is never right, the other (of three) always.
    heads = iter([Oracle(0), Oracle(12)])
    result = cross_fit(
        None, queries_of(numbers), right_answers(numbers), halves="contiguous", fit_target=lambda target: next(heads)
    )
    assert result.mean[0] == pytest.approx(3 / 7)


def test_full_query_calibrates_on_what_it_asks():
    spy = Spy()
    result = full_query(None, QUERIES, POSITIVES, fit_target=spy)
    assert [head.calibrated_on for head in spy.heads] == [NUMBERS]
    assert list(result.splits[0].folds[0].evaluated) == NUMBERS
    assert result.mean[0] == 1


def test_no_calibration_asks_the_head_as_it_is():
    result = no_calibration(Oracle(5), QUERIES, POSITIVES)
    [fold] = result.splits[0].folds
    assert fold.calibration == ()
    assert result.saw == "database"
    assert result.splits[0].recalls["0"][0] == pytest.approx(10 / 20)


def test_a_constant_scorer_earns_no_recall():
    class Constant:
        def scores(self, tokens, replica=0):
            return np.full((len(tokens), PLACES), 0.5)

    everywhere = [list(range(PLACES))] * 20
    assert no_calibration(Constant(), QUERIES, everywhere).mean == (0.0, 0.0, 0.0)
    assert budget(None, QUERIES, everywhere, 4, fit_target=lambda target: Constant()).mean == (0.0, 0.0, 0.0)


def test_a_query_without_a_right_answer_is_a_miss():
    assert no_calibration(Oracle(), QUERIES, [[]] * 10 + POSITIVES[10:], ks=(1,)).mean[0] == pytest.approx(0.5)


def day_and_night(cls=True):
    day, night = list(range(12)), [100, 101, 102, 103]
    return {
        "day": (queries_of(day, cls), right_answers(day)),
        "night": (queries_of(night, cls), right_answers(night)),
    }


@pytest.mark.parametrize("cls", [True, False])
def test_a_shared_budget_is_drawn_over_all_conditions(cls):
    spy = Spy(right=3)
    result = conditions(None, day_and_night(cls), 4, splits=3, ks=(1,), fit_target=spy)
    numbers = [*range(12), 100, 101, 102, 103]
    assert len(spy.heads) == 3
    for split, head in zip(result.splits, spy.heads, strict=True):
        drawn = np.random.default_rng(split.seed).permutation(16)[:4]
        assert head.calibrated_on == [numbers[i] for i in drawn]
        assert list(split.folds[0].calibration) == drawn.tolist()
        asked = {number for seen, given in spy.asked if seen == tuple(head.calibrated_on) for number in given}
        assert asked == set(numbers) - set(head.calibrated_on)


def test_conditions_weigh_the_same_whatever_their_size():
    result = conditions(None, day_and_night(), 3, splits=4, ks=(1,), fit_target=lambda target: Oracle(4))
    for split in result.splits:
        day, night = (np.mean(list(split.conditions[name].values())) for name in ("day", "night"))
        assert split.mean[0] == pytest.approx((day + night) / 2)
    means = [split.mean[0] for split in result.splits]
    assert result.sd[0] == pytest.approx(np.std(means, ddof=1))
    told = result.conditions
    assert result.mean[0] == pytest.approx((told["day"]["mean"][0] + told["night"]["mean"][0]) / 2)


def test_conditions_with_budgets_of_their_own():
    spy = Spy()
    result = conditions(None, day_and_night(), 2, shared=False, splits=2, fit_target=spy)
    assert [head.calibrated_on for head in spy.heads[:2]] == [
        np.random.default_rng(0).permutation(12)[:2].tolist(),
        (100 + np.random.default_rng(0).permutation(4)[:2]).tolist(),
    ]
    assert [fold.condition for fold in result.splits[1].folds] == ["day", "night"]
    asked = dict(spy.asked)
    assert all(max(given) < 100 for seen, given in asked.items() if max(seen) < 100)
    assert all(min(given) >= 100 for seen, given in asked.items() if min(seen) >= 100)


def test_what_is_not_allowed_is_said():
    spy = Spy()
    with pytest.raises(BadSpec, match="20 of 20 queries"):
        budget(None, QUERIES, POSITIVES, 20, fit_target=spy)
    with pytest.raises(BadSpec, match="budget of 0"):
        budget(None, QUERIES, POSITIVES, 0, fit_target=spy)
    with pytest.raises(BadSpec, match="19 lists of positives for 20 queries"):
        budget(None, QUERIES, POSITIVES[:-1], 4, fit_target=spy)
    with pytest.raises(BadSpec, match="splits=0"):
        budget(None, QUERIES, POSITIVES, 4, splits=0, fit_target=spy)
    with pytest.raises(BadSpec, match="ks="):
        full_query(None, QUERIES, POSITIVES, ks=(0,), fit_target=spy)
    with pytest.raises(BadSpec, match="'thirds' is unknown"):
        cross_fit(None, QUERIES, POSITIVES, halves="thirds", fit_target=spy)
    with pytest.raises(BadSpec, match="no two halves"):
        cross_fit(None, queries_of([3]), [[3]], fit_target=spy)
    with pytest.raises(BadSpec, match="no condition"):
        conditions(None, {}, 4, fit_target=spy)
    with pytest.raises(BadSpec, match="4 of 4 queries of 'night'"):
        conditions(None, day_and_night(), 4, shared=False, fit_target=spy)
    with pytest.raises(BadSpec, match="takes all 4 queries of 'night' in split"):
        conditions(None, day_and_night(), 14, fit_target=spy)
    mixed = {"day": day_and_night()["day"], "night": day_and_night(cls=False)["night"]}
    with pytest.raises(BadSpec, match="some have none"):
        conditions(None, mixed, 4, fit_target=spy)


def test_results_are_plain_json():
    result = conditions(None, day_and_night(), 3, splits=2, fit_target=Spy())
    told = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert told["mean"] == list(result.mean)
    assert told["splits"][1]["folds"][0]["calibration"] == list(result.splits[1].folds[0].calibration)
    assert set(told["conditions"]) == set(told["splits"][0]["conditions"]) == {"day", "night"}


@pytest.mark.parametrize("score", [False, True])
def test_a_head_is_calibrated_by_the_pipeline(monkeypatch, score):
    calls = []
    monkeypatch.setattr(
        pipeline, "calibrate", lambda head, target, **given: calls.append((head, len(target), given)) or head
    )
    head = Oracle()
    result = budget(head, QUERIES, POSITIVES, 6, splits=2, score=score)
    assert calls == [(head, 6, {"score": score})] * 2
    assert result.protocol == ("C6+" if score else "C6")


@pytest.mark.parametrize("score", [False, True])
def test_a_dual_head_calibrates_itself(score):
    database = world(16, seed=2)
    queries, positives = seen_again(database, 5), [[i] for i in range(16)]
    dual = fit_dual(database, source_words=4, words=6, spec=HeadSpec())
    result = budget(dual, queries, positives, 8, splits=2, score=score)
    wanted = {"calibration": "robust" if score else "log mean exp", "calibration_images": 8}
    assert {**result.splits[0].folds[0].decisions, **wanted} == result.splits[0].folds[0].decisions
    fold = result.splits[1].folds[0]
    by_hand = dual.calibrate(queries.select(list(fold.calibration)), robust=score)
    ranked, _ = by_hand.search(queries.select(list(fold.evaluated)), 1, 2)
    right = np.mean([row[0] == query for row, query in zip(ranked, fold.evaluated, strict=True)])
    assert result.splits[1].recalls["2"][0] == pytest.approx(right)
