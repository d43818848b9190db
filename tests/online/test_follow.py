"""Adaptation, verification and the filter put together."""

import numpy as np
import pytest

from tests.online.test_sequence_filter import KnownEvidence
from tests.worlds import seen_again, world
from tfa.core.tokens import Tokens
from tfa.online.adaptation import AdaptedScorer
from tfa.online.follow import Follower
from tfa.online.sequence_filter import OrderMotion, SequenceFilter, SequenceSpec
from tfa.pipeline import fit, fit_second_order
from tfa.types import HeadSpec
from tfa.verification.reranking import rerank
from tfa_bench.streams import describe_photos, follow_scores

PLACES = world(images=60, seed=1, noise=0.3)
STREAM = seen_again(PLACES, noise=0.35)
MOTION = OrderMotion(60, 2.0)


@pytest.fixture(scope="module")
def scorer():
    return fit_second_order(PLACES, carrier="partial").scorer(0)


@pytest.fixture(scope="module")
def photos(scorer):
    return list(describe_photos(scorer, STREAM))


@pytest.fixture(scope="module")
def evidence():
    found = np.random.default_rng(2).random((60, 60))
    found[np.arange(60), np.arange(60)] = 4.0
    return KnownEvidence(found)


def beliefs(frames):
    return [frame.belief for frame in frames]


def test_frames_are_made_of_the_three_parts(scorer, photos, evidence):
    frames = list(follow_scores(scorer, photos, evidence, candidates=7, motion=MOTION))
    adapted, path = AdaptedScorer(scorer), SequenceFilter(MOTION)
    for number, (frame, photo) in enumerate(zip(frames, photos, strict=True)):
        assert frame.adaptation_photos == adapted.counted
        row = adapted.step(photo)
        assert np.array_equal(frame.scores, row)
        ranked = rerank(row[None], 7, 7, KnownEvidence(evidence.evidence[[number]]))
        assert np.array_equal(frame.ranked.indices, ranked.indices)
        assert np.array_equal(frame.belief.places, path.update(row, ranked).places)
    assert np.mean([belief.best == i for i, belief in enumerate(beliefs(frames))]) > 0.9


def test_without_a_motion_there_is_no_belief_and_without_online_no_adaptation(scorer, photos):
    frames = list(follow_scores(scorer, photos, online=False))
    assert np.array_equal(np.stack([frame.scores for frame in frames]), scorer.scores(STREAM))
    assert all(frame.belief is None and frame.adaptation_photos == 0 for frame in frames)
    adapted = list(follow_scores(scorer, photos))
    assert np.array_equal(adapted[0].scores, frames[0].scores)
    assert adapted[-1].adaptation_photos > 10


def test_later_frames_never_change_earlier_ones(scorer, photos, evidence):
    one = list(follow_scores(scorer, photos, evidence, candidates=5, motion=MOTION))
    other = list(follow_scores(scorer, [*photos[:30], *photos[:20]], evidence, candidates=5, motion=MOTION))
    for a, b in zip(one[:30], other[:30], strict=True):
        assert np.array_equal(a.belief.places, b.belief.places)
        assert np.array_equal(a.scores, b.scores)


def test_standing_still_leaves_the_belief_as_it_is(scorer, photos):
    still = [*photos[:20], *[photos[19]] * 200, *photos[20:40]]
    stood = list(follow_scores(scorer, still, motion=MOTION))
    went = list(follow_scores(scorer, photos[:40], motion=MOTION))
    for frame in stood[20:220]:
        assert np.array_equal(frame.belief.places, stood[19].belief.places)
    assert [b.best for b in beliefs(stood[220:])] == [b.best for b in beliefs(went[20:])]
    gated = SequenceSpec(still=0.0)
    assert len({b.lost for b in beliefs(list(follow_scores(scorer, still[:40], motion=MOTION, spec=gated))[19:])}) > 1


def test_a_jump_a_gap_and_a_blank_photo(scorer, photos):
    blank = next(describe_photos(scorer, Tokens(np.zeros((1, 12, 6)))))
    stream = [*photos[:15], *photos[40:50], blank, *photos[51:60]]
    places = [*range(15), *range(40, 60)]
    found = beliefs(follow_scores(scorer, stream, motion=MOTION))
    assert all(np.isfinite(belief.places).all() for belief in found)
    right = [belief.best == place for belief, place in zip(found, places, strict=True)]
    assert np.mean(right[19:]) > 0.85


def test_a_skipped_photo_moves_the_belief_if_there_is_one(scorer, photos):
    follower = Follower(AdaptedScorer(scorer), MOTION)
    first = [follower.step(photo) for photo in photos[:8]]
    assert follower.skip().lost != first[-1].belief.lost
    assert Follower(AdaptedScorer(scorer)).skip() is None


def test_any_head_of_the_paper_can_be_followed():
    scorer = fit(PLACES, HeadSpec(words=4)).scorer("ensemble")
    frames = list(follow_scores(scorer, describe_photos(scorer, STREAM), motion=MOTION))
    assert np.mean([belief.best == i for i, belief in enumerate(beliefs(frames))]) > 0.8
