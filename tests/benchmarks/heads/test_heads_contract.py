"""What every head of the benchmark promises, checked on every card. A new module of heads joins MODULES."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

from tests import worlds
from tfa import pipeline
from tfa.core.tokens import Tokens
from tfa.errors import BadTokens
from tfa.search.gallery import QUERY_BLOCK, top_k
from tfa.types import HeadSpec, RerankSpec
from tfa.verification.reranking import plan_rounds
from tfa_bench.heads.catalogue import GROUPS, head_card
from tfa_bench.heads.contract import Calibratable, Fitted, HeadCard, Photos, Shared
from tfa_bench.heads.controls import ABLATION_CARDS, SPECTRAL_CARDS

pytestmark = pytest.mark.slow

OWN = ("tfa", "tfa-ensemble", "tfa-c64", "tfa-c64+", "tfa-fullq", "dual", "dual-c64", "dual-c64+", "dual-crossfit")
ANALYSES = ("tfa-c64-forced-partial", "dual-k32", "dual-k64-crossfit", "dual-database")
SECOND_ORDER = (
    "second-order",
    "second-order-c64",
    "second-partial",
    "second-blend",
    "judged",
    "judged-c64",
    "judged-c64-support",
)
VERIFIED = ("tfa-v-always", "tfa-c64-v", "judged-v-always", "judged-c64-v", "second-order-v", "second-order-c64-v")
PEERS = [card for card in map(head_card, GROUPS["peers"]) if not card.needs_files]
CARDS = [*PEERS, *SPECTRAL_CARDS, *ABLATION_CARDS, *map(head_card, (*OWN, *ANALYSES, *SECOND_ORDER, *VERIFIED))]


def for_each(cards: list[HeadCard]) -> pytest.MarkDecorator:
    """A case for each card. A fast run leaves most variations of heads out: ablations, controls, other calibrations."""
    variations = {card.name for card in (*SPECTRAL_CARDS[1:], *ABLATION_CARDS[1:])}
    variations |= {"tfa-c64+", "tfa-fullq", "dual-c64", "dual-c64+", "dual-crossfit"}
    variations |= {"second-blend", "judged-c64-support"}
    cases = [pytest.param(card, id=card.name, marks=[pytest.mark.slow] * (card.name in variations)) for card in cards]
    return pytest.mark.parametrize("card", cases)


every_card = for_each(CARDS)


def on_a_grid(tokens: Tokens) -> Tokens:
    return Tokens(tokens.patches, tokens.cls, grid=(5, 8))


def seen_again(tokens: Tokens) -> Tokens:
    return on_a_grid(worlds.seen_again(tokens))


DATABASE = on_a_grid(
    worlds.world(patches=40)
)  # enough for any two images to share words: unrelated images would tie at 0
QUERIES = seen_again(DATABASE).select(np.arange(QUERY_BLOCK + 3))


SPEC = HeadSpec(words=8)  # of this package's own heads: 24 small images have no use for 64


def fitted(card: HeadCard, database: Tokens, queries: Tokens = QUERIES) -> Fitted:
    """The head as it is evaluated: calibrated on the queries where its plan says so."""
    head = card.fit(Photos(database), Shared(spec=SPEC))
    if card.plan.calibrates:
        assert isinstance(head, Calibratable)
        return head.calibrate(Photos(queries))
    return head


@cache
def fitted_once(name: str) -> Fitted:
    """The head of the card of that name, for tests that only look at it: fitting is what takes time here."""
    return fitted(next(card for card in CARDS if card.name == name), DATABASE)


def all_scores(head: Fitted, queries: Tokens = QUERIES) -> dict[str, np.ndarray]:
    return {replica: head.scores(Photos(queries), replica) for replica in head.replicas}


def test_names_are_unique_and_records_can_hold_the_settings():
    assert len({card.name for card in CARDS}) == len(CARDS)
    assert len({card.title for card in CARDS}) == len(CARDS)
    for card in CARDS:
        assert json.loads(json.dumps(dict(card.settings))) == dict(card.settings)


@every_card
def test_scores_are_finite_with_a_row_a_query_and_a_column_an_image(card):
    for scores in all_scores(fitted_once(card.name)).values():
        assert scores.shape == (len(QUERIES), len(DATABASE))
        assert np.isfinite(scores).all()


@every_card
def test_a_place_seen_again_is_recognised(card):
    for scores in all_scores(fitted(card, DATABASE, seen_again(DATABASE)), seen_again(DATABASE)).values():
        assert (scores.argmax(axis=1) == np.arange(len(DATABASE))).mean() > 0.5  # a constant would get 1/24


@every_card
def test_no_queries_give_no_rows(card):
    head = fitted_once(card.name)
    nobody = QUERIES.select(np.arange(0))
    for replica in head.replicas:
        assert head.scores(Photos(nobody), replica).shape == (0, len(DATABASE))


@every_card
def test_fitting_twice_gives_identical_scores(card):
    once, again = all_scores(fitted_once(card.name)), all_scores(fitted(card, DATABASE))
    assert once.keys() == again.keys()
    for replica, scores in once.items():
        np.testing.assert_array_equal(scores, again[replica])


@for_each(PEERS)
def test_the_order_of_the_database_does_not_matter(card):
    order = np.random.default_rng(5).permutation(len(DATABASE))
    listed = all_scores(fitted(card, DATABASE))
    shuffled = all_scores(fitted(card, DATABASE.select(order)))
    for replica, scores in listed.items():
        np.testing.assert_allclose(shuffled[replica], scores[:, order], atol=1e-5)
        best, _ = top_k(scores, len(DATABASE))
        again, _ = top_k(shuffled[replica], len(DATABASE))
        np.testing.assert_array_equal(order[again], best)


# The method draws its patches, starts and halves by position, so a head of its own depends on the listed order
# through them. With the words given, and strengths that do not come from the halves, it does not.
@for_each([card for card in SPECTRAL_CARDS if card.sees == "database" and not card.name.endswith("adaptive")])
def test_the_order_of_the_database_does_not_matter_once_the_words_are_given(card):
    order = np.random.default_rng(5).permutation(len(DATABASE))
    words = [v.centers for v in pipeline.fit(DATABASE, SPEC).vocabularies]
    found = []
    for database in (DATABASE, DATABASE.select(order)):
        shared = Shared(spec=SPEC)
        shared.once("tfa", lambda database=database: pipeline.fit(database, SPEC, words))
        found.append(all_scores(card.fit(Photos(database), shared)))
    for replica, scores in found[0].items():
        np.testing.assert_allclose(found[1][replica], scores[:, order], atol=2e-4)
        best = top_k(scores, 1)[0]
        np.testing.assert_array_equal(order[top_k(found[1][replica], 1)[0]], best)


@every_card
def test_a_duplicate_image_comes_next_and_ties_exactly(card):
    database = DATABASE.select(np.r_[np.arange(len(DATABASE)), 3])
    for scores in all_scores(fitted(card, database)).values():
        if card.name not in VERIFIED:  # reranking has a fixed number of candidates and orders ties
            np.testing.assert_array_equal(scores[:, -1], scores[:, 3])
        for row in top_k(scores, len(database))[0]:
            first, second = list(row).index(3), list(row).index(len(database) - 1)
            # Where the first is the last candidate, its duplicate stays where the head put it: after all candidates.
            assert second == first + 1 or (
                card.name in VERIFIED and first < second in plan_rounds(RerankSpec().candidates, len(database))
            )


@every_card
def test_a_score_does_not_depend_on_the_other_queries(card):
    head = fitted_once(card.name)
    for replica, together in all_scores(head).items():
        alone = [head.scores(Photos(QUERIES.select([i])), replica) for i in range(len(QUERIES))]
        np.testing.assert_array_equal(np.concatenate(alone), together)


@every_card
def test_constant_tokens_score_without_complaint(card):
    database = Tokens(np.ones((5, 9, 6)), np.ones((5, 6)), grid=(3, 3))
    for scores in all_scores(fitted(card, database, database), database).values():
        assert np.isfinite(scores).all()
        assert (scores == scores[0, 0]).all()


def ragged_database() -> Tokens:
    return Tokens([np.asarray(DATABASE.patches[i])[: 3 + i % 9] for i in range(len(DATABASE))], DATABASE.cls)


@for_each([card for card in CARDS if card.name not in VERIFIED])
def test_images_may_differ_in_their_number_of_patches(card):
    ragged = ragged_database()
    for scores in all_scores(fitted(card, ragged)).values():
        assert scores.shape == (len(QUERIES), len(ragged))
        assert np.isfinite(scores).all()


@for_each([head_card(name) for name in VERIFIED])
def test_a_head_that_looks_where_patches_lie_says_so_where_that_is_unknown(card):
    with pytest.raises(BadTokens, match="grid"):
        fitted(card, ragged_database())


@every_card
def test_a_head_has_seen_what_its_card_declares(card):
    head = card.fit(Photos(DATABASE), Shared(spec=SPEC))
    assert fitted_once(card.name).data_used == card.sees
    assert head.data_used == ("database" if card.plan.calibrates else card.sees)
    assert card.plan.sees_target == (card.sees == "target")


@every_card
def test_calibration_leaves_the_old_head_unchanged(card):
    head = card.fit(Photos(DATABASE), Shared(spec=SPEC))
    before = all_scores(head)
    if card.plan.calibrates:
        assert isinstance(head, Calibratable)
        calibrated = all_scores(head.calibrate(Photos(QUERIES)))
        if card in PEERS:  # a controller may decide the same again
            assert any(not np.array_equal(calibrated[replica], before[replica]) for replica in before)
    for replica, scores in all_scores(head).items():
        np.testing.assert_array_equal(scores, before[replica])
