"""Moves by order and by position against their plain formulas; which of the two a map gets."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfa.errors import BadSpec
from tfa.online.sequence_filter import (
    _MAX_NEIGHBORS,
    MAX_STEPS_PER_FRAME,
    MIN_SHARE,
    PACES,
    SPEEDS,
    OrderMotion,
    PositionMotion,
    choose_motion,
    estimate_step,
    is_drive,
    project_to_meters,
)


def plain_moves(distances, pace):
    """Shares `m m` of moves by pace, as they are written down; `distances` of each pair, signed or not."""
    breadth = max(0.5, abs(pace) / 4)
    moves = np.zeros(distances.shape)
    for i, row in enumerate(distances):
        for j, distance in enumerate(row):
            if abs(distance) <= MAX_STEPS_PER_FRAME:
                moves[i, j] = math.exp(-max(abs(distance - pace) / breadth - 1, 0))
    return moves


def test_the_paces_are_as_written_down():
    assert sorted(PACES) == [-8, -5, -3, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 5, 8]


@pytest.mark.parametrize("images", [2, 9, 40, 100])
def test_moves_in_order_equal_the_plain_formula(images):
    believed = np.random.default_rng(images).random((len(PACES), images))
    index = np.arange(images)
    motion = OrderMotion(images, 2.0)
    for own, moved, pace in zip(believed, motion.moved(believed), PACES, strict=True):
        moves = plain_moves(index[None, :] - index[:, None], pace)
        np.testing.assert_allclose(moved, own @ (moves / moves.sum(axis=1, keepdims=True)), rtol=1e-9, atol=1e-14)
    around = [believed[0, max(i - 2, 0) : i + 3].sum() for i in range(images)]
    np.testing.assert_allclose(motion.around(believed[0]), around)


@given(st.integers(0, 10**6), st.sampled_from([2, 5, 40]), st.sampled_from([0.0, 0.5, 30.0]))
def test_moves_by_position_equal_the_plain_formula(seed, images, grid):
    generator = np.random.default_rng(seed)
    places = generator.normal(0, 20, (images, 2))
    places = np.round(places / grid) * grid if grid else places
    distances = np.linalg.norm(places[:, None] - places[None], axis=-1) / estimate_step(places)
    believed = generator.random((len(SPEEDS), images))
    motion = PositionMotion(places, 2.0)
    moved = motion.moved(believed)
    np.testing.assert_allclose(moved.sum(axis=1), believed.sum(axis=1))
    for own, after, speed in zip(believed, moved, SPEEDS, strict=True):
        moves = plain_moves(distances, speed)
        moves[moves < MIN_SHARE * moves.max(axis=1, keepdims=True)] = 0
        np.testing.assert_allclose(after, own @ (moves / moves.sum(axis=1, keepdims=True)), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(motion.around(believed[0]), (distances <= 2.0) @ believed[0])


def test_of_many_images_at_one_place_only_so_many_are_neighbours():
    motion = PositionMotion(np.zeros((_MAX_NEIGHBORS + 30, 2)), 1.0)
    reached = motion.moved(np.eye(1, _MAX_NEIGHBORS + 30).repeat(len(SPEEDS), axis=0))
    assert ((reached > 0).sum(axis=1) == _MAX_NEIGHBORS).all()


def test_a_drive_moves_by_order_and_other_maps_by_position():
    line = np.column_stack([np.arange(40.0), np.zeros(40)])
    shuffled = np.random.default_rng(0).permutation(line)
    assert is_drive(line)
    assert not is_drive(shuffled)
    assert isinstance(choose_motion(40, line, 2.0), OrderMotion)
    assert isinstance(choose_motion(40, None, 2.0), OrderMotion)
    assert isinstance(choose_motion(40, shuffled, 2.0), PositionMotion)
    assert estimate_step(shuffled) == 1.0  # whatever the order
    assert estimate_step(np.zeros((5, 2))) == 1.0
    gap = line + np.where(np.arange(40) >= 20, 500.0, 0.0)[:, None]
    assert is_drive(gap)


def test_degrees_become_metres():
    plane = project_to_meters(np.array([52.0, 52.001]), np.array([13.0, 13.001]))
    east, north = plane[1] - plane[0]
    assert north == pytest.approx(111.19, abs=0.1)
    assert east == pytest.approx(111.19 * math.cos(math.radians(52.0005)), abs=0.1)


def test_a_map_of_one_image_has_no_sequence():
    for made in (lambda: OrderMotion(1, 2.0), lambda: PositionMotion(np.zeros((1, 2)), 2.0)):
        with pytest.raises(BadSpec, match="at least 2"):
            made()


@pytest.mark.parametrize("kind", ["order", "position"])
def test_moving_back_is_the_transpose_of_moving(kind):
    rng = np.random.default_rng(5)
    motion = OrderMotion(45, 2.0) if kind == "order" else PositionMotion(rng.normal(0, 20, (45, 2)), 2.0)
    before, after = rng.random((2, motion.paces, 45))
    forward, backward = (motion.moved(before) * after).sum(), (before * motion.move_back(after)).sum()
    assert forward == pytest.approx(backward, rel=1e-12)


def test_direct_neighbors_are_one_image_or_one_usual_step_away():
    places = np.random.default_rng(6).random(20)
    by_hand = [places[max(i - 1, 0) : i + 2].sum() for i in range(20)]
    np.testing.assert_allclose(OrderMotion(20, 2.0).beside(places), by_hand)
    line = np.stack([np.arange(20.0), np.zeros(20)], axis=1)  # the usual step is 1, to the second nearest
    np.testing.assert_allclose(PositionMotion(line, 2.0).beside(places), by_hand)
