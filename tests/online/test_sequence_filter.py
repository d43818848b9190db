"""The temporal filter against its plain formulas, and what it does for a camera that errs, jumps or leaves."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfa.errors import BadSpec
from tfa.online.sequence_filter import (
    FARTHEST,
    MOST_NEIGHBOURS,
    SequenceFilter,
    SequenceSpec,
    log_likelihood,
    metres,
    roads_by_index,
    roads_by_position,
)


def plain_filter(scores, distances, spec):
    """The model as it is written down: loops, one number at a time. `distances` `m m` are in steps."""
    images = len(distances)
    moves = [[0.0] * images for _ in range(images)]
    for i in range(images):
        for j in range(images):
            if distances[i][j] <= 5 * spec.reach:
                moves[i][j] = math.exp(-max(distances[i][j] / spec.reach - 1, 0))
        total = sum(moves[i])
        moves[i] = [share / total for share in moves[i]]
    mu = math.sqrt(2 * math.log(images))
    places, lost, told = [spec.being_found / images] * images, 1 - spec.being_found, []
    for frame, row in enumerate(scores):
        if frame:
            found = lost * spec.being_found / images
            came = [(1 - spec.getting_lost) * sum(places[i] * moves[i][j] for i in range(images)) + found
                    for j in range(images)]  # fmt: skip
            lost = spec.getting_lost * sum(places) + (1 - spec.being_found) * lost
            places = came
        mean, spread = np.mean(row), np.std(row)
        seen = [math.exp(spec.trust * (mu * (s - mean) / spread - mu**2 / 2)) for s in row]
        places = [p * e for p, e in zip(places, seen, strict=True)]
        total = sum(places) + lost
        places, lost = [p / total for p in places], lost / total
        told.append((places, lost))
    return told


@pytest.mark.parametrize("reach", [0.5, 2.0, 3.3])
def test_the_filter_equals_the_plain_formulas_by_index(reach):
    spec = SequenceSpec(reach=reach, getting_lost=0.05, being_found=0.3, trust=0.7)
    scores = np.random.default_rng(0).normal(size=(12, 30))
    index = np.arange(30)
    plain = plain_filter(scores, np.abs(index[:, None] - index), spec)
    for belief, (places, lost) in zip(
        map(SequenceFilter(roads_by_index(30, spec), spec).update, scores), plain, strict=True
    ):
        np.testing.assert_allclose(belief.places, places, rtol=1e-9)
        assert belief.lost == pytest.approx(lost, rel=1e-9)


def test_the_filter_equals_the_plain_formulas_by_position():
    rng, spec = np.random.default_rng(1), SequenceSpec()
    places = np.cumsum(rng.normal(3, 1, (40, 2)), axis=0)
    places[20:] += 500  # a second street
    places[7] = places[6]
    scores = rng.normal(size=(8, 40))
    steps = np.linalg.norm(np.diff(places, axis=0), axis=1)
    distances = np.linalg.norm(places[:, None] - places[None], axis=-1) / np.median(steps[steps > 0])
    plain = plain_filter(scores, distances, spec)
    roads = roads_by_position(places, spec)
    for belief, (expected, lost) in zip(map(SequenceFilter(roads, spec).update, scores), plain, strict=True):
        np.testing.assert_allclose(belief.places, expected, rtol=1e-9)
        assert belief.lost == pytest.approx(lost, rel=1e-9)


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 50), st.integers(0, 1000))
def test_a_belief_is_a_probability(images, seed):
    scores = np.random.default_rng(seed).normal(size=(6, images)) * 10.0 ** np.arange(-3, 3)[:, None]
    for belief in map(SequenceFilter(roads_by_index(images)).update, scores):
        assert belief.places.sum() + belief.lost == pytest.approx(1)
        assert (belief.places >= 0).all()
        assert belief.places[belief.best] <= belief.confidence + 1e-12 <= 1 + 1e-9


def drive(images=60, frames=40, errs=(), start=5, seed=0):
    """Scores of a camera that moves an image a frame; at `errs` another image is the highest."""
    scores = np.random.default_rng(seed).normal(size=(frames, images))
    for frame in range(frames):
        scores[frame, start + frame] += 6
    for frame in errs:
        scores[frame, start + frame] -= 3
        scores[frame, (start + frame + 30) % images] += 7
    return scores


def test_single_frames_that_err_are_overruled():
    scores, errs = drive(errs=(10, 17, 23)), (10, 17, 23)
    assert sum(scores[frame].argmax() == frame + 5 for frame in errs) == 0
    found = list(map(SequenceFilter(roads_by_index(60)).update, scores))
    assert all(abs(belief.best - frame - 5) <= 1 for frame, belief in enumerate(found))
    assert np.mean([belief.best == frame + 5 for frame, belief in enumerate(found)]) > 0.85
    assert found[9].confidence > 0.9


def test_a_camera_that_leaves_the_map_is_lost_and_is_found_again():
    scores = drive(frames=40)
    scores[15:25] = np.random.default_rng(3).normal(size=(10, 60))
    found = list(map(SequenceFilter(roads_by_index(60)).update, scores))
    assert found[13].lost < 0.05
    assert found[24].lost > 0.5
    assert found[26].best == 31
    assert found[27].lost < 0.1


def test_a_camera_that_is_carried_off_is_followed():
    scores = np.concatenate([drive(frames=15), drive(frames=10, start=45)])
    found = list(map(SequenceFilter(roads_by_index(60)).update, scores))
    assert [belief.best for belief in found[17:]] == list(range(47, 55))


def test_the_first_frame_is_answered_as_a_single_one():
    scores = drive()
    assert next(map(SequenceFilter(roads_by_index(60)).update, scores)).best == scores[0].argmax()
    height = math.sqrt(2 * math.log(60))
    row = np.zeros(60)
    row[9] = 1.0
    assert log_likelihood(row, 1.0)[9] == pytest.approx(height * math.sqrt(59) - height**2 / 2)


def test_a_frame_that_tells_nothing_or_is_missing_only_moves():
    spec, scores = SequenceSpec(), drive()
    one, two = SequenceFilter(roads_by_index(60), spec), SequenceFilter(roads_by_index(60), spec)
    for path in (one, two):
        for row in scores[:5]:
            path.update(row)
    np.testing.assert_allclose(one.skip().places, two.update(np.full(60, 0.25)).places, rtol=1e-9)
    one.reset()
    assert one.skip().lost == pytest.approx(1 - spec.being_found)


def test_places_far_apart_in_the_map_but_near_on_the_ground_are_neighbours():
    out = np.column_stack([np.arange(20.0), np.zeros(20)])
    there_and_back = np.concatenate([out, out[::-1] + np.array([0, 0.1])])
    roads = roads_by_position(there_and_back)
    assert 38 in roads.to[1][roads.share[1] > 0]
    assert roads.to[1][0] == 1
    assert roads.share.sum(axis=1) == pytest.approx(np.ones(40))
    many = roads_by_position(np.zeros((100, 2)))
    assert many.to.shape == (100, MOST_NEIGHBOURS)
    assert (many.to[:, 0] == np.arange(100)).all()


def test_degrees_become_metres():
    plane = metres(np.array([52.0, 52.001]), np.array([13.0, 13.001]))
    east, north = plane[1] - plane[0]
    assert north == pytest.approx(111.19, abs=0.1)
    assert east == pytest.approx(111.19 * math.cos(math.radians(52.0005)), abs=0.1)


def test_a_map_of_one_image_has_no_sequence():
    with pytest.raises(BadSpec, match="at least 2"):
        SequenceFilter(roads_by_index(1))
    with pytest.raises(BadSpec, match="trust"):
        SequenceSpec(trust=0.0)


@given(st.integers(0, 10**6), st.sampled_from([1, 5, 40, 90]), st.sampled_from([0.0, 0.5, 1.0, 30.0]))
def test_roads_by_position_are_those_of_all_distances(seed, images, grid):
    """By a tree as by the plain formula, to the bit: also where images stand at one place or equally far away."""
    generator = np.random.default_rng(seed)
    places = generator.normal(0, 20, (images, 2))
    places = np.round(places / grid) * grid if grid else places
    spec = SequenceSpec()
    roads = roads_by_position(places, spec)
    away = np.linalg.norm(places[:, None] - places[None], axis=-1)
    np.fill_diagonal(away, -1.0)
    to = np.argsort(away, axis=1, kind="stable")[:, :MOST_NEIGHBOURS]
    distance = np.take_along_axis(away, to, axis=1).clip(min=0)
    moved = np.linalg.norm(np.diff(places, axis=0), axis=1)
    step = (np.median(moved[moved > 0]) if (moved > 0).any() else 1.0) * spec.reach
    exists = distance <= FARTHEST * step
    share = np.where(exists, np.exp(-np.maximum(distance / step - 1, 0)), 0.0)
    assert np.array_equal(roads.to, np.where(exists, to, np.arange(images)[:, None]))
    assert np.array_equal(roads.share, share / share.sum(axis=1, keepdims=True))
    assert np.array_equal(roads.near, exists & (distance / step <= 1))
