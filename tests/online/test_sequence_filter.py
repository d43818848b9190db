"""The sequence filter agrees with its plain formulas; errors, jumps, exits and stops of a camera."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.online.test_motion import plain_moves
from tfa.errors import BadSpec
from tfa.online.sequence_filter import (
    PACES,
    OrderMotion,
    SequenceFilter,
    SequenceSpec,
    compute_log_likelihood,
    observe_frame,
)
from tfa.verification.reranking import Compared, rerank


class KnownEvidence:
    """A comparison whose evidence `q m` is given."""

    def __init__(self, evidence):
        self.evidence = np.asarray(evidence, np.float64)

    def with_queries(self, rows, images):
        return [Compared(self.evidence[row, own], np.full(len(own), 9)) for row, own in zip(rows, images, strict=True)]


def verified(row, evidence, candidates):
    return rerank(np.asarray(row)[None], candidates, candidates, KnownEvidence(np.asarray(evidence)[None]))


def plain_observation(row, evidence=None, candidates=0):
    z = [(score - np.mean(row)) / np.std(row) for score in row]
    if evidence is None:
        return z
    best = sorted(range(len(row)), key=lambda j: (-row[j], j))[:candidates]
    median = math.sqrt(np.median([evidence[j] for j in best]))
    for j in best:
        z[j] += 5 * (math.sqrt(evidence[j]) - median)
    off = min(max(3 * (max(math.sqrt(evidence[j]) for j in best) - 1.3), -1), 0)
    return [value + off for value in z]


def plain_filter(observed, trust, spec):
    """The model as it is written down: loops, one number at a time."""
    images, paces = len(observed[0]), len(PACES)
    index = np.arange(images)
    moves = [plain_moves(index[None, :] - index[:, None], pace) for pace in PACES]
    moves = [own / own.sum(axis=1, keepdims=True) for own in moves]
    mu = math.sqrt(2 * math.log(images))
    p = [[spec.p_recover / (paces * images)] * images for _ in range(paces)]
    lost, told = 1 - spec.p_recover, []
    for frame, x in enumerate(observed):
        if frame:
            total = [sum(p[v][i] for v in range(paces)) for i in range(images)]
            paced = [[(1 - spec.new_pace) * p[v][i] + spec.new_pace * total[i] / paces for i in range(images)]
                     for v in range(paces)]  # fmt: skip
            found = lost * spec.p_recover / (paces * images)
            p = [[(1 - spec.p_lost) * sum(paced[v][i] * moves[v][i, j] for i in range(images)) + found
                  for j in range(images)] for v in range(paces)]  # fmt: skip
            lost = spec.p_lost * sum(total) + (1 - spec.p_recover) * lost
        seen = [math.exp(trust * (mu * value - mu**2 / 2)) for value in x]
        p = [[p[v][j] * seen[j] for j in range(images)] for v in range(paces)]
        total = sum(map(sum, p)) + lost
        p, lost = [[value / total for value in own] for own in p], lost / total
        told.append(([sum(own[j] for own in p) for j in range(images)], lost))
    return told


def test_the_filter_equals_the_plain_formulas():
    spec = SequenceSpec(p_lost=0.05, p_recover=0.3, new_pace=0.1, trust_unverified=0.7)
    scores = np.random.default_rng(0).normal(size=(10, 34))
    plain = plain_filter([plain_observation(row) for row in scores], 0.7, spec)
    path = SequenceFilter(OrderMotion(34, 1.0), spec)
    for row, (places, lost) in zip(scores, plain, strict=True):
        belief = path.update(row)
        np.testing.assert_allclose(belief.places, places, rtol=1e-9)
        assert belief.lost == pytest.approx(lost, rel=1e-9)
        best = belief.best
        assert belief.confidence == pytest.approx(sum(places[max(best - 1, 0) : best + 2]), rel=1e-9)


def test_verified_frames_equal_the_plain_formulas():
    rng = np.random.default_rng(1)
    scores, evidence = rng.normal(size=(6, 30)), rng.random((6, 30)) * np.array([0.1, 1, 2, 4, 9, 0])[:, None]
    observed = [plain_observation(row, own, 8) for row, own in zip(scores, evidence, strict=True)]
    plain = plain_filter(observed, 0.3, SequenceSpec())
    path = SequenceFilter(OrderMotion(30, 2.0))
    for row, own, x, (places, lost) in zip(scores, evidence, observed, plain, strict=True):
        np.testing.assert_allclose(observe_frame(row, verified(row, own, 8)), x, rtol=1e-9)
        belief = path.update(row, verified(row, own, 8))
        np.testing.assert_allclose(belief.places, places, rtol=1e-9)
        assert belief.lost == pytest.approx(lost, rel=1e-9)


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 50), st.integers(0, 1000))
def test_a_belief_is_a_probability(images, seed):
    scores = np.random.default_rng(seed).normal(size=(6, images)) * 10.0 ** np.arange(-3, 3)[:, None]
    for belief in map(SequenceFilter(OrderMotion(images, 2.0)).update, scores):
        assert belief.places.sum() + belief.lost == pytest.approx(1)
        assert (belief.places >= 0).all()
        assert belief.places[belief.best] <= belief.confidence + 1e-12 <= 1 + 1e-9


def drive(images=60, frames=40, errs=(), start=5, pace=1, seed=0):
    """Return scores of a camera that moves this many images per frame; at `errs` another image is best."""
    scores = np.random.default_rng(seed).normal(size=(frames, images))
    for frame in range(frames):
        scores[frame, start + pace * frame] += 6
    for frame in errs:
        scores[frame, start + pace * frame] -= 3
        scores[frame, (start + pace * frame + 30) % images] += 7
    return scores


def followed(scores):
    return list(map(SequenceFilter(OrderMotion(scores.shape[1], 2.0)).update, scores))


def test_single_frames_that_err_are_overruled():
    scores, errs = drive(errs=(10, 17, 23)), (10, 17, 23)
    assert sum(scores[frame].argmax() == frame + 5 for frame in errs) == 0
    beliefs = followed(scores)
    assert all(abs(belief.best - frame - 5) <= 1 for frame, belief in enumerate(beliefs))
    assert np.mean([belief.best == frame + 5 for frame, belief in enumerate(beliefs)]) > 0.9
    assert beliefs[9].confidence > 0.9


@pytest.mark.parametrize(("start", "pace"), [(5, 3), (95, -2), (5, 8)])
def test_the_pace_of_a_drive_is_kept_where_frames_say_nothing(start, pace):
    scores = drive(images=140, frames=16, start=start, pace=pace)
    scores[12:] = np.random.default_rng(9).normal(size=(4, 140)) * 1e-13  # equal but for rounding: no evidence
    for frame, belief in enumerate(followed(scores)[12:14], 12):
        assert abs(belief.best - start - pace * frame) <= 2


def test_a_camera_that_leaves_the_map_is_lost_and_is_found_again():
    scores = drive(frames=40)
    scores[15:25] = np.random.default_rng(3).normal(size=(10, 60))
    beliefs = followed(scores)
    assert beliefs[13].lost < 0.05
    assert beliefs[24].is_lost
    assert beliefs[27].best == 32
    assert not beliefs[28].is_lost


def test_a_jump_and_a_gap_are_followed():
    jump = followed(np.concatenate([drive(frames=15), drive(frames=10, start=45)]))
    assert [belief.best for belief in jump[18:]] == list(range(48, 55))
    gap = followed(np.delete(drive(images=90, frames=60), np.s_[20:40], axis=0))
    assert [belief.best for belief in gap[24:]] == list(range(49, 65))


def test_the_first_frame_is_answered_as_a_single_one():
    scores = drive()
    assert followed(scores[:1])[0].best == scores[0].argmax()
    height = math.sqrt(2 * math.log(60))
    row = np.zeros(60)
    row[9] = 1.0
    assert compute_log_likelihood(observe_frame(row), 1.0)[9] == pytest.approx(height * math.sqrt(59) - height**2 / 2)


def test_a_frame_that_tells_nothing_or_is_missing_only_moves():
    spec, scores = SequenceSpec(), drive()
    one, two = SequenceFilter(OrderMotion(60, 2.0), spec), SequenceFilter(OrderMotion(60, 2.0), spec)
    for path in (one, two):
        for row in scores[:5]:
            path.update(row)
    np.testing.assert_allclose(one.skip().places, two.update(np.full(60, 0.25)).places, rtol=1e-9)
    np.testing.assert_allclose(one.skip().places, two.update(np.full(60, np.nan)).places, rtol=1e-9)
    one.reset()
    assert one.skip().lost == pytest.approx(1 - spec.p_recover)


def test_what_is_believed_follows_images_that_come_and_go():
    path, ids = SequenceFilter(OrderMotion(60, 2.0)), np.arange(60)
    for row in drive()[:10]:
        before = path.update(row)
    now = np.r_[np.delete(ids, [14, 20]), 90, 91]
    path.follow_edit(OrderMotion(60, 2.0), ids, now)
    after = path.hold()
    assert after.places.sum() + after.lost == pytest.approx(1)
    assert after.lost == pytest.approx(before.lost)
    assert before.best == 14
    assert now[after.best] in (13, 15)
    assert (after.places[-2:] == 0).all()
    path.follow_edit(OrderMotion(2, 2.0), now, np.array([200, 201]))
    assert path.hold().lost == pytest.approx(0.9)  # nothing of the map is left: as at the start


def test_fifty_thousand_images_take_no_table_of_pairs():
    path = SequenceFilter(OrderMotion(50_000, 2.0))
    row = np.random.default_rng(0).normal(size=50_000)
    row[[4000, 4001]] += 12
    path.update(row)
    assert path.update(np.roll(row, 1)).best in (4001, 4002)


def test_what_is_out_of_range_is_refused():
    with pytest.raises(BadSpec, match="trust"):
        SequenceSpec(trust=0.0)


def dense_model(images, spec):
    """The move of one frame as a matrix over all (pace, image) states and *lost*, the last state."""
    index, states = np.arange(images), len(PACES) * images
    moves = [plain_moves(index[None, :] - index[:, None], pace) for pace in PACES]
    move = np.zeros((states + 1, states + 1))
    for pace, own in enumerate(moves):
        own = (1 - spec.p_lost) * own / own.sum(axis=1, keepdims=True)
        to = slice(pace * images, (pace + 1) * images)
        for before in range(len(PACES)):
            drawn = spec.new_pace / len(PACES) + (1 - spec.new_pace) * (before == pace)
            move[before * images : (before + 1) * images, to] = drawn * own
    move[:-1, -1], move[-1, -1], move[-1, :-1] = spec.p_lost, 1 - spec.p_recover, spec.p_recover / states
    return move


@pytest.mark.parametrize("lag", [0, 1, 4])
def test_looking_back_is_the_probability_given_all_frames_since(lag):
    spec = SequenceSpec(p_lost=0.05, p_recover=0.3, new_pace=0.1, trust_unverified=0.7)
    images, rng = 12, np.random.default_rng(2)
    scores, move = rng.normal(size=(7, images)), dense_model(images, spec)
    seen = []
    for row in scores:
        likelihood = np.exp(compute_log_likelihood(observe_frame(row), 0.7))
        seen.append(np.append(np.tile(likelihood, len(PACES)), 1.0))
    seen[3] = np.ones(len(move))  # a frame that could not be read
    path = SequenceFilter(OrderMotion(images, 2.0), spec, lag)
    forward = np.append(np.full(len(move) - 1, spec.p_recover / (len(move) - 1)), 1 - spec.p_recover)
    for frame, row in enumerate(scores):
        path.skip() if frame == 3 else path.update(row)
        if frame < lag:
            continue
        forward = forward * seen[0] if frame == lag else forward @ move * seen[frame - lag]
        backward = np.ones(len(move))
        for later in range(frame, frame - lag, -1):
            backward = move @ (seen[later] * backward)
        both = forward * backward / (forward @ backward)
        belief = path.look_back(lag)
        np.testing.assert_allclose(belief.places, both[:-1].reshape(-1, images).sum(axis=0), rtol=1e-9)
        assert belief.lost == pytest.approx(both[-1], rel=1e-9)


def test_a_camera_that_stands_still_before_a_frame_does_not_move_when_looking_back():
    path = SequenceFilter(OrderMotion(20, 2.0), lag=3)
    for row in drive(images=20, frames=4):
        before = path.update(row)
    path.hold()
    np.testing.assert_allclose(path.hold().places, before.places)
    np.testing.assert_allclose(path.look_back(2).places, before.places)


def test_an_answer_has_the_most_probability_around_it_and_a_certain_image_is_the_answer():
    places = np.zeros(20)
    places[4], places[10:13] = 0.35, [0.3, 0.05, 0.3]
    motion = OrderMotion(20, 2.0)
    path = SequenceFilter(motion)
    assert path._make_belief(places[None], 0.0).best == 11
    assert path._make_belief(np.eye(20)[[7]], 0.0).best == 7


def test_later_frames_correct_a_frame_that_errs():
    scores = drive(errs=(20,))
    now, later = SequenceFilter(OrderMotion(60, 2.0)), SequenceFilter(OrderMotion(60, 2.0), lag=5)
    causal = [now.update(row).places[5 + frame] for frame, row in enumerate(scores)]
    smoothed = []
    for frame, row in enumerate(scores):
        later.update(row)
        if frame >= 5:
            smoothed.append(later.look_back(5).places[frame])
    assert smoothed[20] > causal[20]
