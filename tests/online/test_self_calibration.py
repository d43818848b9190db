"""The reservoir, the bias it gives, columns that come and go, and its file."""

import numpy as np
import pytest

from tfa.base.files import BadFile, write_tensors
from tfa.errors import BadSpec
from tfa.method.score_calibration import usual_scores
from tfa.online.self_calibration import FEWEST, SelfCalibration


def scores(queries=40, images=12, seed=0):
    return np.random.default_rng(seed).normal(0.3, 0.1, (queries, images)).astype(np.float32)


def test_the_bias_is_the_usual_scores_of_all_queries_while_they_fit():
    rows, made = scores(), SelfCalibration(64)
    made.observe(rows[:10])
    assert made.bias() is None
    made.observe(rows[10:])
    sigma = np.median(rows.std(axis=1))
    level = sigma * usual_scores(rows / sigma)
    np.testing.assert_allclose(made.bias(), level.mean() - level, atol=1e-6)
    assert made.bias().mean() == pytest.approx(0, abs=1e-9)
    assert (made.seen, made.kept) == (40, 40)


def test_a_hub_loses_its_level_and_a_place_that_was_shown_once_does_not():
    rows = scores(60)
    rows[:, 4] += 0.5  # returned for every query
    rows[7, 2] += 3.0  # one query shows it
    made = SelfCalibration(64)
    made.observe(rows)
    bias = made.bias()
    assert bias.argmin() == 4
    assert bias[4] < bias[0] - 0.4
    assert abs(bias[2] - np.median(bias)) < 0.1


def test_how_queries_are_grouped_does_not_matter_and_the_seed_does():
    rows = scores(200)
    made = [SelfCalibration(32, seed) for seed in (1, 1, 2)]
    made[0].observe(rows)
    for row in rows:
        made[1].observe(row)
    made[2].observe(rows)
    assert np.array_equal(made[0].bias(), made[1].bias())
    assert not np.array_equal(made[0].bias(), made[2].bias())
    assert (made[0].kept, made[0].seen) == (32, 200)


def test_every_query_is_as_likely_to_be_kept():
    rows = np.tile(np.arange(100.0, dtype=np.float32)[:, None], (1, 2))
    kept = np.zeros(100)
    for seed in range(60):
        made = SelfCalibration(FEWEST, seed)
        made.observe(rows)
        kept[made._rows[:, 0].astype(int)] += 1
    first, last = kept[:50].sum(), kept[50:].sum()
    assert first + last == 60 * FEWEST
    # 960 draws, half expected in each half: five standard deviations of a binomial.
    assert abs(first - last) < 2 * 5 * np.sqrt(960 * 0.25)


def test_images_that_come_and_go_keep_the_columns_right():
    rows, made = scores(40, 5), SelfCalibration(64)
    rows[:, 3] += 1.0
    made.observe(rows, [10, 11, 12, 13, 14])
    before = made.bias()
    made.set_images([13, 10, 99])
    after = made.bias()
    assert after.shape == (3,)
    assert after[2] == 0  # unknown: the mean level
    assert after[1] - after[0] == pytest.approx(before[0] - before[3], rel=0.2)
    more = np.column_stack([scores(20, 2, seed=1) + np.array([1.0, 0.0]), np.full(20, 2.0)])
    made.observe(more, [13, 10, 99])
    assert made.bias()[2] < made.bias()[0]  # known by now, and the highest
    made.observe(scores(3, 2), [10, 99])
    assert made.bias().shape == (2,)
    with pytest.raises(BadSpec, match="3 ids for scores of 2"):
        made.observe(scores(1, 2), [1, 2, 3])


def test_it_survives_the_disk_and_goes_on_alike(tmp_path):
    rows, made = scores(120), SelfCalibration(32, 5)
    made.observe(rows[:90], np.arange(12) + 100)
    made.save(tmp_path / "new" / "self.safetensors")
    again = SelfCalibration.load(tmp_path / "new" / "self.safetensors")
    assert again.to_dict() == made.to_dict()
    assert np.array_equal(again.bias(), made.bias())
    for one in (made, again):
        one.observe(rows[90:], np.arange(12) + 100)
    assert np.array_equal(again.bias(), made.bias())
    again.reset()
    assert again.bias() is None
    assert again.to_dict() == {
        "size": 32, "seed": 5, "seen": 0, "kept": 0, "images": 0, "ready": False, "needed": FEWEST, "bias_spread": None,
    }  # fmt: skip
    again.save(tmp_path / "empty.safetensors")
    assert SelfCalibration.load(tmp_path / "empty.safetensors").kept == 0


def test_a_file_that_is_no_self_calibration_is_refused(tmp_path):
    write_tensors(tmp_path / "other.safetensors", {"rows": np.zeros((1, 2))})
    with pytest.raises(BadFile, match="not a self-calibration"):
        SelfCalibration.load(tmp_path / "other.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(b"\x40\x00")
    with pytest.raises(BadFile, match="not a whole"):
        SelfCalibration.load(tmp_path / "cut.safetensors")


def test_flat_scores_and_broken_rows_teach_nothing():
    made = SelfCalibration(FEWEST)
    made.observe(np.full((FEWEST, 3), 0.5))
    np.testing.assert_allclose(made.bias(), 0, atol=1e-9)
    made.observe(np.array([[np.nan, 1, 2]]))
    assert made.seen == FEWEST
    with pytest.raises(BadSpec, match="size=3"):
        SelfCalibration(3)
