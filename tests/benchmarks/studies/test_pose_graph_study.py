"""The script pose_graph.py: odometry, trajectory errors, and loops in a real pose graph."""

from __future__ import annotations

import json

import numpy as np
import pytest

from studies import pose_graph
from studies.pose_graph import add_steps, count_false, draw_picture, make_wrong, measure_ate, measure_steps, optimize

TURN = np.deg2rad(90)
FRAMES = 40  # two laps of a circle


@pytest.fixture(scope="module")
def circle():
    """Return states of two laps on a circle, (n, 3)."""
    angles = np.linspace(0, 4 * np.pi, FRAMES, endpoint=False)
    return np.column_stack([12 * np.cos(angles), 12 * np.sin(angles), angles + np.pi / 2])


def test_steps_are_in_the_frame_of_the_earlier_state():
    states = np.array([[1.0, 2.0, TURN], [1.0, 5.0, 2 * TURN], [0.0, 5.0, -2 * TURN]])
    steps = measure_steps(states)
    assert steps == pytest.approx(np.array([[3, 0, TURN], [1, 0, 0]]), abs=1e-12)  # a full turn is none
    assert add_steps(states[0], steps)[:, :2] == pytest.approx(states[:, :2], abs=1e-12)


def test_odometry_is_seeded_and_drifts(circle):
    noisy = measure_steps(circle, 3)
    assert (noisy == measure_steps(circle, 3)).all()
    assert (noisy != measure_steps(circle, 4)).any()
    end = add_steps(circle[0], noisy)[-1]
    assert np.linalg.norm(end - add_steps(circle[0], measure_steps(circle))[-1]) > 0.1


def test_error_is_the_root_mean_square_after_alignment():
    truth = np.array([[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 2.0]])
    turned = (truth @ np.array([[0.0, 1.0], [-1.0, 0.0]])) + (7, -3)
    assert measure_ate(turned, truth) == pytest.approx(0, abs=1e-12)
    # Twice as large: every corner is √2 from its place, since the scale is not aligned.
    assert measure_ate(2 * truth, truth) == pytest.approx(np.sqrt(2))
    # A mirror image is not a rotation.
    assert measure_ate(truth * (1, -1), np.array([[0, 0], [4, 0], [4, 1], [0, 2.0]])) > 1


def test_error_is_that_of_evo(circle):
    metrics = pytest.importorskip("evo.core.metrics")
    from evo.core.trajectory import PosePath3D

    def path(places):
        quaternions = np.tile([1.0, 0, 0, 0], (len(places), 1))
        return PosePath3D(np.column_stack([places, np.zeros(len(places))]), quaternions)

    truth, places = circle[:, :2], add_steps(circle[0], measure_steps(circle, 1))[:, :2]
    moved = path(places)
    moved.align(path(truth))
    error = metrics.APE(metrics.PoseRelation.translation_part)
    error.process_data((path(truth), moved))
    assert measure_ate(places, truth) == pytest.approx(error.get_statistic(metrics.StatisticsType.rmse), rel=1e-6)


def test_wrong_pairs_are_false_and_right_ones_are_not(circle):
    lap = FRAMES // 2
    assert count_false([(n, n + lap) for n in range(lap)], circle) == 0
    assert make_wrong(2, FRAMES) == [(5, 35), (6, 36)]
    assert count_false(make_wrong(2, FRAMES), circle) == 2


def test_laps_return_to_their_start():
    states = pose_graph.as_states(pose_graph.plan_laps())
    lap = len(states) // 2
    assert count_false([(n, n + lap) for n in range(lap)], states) == 0


def test_picture_has_both_trajectories(circle):
    before = add_steps(circle[0], measure_steps(circle, 0))
    picture = draw_picture(circle, before, circle)
    assert picture.count("<polyline") == 4
    assert f"odometry: error {measure_ate(before[:, :2], circle[:, :2]):.1f} m" in picture
    assert "with loops: error 0.0 m" in picture


def test_shows_a_stored_result(script, tmp_path):
    errors = [{"kernel": None, "wrong_edges": 0, "mean": 20.04, "worst": 25}]
    errors += [{"kernel": "gnc", "wrong_edges": count, "mean": 1, "worst": 2.5} for count in pose_graph.WRONG]
    (tmp_path / "graph.json").write_text(json.dumps({"errors": errors}), "utf-8")
    done = script(pose_graph.main, "--show", tmp_path / "graph.json")
    assert done.exit_code == 0, done.stderr
    assert "| odometry only | 20.0 (25.0) | – | – |" in done.stdout
    assert "| GNC | 1.0 (2.5) | 1.0 (2.5) | 1.0 (2.5) |" in done.stdout


def test_a_robust_kernel_survives_a_wrong_edge(circle):
    pytest.importorskip("gtsam")
    lap, steps = FRAMES // 2, measure_steps(circle, 0)
    pairs = [(n, n + lap) for n in range(lap)]

    def error(edges, kernel):
        return measure_ate(optimize(steps, circle[0], edges, kernel)[:, :2], circle[:, :2])

    odometry = measure_ate(add_steps(circle[0], steps)[:, :2], circle[:, :2])
    right = error(pairs, "none")
    assert right < odometry
    wrong = [*pairs, *make_wrong(1, FRAMES)]
    assert error(wrong, "none") > 2 * right
    assert error(wrong, "gnc") == pytest.approx(right, abs=0.05)
