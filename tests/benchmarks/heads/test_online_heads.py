"""Heads that adapt online: causal, fresh for each replica, queried in the order of their plan."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.worlds import seen_again, world
from tfa.core.tokens import Tokens
from tfa.method.described_queries import DescribedQueries
from tfa.online.adaptation import MIN_ROWS
from tfa.types import HeadSpec
from tfa_bench.heads.catalogue import head_card
from tfa_bench.heads.contract import InOrder, Photos, Shared
from tfa_bench.heads.controls import CONTROLS, under_control
from tfa_bench.heads.online import AT_ONCE, OnlineHead
from tfa_bench.heads.tfa_heads import fitted_tfa
from tfa_bench.rank import answered, answers_of_split, score_sample

GRID = (5, 8)
SPEC = HeadSpec(words=8)


def on_a_grid(tokens: Tokens) -> Tokens:
    return Tokens(tokens.patches, tokens.cls, grid=GRID)


DATABASE = on_a_grid(world(images=80, patches=40, channels=12, noise=0.6))
QUERIES = on_a_grid(seen_again(DATABASE, noise=0.9))
PHOTOS = Photos(DescribedQueries(QUERIES))


@pytest.fixture(scope="module")
def shared():
    return Shared(spec=SPEC)


def fit(name: str, shared: Shared):
    return head_card(name).fit(Photos(DATABASE), shared)


NAMES = ("judged-online", "tfa-online", "judged-online-v-always", "judged-follow")


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_depends_on_the_queries_before_and_not_on_those_after(name, shared):
    head = fit(name, shared)
    assert isinstance(head, InOrder)
    every = head.scores(PHOTOS, "0")
    some = head.scores(PHOTOS.select(np.arange(AT_ONCE + 3)), "0")
    np.testing.assert_array_equal(some, every[: AT_ONCE + 3])
    later = head.scores(PHOTOS.select(np.arange(20, 40)), "0")
    assert not np.array_equal(later[5:], every[25:40])
    np.testing.assert_array_equal(head.scores(PHOTOS, "0"), every)  # nothing is left of the first time


def test_the_first_photo_is_answered_as_the_head_alone_would(shared):
    for name, alone in (
        ("judged-online", "second-partial"),
        ("tfa-online", "tfa"),
        ("tfa-online-v-always", "tfa-v-always"),
    ):
        first = PHOTOS.select([7])
        for replica in ("0", "2"):
            np.testing.assert_array_equal(
                fit(name, shared).scores(first, replica), fit(alone, shared).scores(first, replica)
            )


def test_descriptors_that_are_compared_as_they_are_learn_the_bias_alone(shared):
    original = under_control(fitted_tfa(Photos(DATABASE), shared), "soft", CONTROLS["original"])
    plain, adapted = original.scores(QUERIES, 1), OnlineHead(original).scores(PHOTOS, "1")
    np.testing.assert_array_equal(adapted[:MIN_ROWS], plain[:MIN_ROWS])
    assert not np.array_equal(adapted[MIN_ROWS:], plain[MIN_ROWS:])


def test_a_stream_that_is_shifted_is_recognised_better_than_photo_by_photo():
    """All photos look the same way aside: in coordinates they share one vector, which the stream finds."""
    database = on_a_grid(world(images=60, patches=40, channels=12, noise=0.6))
    patches = np.array(seen_again(database, noise=0.6).patches)
    spread = np.ones(12)
    spread[:4] = 4  # another camera sees some channels louder
    queries = Photos(DescribedQueries(Tokens(patches * spread, grid=GRID)))
    shared = Shared(spec=SPEC)
    right = []
    for name in ("second-partial", "judged-online"):
        head = head_card(name).fit(Photos(Tokens(database.patches, grid=GRID)), shared)
        right.append((head.scores(queries, "0").argmax(axis=1) == np.arange(60)).mean())
    assert right[1] > right[0] + 0.3


def test_queries_are_answered_in_the_order_of_the_plan(shared):
    for name in ("judged-online", "judged-online-shuffled"):
        card, head = head_card(name), fit(name, shared)
        [split] = card.plan.splits(len(QUERIES))
        order = split.folds[0].evaluated
        answers = answers_of_split(split, [head], PHOTOS, len(DATABASE), 5)
        expected = head.scores(PHOTOS.select(order), "1")
        np.testing.assert_array_equal(answers.rankings[order, 1, 0], expected.argmax(axis=1))
        assert not np.isnan(answers.confidence).any()
        sample = score_sample(head, PHOTOS, len(DATABASE), order)
        first = head.scores(PHOTOS.select(order), "0")
        expected = first[np.argsort(order)[list(sample.queries)]][:, list(sample.database)]
        np.testing.assert_allclose(sample.scores, expected, atol=(sample.high - sample.low) / 255)


def test_other_heads_are_queried_some_at_a_time(shared):
    head = fit("second-partial", shared)
    rows = [one for one, _, _ in answered(head, PHOTOS, np.arange(len(PHOTOS)), "0")]
    np.testing.assert_array_equal(np.concatenate(rows), np.arange(len(PHOTOS)))


def test_a_camera_is_followed_along_the_database(shared):
    followed, single = fit("judged-follow", shared), fit("judged-online", shared)
    places = followed.scores(PHOTOS, "0")
    assert (places.sum(axis=1) <= 1 + 1e-9).all()  # single images; the rest is the probability of being lost
    right = [(rows.argmax(axis=1) == np.arange(len(QUERIES))).mean() for rows in (places, single.scores(PHOTOS, "0"))]
    assert right[0] > right[1]
    assert followed.decisions["verification"] == fit("judged-v", shared).decisions["verification"]
    assert head_card("judged-follow").needs_order
    assert not head_card("judged-online").needs_order


def test_the_default_ranks_an_image_with_its_neighbors_and_may_answer_late(shared):
    followed, late = fit("second-order-follow", shared), fit("second-order-follow-lag5", shared)
    places = followed.scores(PHOTOS, "0")
    assert (places.sum(axis=1) > 1 + 1e-9).any()
    assert (places <= 1.5 + 1e-9).all()  # the image and its neighbors, the image itself with half a weight more
    smoothed = late.scores(PHOTOS, "0")
    assert smoothed.shape == places.shape
    np.testing.assert_array_equal(smoothed[-1], places[-1])  # no frames come after the last one
    assert not np.allclose(smoothed[:-1], places[:-1])
    assert head_card("second-order-follow-lag5").settings["lag"] == 5
    assert "lag" not in head_card("second-order-follow").settings


def test_one_window_is_an_ablation_with_other_evidence(shared):
    one, every = fit("second-order-one-window-v", shared), fit("second-order-v", shared)
    assert not np.array_equal(one.scores(PHOTOS, "0"), every.scores(PHOTOS, "0"))
    card = head_card("second-order-one-window-v")
    assert (card.note, card.settings["verification"]["windows"]) == ("ablation", [5])


def test_verified_it_says_so_and_has_a_confidence(shared):
    head = fit("judged-online-v-always", shared)
    assert head.decisions["verification"]["used"]
    assert head.decisions["carrier"] == "partial"
    for scores, sure in head.in_order(PHOTOS, "0"):
        assert len(scores) == len(sure)
        assert ((sure >= 0) & (sure <= 1)).all()
    decided = fit("judged-online-v", shared)
    assert (decided.pairs is not None) == decided.decisions["verification"]["used"]
    alone = fit("judged-v", shared).decisions["verification"]
    assert decided.decisions["verification"] == alone


@pytest.mark.parametrize(
    ("name", "title", "plan"),
    [
        ("judged-online", "Judged online", "online"),
        ("judged-online-v", "Judged online +V", "online"),
        ("judged-online-shuffled-v-always", "Judged online, shuffled +V, always", "online, shuffled"),
        ("tfa-online", "TFA online", "online"),
        ("judged-follow", "Judged follow", "online"),
        ("second-order-1-online-v", "Second-order head, earlier, adapted online, reranked", "online"),
        ("second-order-one-window-online-v", "Second-order head, one window, adapted online, reranked", "online"),
        ("second-order-1-follow", "Second-order head, earlier, followed along the drive", "online"),
    ],
)
def test_names_say_what_happens(name, title, plan):
    card = head_card(name)
    assert (card.title, card.plan.name, card.sees) == (title, plan, "target")
    assert {"online"} <= set(card.stages)
    assert ("verification" in card.stages) == ("-v" in name or "follow" in name)
    assert not dataclasses.asdict(card.plan)["n"]
