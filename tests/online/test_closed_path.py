"""Paths closed by loops: drift is corrected, and a wrong loop does not bend the path."""

import numpy as np
import pytest

from tfa.online.closed_path import close_path

LAP = 120


def drive(seed=0, laps=2):
    """Return the true path of laps around a block, one with a drifting heading, and the pairs of the second lap."""
    rng = np.random.default_rng(seed)
    headings = np.tile(np.repeat([0, np.pi / 2, np.pi, -np.pi / 2], LAP // 4), laps)
    drift = np.cumsum(0.002 + 0.006 * rng.normal(size=len(headings)))
    paths = [np.cumsum(4 * np.column_stack([np.cos(one), np.sin(one)]), axis=0) for one in (headings, headings + drift)]
    return *paths, [(LAP + frame, frame) for frame in range(10, LAP)]


def measure_error(path, true):
    """Return the RMSE after the best rotation and shift."""
    path, true = path - path.mean(axis=0), true - true.mean(axis=0)
    left, _, right = np.linalg.svd(path.T @ true)
    return float(np.sqrt(((path @ (left @ right) - true) ** 2).sum(axis=1).mean()))


@pytest.mark.parametrize("wrong", [0, 1, 10])
def test_loops_correct_the_drift_and_wrong_ones_do_not_count(wrong):
    true, path, pairs = drive()
    closed = close_path(path, [*pairs, *((LAP + 60 - one, 90 - one) for one in range(wrong))])
    assert measure_error(path, true) > 5
    assert measure_error(closed, true) < 1.5


def test_a_long_drive_is_sampled():
    true, path, pairs = drive(laps=4)
    closed = close_path(path, pairs + [(3 * LAP + frame, frame) for frame in range(LAP)])
    assert closed.shape == path.shape
    assert measure_error(closed, true) < measure_error(path, true) / 4


def test_a_path_without_loops_or_without_motion_stays():
    _, path, pairs = drive()
    assert close_path(path, []) is path
    np.testing.assert_allclose(close_path(np.zeros_like(path), pairs), 0, atol=1e-9)
    consistent = np.concatenate([path[:LAP], path[:LAP]])
    np.testing.assert_allclose(close_path(consistent, pairs), consistent, atol=1e-6)
