"""Is verification used? Hand-made rankings, and real heads against their own scores."""

import json

import numpy as np
import pytest

import tfa
from tests.worlds import seen_again, world
from tfa.core.arrays import backend_for
from tfa.method.evidence import NO_ANSWER
from tfa.method.head import final_scores
from tfa.types import HeadSpec, RerankSpec
from tfa.verification.usual_evidence import space_evenly
from tfa_bench.heads.admission import (
    judge_admission,
    judge_admission_on_database,
    judge_admission_on_target,
    shortlist_images,
)

CPU = backend_for("cpu")


def votes(table):
    """Evidence from a dict of (row, image); 0 for the rest."""
    return lambda row, images: np.array([table.get((row, int(image)), 0) for image in images])


# --- shortlists --------------------------------------------------------------------------------------------------


def test_a_shortlist_by_hand():
    scores = np.array([[9.0, 1.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0]])
    found = shortlist_images(scores, (np.array([0, 1, 1, 1, 1]), np.array([0, 0, 1, 2, 3])), 4)
    assert found.tolist() == [[2, 3, 1, NO_ANSWER], [NO_ANSWER] * 4]
    assert shortlist_images(np.array([[9.0, 1.0, 3.0]]), None, 2).tolist() == [[0, 2]]


def test_ties_of_a_shortlist_go_to_the_smaller_index():
    assert shortlist_images(np.array([[1.0, 2.0, 2.0, 0.0]]), None, 3).tolist() == [[1, 2, 0]]


# --- the verdict -------------------------------------------------------------------------------------------------


def test_the_first_half_of_a_ranking_is_compared_with_the_second():
    deep = np.array([[8, 7, 6, 5, 4, 3]])

    def favoured(table, ranked=deep):
        return judge_admission(ranked, votes(table), "x").favours_candidates

    assert favoured({(0, 6): 1}) == 1  # the third of six
    assert favoured({(0, 5): 1}) == 0  # the fourth
    assert favoured({(0, 8): 2, (0, 3): 1}) == 1
    assert favoured({(0, 8): 1, (0, 3): 1}) == 0  # as much is not more
    assert favoured({(0, 6): 1}, deep[:, :5]) == 1  # of five the third is in the first half
    assert favoured({(0, 6): 1}, np.array([[8, 7, 6, NO_ANSWER, NO_ANSWER, NO_ANSWER]])) == 0  # of three it is not


@pytest.mark.parametrize(("favoured", "photos", "admitted"), [
    (40, 64, False), (41, 64, True), (60, 100, False), (61, 100, True), (5, 5, True), (4, 4, False), (0, 99, False),
])  # fmt: skip
def test_clearly_more_than_half_of_the_photos_admit_it(favoured, photos, admitted):
    """More than ½ + 1/√photos: 40 of 64 and 60 of 100 are exactly that."""
    ranked = np.tile([0, 1, 2, 3], (photos, 1))
    found = judge_admission(ranked, votes({(row, 0 if row < favoured else 2): 1 for row in range(photos)}), "photos")
    assert (found.favours_candidates, found.photos) == (favoured / photos, photos)
    assert found.needed == pytest.approx(0.5 + photos**-0.5)
    assert found.admitted is admitted
    state = "on: in" if admitted else "off: in only"
    assert found.reason.startswith(f"{state} {favoured} of {photos} photos, top-ranked images match better")


def test_what_is_written():
    found = judge_admission(np.tile(np.arange(4), (100, 1)), votes({(row, 0): 1 for row in range(75)}), "self-tests")
    assert json.loads(json.dumps(found.to_dict())) == {
        "admitted": True,
        "favours_candidates": 0.75,
        "needed": 0.6,
        "photos": 100,
        "usual_evidence": 1.0,
        "reason": "on: in 75 of 100 self-tests, top-ranked images match better geometrically than lower-ranked ones "
        "(60 % required)",
    }


def test_evidence_that_is_noise_is_seldom_admitted():
    ranked = np.tile(np.arange(40), (64, 1))
    noise = [np.random.default_rng(seed).gamma(1.0, size=(64, 40)) for seed in range(40)]
    admitted = [judge_admission(ranked, lambda row, images, e=e: e[row, images], "photos").admitted for e in noise]
    assert sum(admitted) <= 3


def test_photos_that_cannot_be_compared_do_not_count():
    nothing = judge_admission(np.full((3, 2), NO_ANSWER), votes({}), "photos")
    assert (nothing.favours_candidates, nothing.photos, nothing.admitted) == (0, 0, False)
    assert nothing.usual_evidence is None
    assert "none of the photos has enough ranked images" in nothing.reason
    one = judge_admission(np.array([[4, NO_ANSWER], [4, 5]]), votes({(1, 4): 1}), "photos")
    assert (one.favours_candidates, one.photos) == (1, 1)


def test_evenly_spaced():
    assert space_evenly(5, 10).tolist() == [0, 1, 2, 3, 4]
    assert space_evenly(9, 3).tolist() == [0, 4, 8]
    assert len(space_evenly(5000, 256)) == 256


# --- with a head -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def head():
    return tfa.fit(world(), HeadSpec(words=4), dtype="float64")


def test_each_pair_is_compared_once_and_never_with_itself(head):
    seen = []

    def evidence(image, others):
        seen.extend((image, int(other)) for other in others)
        return np.ones(len(others))

    found = judge_admission_on_database(head, evidence, RerankSpec(max_pseudo=7, candidates=2), CPU)
    assert found.photos == 7
    assert len(seen) == 7 * 23  # 20 against 20, or all there are, whatever is verified later
    assert len(seen) == len(set(seen))
    assert all(image != other for image, other in seen)
    assert {image for image, _ in seen} == set(space_evenly(24, 7).tolist())


def test_calibrated_scores_are_judged_with_their_bias():
    """The top-1 of a pseudo query is that of the head's own scores, itself hidden."""
    tokens = world(images=18, seed=4)
    base = tfa.fit(tokens, HeadSpec(words=4), dtype="float64")
    head = tfa.calibrate(base, seen_again(tokens), score=True)
    assert head.scorers[0].bias.any()
    tops = {}

    def evidence(image, others):
        tops.setdefault(image, int(others[0]))
        return np.zeros(len(others))

    judge_admission_on_database(head, evidence, RerankSpec(), CPU)
    _, mask = final_scores(head.used(head.decisions, 0), head.decisions, None, CPU)
    scores = head.scores(tokens, 0)
    scores[mask.rows, mask.columns] = -np.inf
    assert tops == dict(enumerate(scores.argmax(axis=1).tolist()))


def test_target_photos_decide_for_a_calibration(head):
    photos = seen_again(world())
    ranked = np.argsort(-head.scores(photos, 0), axis=1, kind="stable")
    found = judge_admission_on_target(head, photos, lambda row, images: images == row)
    own = np.mean([row in ranked[row, :12] for row in range(24)])  # the place itself is in the better half
    assert (found.photos, found.favours_candidates) == (24, own)
    assert found.admitted
    assert "24 calibration photos" in found.reason
    assert not judge_admission_on_target(head, photos, lambda row, images: images != row).admitted
