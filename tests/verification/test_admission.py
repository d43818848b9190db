"""Is verification used? Hand-made rankings, and real heads against their own scores."""

import numpy as np
import pytest

import tfa
from tests.worlds import seen_again, world
from tfa.base.backend import backend_for
from tfa.base.config import HeadSpec, VerifySpec
from tfa.method.evidence.rows import NOBODY
from tfa.method.head import final_scores
from tfa.verification.admission import Shortlist, evenly_spaced, judge, judge_on_database, judge_on_target, shortlist

CPU = backend_for("cpu")
MUCH = 10_000  # evidence that no score outweighs


def ranking(*rows):
    """Images of each row, best first, all of nearly the same score."""
    images = np.array(rows)
    return Shortlist(images, np.tile(-0.001 * np.arange(images.shape[1]), (len(images), 1)))


def votes(table):
    """Evidence from a dict of (row, image); 0 for the rest."""
    return lambda row, images: np.array([table.get((row, int(image)), 0) for image in images])


# --- shortlists --------------------------------------------------------------------------------------------------


def test_a_shortlist_by_hand():
    scores = np.array([[9.0, 1.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0]])
    found = shortlist(scores, (np.array([0, 1, 1, 1, 1]), np.array([0, 0, 1, 2, 3])), 4)
    assert found.images.tolist() == [[2, 3, 1, NOBODY], [NOBODY] * 4]
    np.testing.assert_allclose(found.standardised[0, :3], np.array([1, 0, -1]) / np.sqrt(2 / 3))
    images, z = found.row(0, 2)
    assert (images.tolist(), len(z)) == ([2, 3], 2)
    assert found.row(1, 4)[0].tolist() == []


def test_ties_of_a_shortlist_go_to_the_smaller_index():
    assert shortlist(np.array([[1.0, 2.0, 2.0, 0.0]]), None, 3).images.tolist() == [[1, 2, 0]]


# --- the verdict -------------------------------------------------------------------------------------------------


def unlike(image, others):
    """Images of the map that have nothing in common."""
    return np.zeros(len(others))


