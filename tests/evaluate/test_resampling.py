"""Bootstrap intervals and paired differences."""

from __future__ import annotations

import numpy as np
import pytest

from tfa.errors import BadSpec
from tfa.evaluate import metrics
from tfa.evaluate.metrics import interval, paired_difference


def coin(n: int, chance: float, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random(n) < chance).astype(float)


def test_the_interval_of_a_coin_usually_holds_its_chance():
    held = 0
    for seed in range(100):
        found = interval(coin(200, 0.7, seed))
        held += found.low <= 0.7 <= found.high
    assert 88 <= held <= 100


def test_the_width_is_that_of_the_binomial():
    found = interval(coin(1000, 0.5))
    assert found.high - found.low == pytest.approx(2 * 1.96 * np.sqrt(0.25 / 1000), rel=0.1)
    assert found.low < found.mean < found.high


def test_draws_are_always_the_same():
    values = coin(50, 0.4)
    assert interval(values) == interval(values)


def test_blocks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch):
    values = coin(33, 0.4)
    whole = interval(values)
    monkeypatch.setattr(metrics, "BLOCK", 100)
    assert interval(values) == whole


def test_a_mean_without_spread_has_no_width():
    found = interval(np.ones(7))
    assert (found.mean, found.low, found.high) == (1, 1, 1)


def test_queries_not_evaluated_do_not_count():
    values = coin(40, 0.5)
    with_gaps = np.full(80, np.nan)
    with_gaps[::2] = values
    assert interval(with_gaps) == interval(values)


def test_conditions_weigh_the_same_whatever_their_size():
    values = np.concatenate([np.ones(90), np.zeros(10)])
    strata = [np.arange(90), np.arange(90, 100)]
    found = interval(values, strata)
    # Each condition is constant, so drawing within it changes nothing; drawing over all would.
    assert (found.mean, found.low, found.high) == (0.5, 0.5, 0.5)
    assert interval(values).mean == 0.9
    assert interval(values).low < 0.9


def test_a_condition_without_evaluated_queries_is_left_out():
    values = np.array([1.0, 0.0, np.nan])
    assert interval(values, [np.array([0, 1]), np.array([2])]).mean == 0.5


def test_identical_heads_do_not_differ():
    values = coin(60, 0.5)
    found = paired_difference(values, values)
    assert (found.mean, found.low, found.high, found.above, found.queries) == (0, 0, 0, 0, 60)


def test_a_better_head_is_above_0_in_every_resample():
    worse = coin(300, 0.4)
    better = np.maximum(worse, coin(300, 0.3, seed=1))
    found = paired_difference(better, worse)
    assert found.low > 0
    assert found.above == 1
    turned = paired_difference(worse, better)
    assert (turned.mean, turned.above) == (-found.mean, 0)


def test_pairs_are_narrower_than_separate_heads():
    worse = coin(400, 0.5)
    better = worse.copy()
    better[:8] = 1
    pair, alone = paired_difference(better, worse), interval(better)
    assert pair.high - pair.low < (alone.high - alone.low) / 3


def test_only_common_queries_are_compared():
    one, other = np.array([1.0, 1.0, np.nan, 0.0]), np.array([0.0, np.nan, 1.0, 0.0])
    found = paired_difference(one, other)
    assert (found.mean, found.queries) == (0.5, 2)


def test_paired_differences_are_averaged_over_conditions():
    one, other = np.array([1.0, 1.0, 1.0, 0.0]), np.zeros(4)
    assert paired_difference(one, other, [np.arange(3), np.array([3])]).mean == 0.5


def test_heads_without_a_common_query_cannot_be_compared():
    with pytest.raises(BadSpec, match="nothing to resample"):
        paired_difference(np.array([1.0, np.nan]), np.array([np.nan, 1.0]))
    with pytest.raises(BadSpec, match="2 and 3 queries"):
        paired_difference(np.zeros(2), np.zeros(3))