def favouring(table):
    """The evidence of `table`, and a little for the first half of each row, so that candidates are favoured."""
    return lambda row, images: votes(table)(row, images) + 0.001 * (np.arange(len(images)) < (len(images) + 1) // 2)


def test_verification_that_finds_more_of_the_map_is_admitted():
    hub = ranking([0, 1, 2, 8, 9, 7], [0, 2, 1, 7, 8, 9], [0, 1, 2, 8, 7, 9])
    own = votes({(0, 1): MUCH, (1, 2): MUCH, (2, 0): MUCH})
    found = judge([hub] * 3, own, "pseudo queries", candidates=3)
    assert (found.without.support, found.verified.support, found.changed_answers, found.favours_candidates) == (
        1,
        3,
        2,
        1,
    )
    assert found.admitted
    assert found.reason.startswith("used: with it 3.0 distinct images, without 1.0, over 3 pseudo queries of which 2")
    written = found.to_dict()
    assert written["with"] == {"support": 3.0, "agreement": [1.0, 1.0, 1.0]}
    assert (written["admitted"], written["photos"], written["without"]["support"]) == (True, 3, 1.0)
    assert (written["changed_answers"], written["favours_candidates"]) == (2, 1)


def rows_to_hub(count, changing):
    """As many photos, each with an answer of its own; of some, evidence prefers the one image 99."""
    lists = [ranking(*([row, 99, 50 + row, 70 + row] for row in range(count)))] * 3
    return lists, favouring({(row, 99): MUCH for row in range(changing)})


def test_verification_that_runs_into_a_hub_is_not():
    found = judge(*rows_to_hub(16, 9), "pseudo queries", candidates=2)
    assert (found.without.support, found.verified.support, found.changed_answers) == (16, 8, 9)
    assert not found.admitted
    assert "less of the map than chance explains" in found.reason
    # Losing no more than the root of the changed answers is what chance does.
    few = judge(*rows_to_hub(16, 2), "pseudo queries", candidates=2)
    assert (few.verified.support, few.changed_answers) == (15, 2)
    assert few.admitted


def test_evidence_that_is_noise_is_not_admitted_however_it_spreads_the_answers():
    hub = ranking(*([0, 1 + row, 30, 40] for row in range(20)))
    found = judge([hub] * 3, lambda row, images: MUCH * (images > 0) * (1 + (images == 40)), "photos", candidates=2)
    assert (found.without.support, found.verified.support, found.favours_candidates) == (1, 20, 0)
    assert not found.admitted
    assert "only 0% have more evidence among their candidates than after them" in found.reason
    half = judge([hub] * 3, lambda row, images: images * (1.0 if row % 2 else -0.0), "photos", candidates=2)
    assert not half.admitted


def test_verification_that_agrees_less_in_every_pair_is_not():
    # The same top-1 in all constructions; verification has other candidates in each and answers unlike images.
    lists = [ranking([0, 1 + s, 20, 21], [0, 4 + s, 20, 21]) for s in range(3)]
    table = {(row, image): MUCH for row in range(2) for image in range(1, 7)}
    found = judge(lists, votes(table), "calibration photos", candidates=2)
    assert found.verified.support > found.without.support
    assert found.verified.agreement == (0, 0, 0)
    assert not found.admitted
    assert "agree less in every pair" in found.reason


def test_only_candidates_are_verified_and_of_equals_the_head_decides():
    third = votes({(0, 2): MUCH, (1, 4): MUCH})
    lists = [ranking([0, 1, 2], [0, 1, 4])] * 3
    assert [judge(lists, third, "x", candidates=count).verified.support for count in (2, 3)] == [1, 2]
    level = Shortlist(np.array([[4, 3], [4, 5]]), np.zeros((2, 2)))
    assert judge([level] * 3, lambda row, images: np.full(len(images), 7), "x", candidates=2).verified.support == 1


def test_rows_without_an_answer_count_for_nothing():
    found = judge([ranking([NOBODY, NOBODY])] * 3, votes({}), "x", candidates=2)
    assert (found.without.support, found.favours_candidates, found.admitted) == (0, 0, False)


def test_candidates_are_compared_with_as_many_images_after_them():
    deep = ranking([8, 7, 6, 5, 4, 3])

    def favoured(table, candidates):
        return judge([deep] * 3, votes(table), "x", candidates=candidates).favours_candidates

    assert favoured({(0, 6): 1}, 2) == 0  # rank 3 is after the candidates
    assert favoured({(0, 7): 1, (0, 3): 5}, 2) == 1  # rank 6 is not looked at
    assert favoured({(0, 6): 1}, 5) == 1  # of six images the second half


def test_evenly_spaced():
    assert evenly_spaced(5, 10).tolist() == [0, 1, 2, 3, 4]
    assert evenly_spaced(9, 3).tolist() == [0, 4, 8]
    assert len(evenly_spaced(5000, 256)) == 256


# --- with a head -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def head():
    return tfa.fit(world(), HeadSpec(words=4), dtype="float64")


def decided_name(head):
    made = head.decisions
    return f"{made.assignment}/{made.carrier}" + ("+cls" if made.admit_cls else "")


def test_without_verification_the_head_is_as_its_own_evidence_says(head):
    found = judge_on_database(head, unlike, VerifySpec(), CPU)
    known = head.evidence.candidates.get(decided_name(head))
    assert known is not None
    assert found.photos == 24
    assert found.without.support == known.support
    assert found.without.agreement == known.agreement
    assert (found.changed_answers, found.favours_candidates, found.admitted) == (0, 0, False)


def test_each_pair_is_compared_once_and_never_with_itself(head):
    seen = []

    def evidence(image, others):
        seen.extend((image, int(other)) for other in others)
        return np.ones(len(others))

    found = judge_on_database(head, evidence, VerifySpec(max_pseudo=7), CPU)
    assert found.photos == 7
    assert len(seen) == len(set(seen))
    assert all(image != other for image, other in seen)
    assert {image for image, _ in seen} == set(evenly_spaced(24, 7).tolist())


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

    judge_on_database(head, evidence, VerifySpec(), CPU)
    _, mask = final_scores(head.used(head.decisions, 0), head.decisions, None, CPU)
    scores = head.scores(tokens, 0)
    scores[mask.rows, mask.columns] = -np.inf
    assert tops == dict(enumerate(scores.argmax(axis=1).tolist()))


def test_target_photos_decide_for_a_calibration(head):
    photos = seen_again(world())
    found = judge_on_target(head, photos, lambda row, images: (images == row) * MUCH)
    assert found.photos == 24
    tops = np.stack([head.scores(photos, s).argmax(axis=1) for s in range(3)])
    assert found.without.support == np.mean([len(set(row)) for row in tops.tolist()])
    assert found.verified.support == pytest.approx(24, abs=2)  # each photo's own place is nearly always a candidate
    assert "24 calibration photos" in found.reason
