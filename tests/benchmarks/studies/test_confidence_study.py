"""What confidence is worth on datasets left out: the fit, one dataset by hand, and made-up towns."""

from __future__ import annotations

import json

import numpy as np
import pytest

from studies.confidence import (
    COLUMNS,
    LOOK_COLUMNS,
    ConfidenceStudy,
    Looks,
    Sample,
    Samples,
    collect,
    fit_constants,
    frame_rows,
    in_words,
    left_out,
    look_rows,
    share_answered,
    studied,
    study_confidence,
    table_rows,
)
from tests.benchmarks.fields import town
from tests.fakes import FakeEncoder
from tfa.core.progress import SilentProgress
from tfa.errors import BadSpec
from tfa.maps.confidence import Constants, Features
from tfa.method.described_queries import DescribedQueries
from tfa.types import HeadSpec
from tfa_bench.heads.contract import Photos
from tfa_bench.records import Truth
from tfa_bench.run import Bench

pytestmark = pytest.mark.slow


def drawn(by: Constants, count=4000, seed=0, shift=0.0, verified=True):
    """Answers that are right with the probability that these constants say."""
    rng = np.random.default_rng(seed)
    place, agreement = rng.normal(shift, 2, count), rng.uniform(-1, 1, count)
    features = Features(place, agreement, np.ones(count), np.full(count, verified))
    right = rng.random(count) < features.confidence(by, by)
    return Sample(features, right, np.zeros(count, np.int64))


def test_the_fit_finds_the_constants_that_made_the_answers():
    by = Constants(0.5, -0.6, 0.7, 1.2)
    found = fit_constants([drawn(by, seed=s, shift=s - 1) for s in range(3)], [], 0.5)
    assert found.temperature == 0.5
    assert (found.offset, found.per_place) == (
        pytest.approx(-0.6, abs=0.15),
        pytest.approx(0.7, abs=0.15),
    )  # a little is shrunk
    assert found.per_agreement == pytest.approx(1.2, abs=0.35)


def test_a_lead_counts_as_far_as_it_says_something():
    by, rng = Constants(0.5, -1.0, 0.7, 0.0, 1.5), np.random.default_rng(5)
    features = Features(rng.normal(0, 2, 9000), rng.uniform(-1, 1, 9000), rng.uniform(-1, 4, 9000), np.ones(9000, bool))
    right = rng.random(9000) < features.confidence(by, by)
    found = fit_constants([Sample(features, right, np.zeros(9000, np.int64))], [], 0.5)
    assert found.per_lead == pytest.approx(1.5, abs=0.3)


def test_photos_outside_the_map_lower_the_confidence():
    by = Constants(0.5, -0.6, 0.7, 1.2)
    own = [drawn(by, seed=s) for s in range(3)]
    outside = drawn(Constants(0.5, -99.0, 0.0, 0.0), seed=9)
    assert not outside.right.any()
    assert fit_constants(own, [outside], 0.5).offset < fit_constants(own, [], 0.5).offset


def test_a_factor_that_speaks_against_an_answer_is_none():
    against = drawn(Constants(0.5, 0.0, -0.8, 1.0))
    assert fit_constants([against], [], 0.5).per_place == 0.0


def test_one_dataset_left_out_by_hand():
    features = Features(np.array([9.0, -9, 9, 9]), np.zeros(4), np.array([1.0, 1, 0, 1]), np.ones(4, bool))
    own = Sample(features, np.array([True, False, True, False]), np.array([0, 0, 1, 1]))
    by = Constants(0.5, 0.0, 1.0, 1.0)
    row = left_out("town", "alone", True, own, None, by)
    high, low = 1 / (1 + np.exp(-9)), 1 / (1 + np.exp(9))
    assert row.recall == 0.5
    assert row.expected == pytest.approx(((high + low) / 2 + high) / 2)
    assert (row.sure, row.sure_right) == (0.5, 0.5)  # the first and the last: the third does not lead
    assert (row.outside_sure, row.outside_expected) == (None, None)
    assert row.holds == (row.low <= 0.5 <= row.high)
    foreign = Sample(features, np.zeros(4, bool), own.rounds)
    assert left_out("town", "alone", True, own, foreign, by).outside_sure == 0.5


def test_a_dataset_has_no_part_in_the_constants_that_judge_it():
    by, other = Constants(0.5, -0.6, 0.7, 1.2), Constants(0.5, 3.0, 0.1, 0.1)
    looks = {"alone": Looks([0.1, None], [None, None], [False, True], [False, False])}
    made = {
        name: Samples({("alone", kind): drawn(one, seed=s, verified=kind) for kind in (True, False)}, {}, looks)
        for s, (name, one) in enumerate({"a": by, "b": by, "odd": other}.items())
    }
    study = studied(made, "encoder")
    odd = next(row for row in study.rows if row.dataset == "odd" and row.verified)
    expected = fit_constants([made[name].within_map["alone", True] for name in ("a", "b")], [], 0.5)
    assert odd.expected == pytest.approx(
        made["odd"].within_map["alone", True].features.confidence(expected, expected).mean()
    )
    apart = [row.expected - row.recall for row in study.rows if row.verified]
    assert study.summary(True)["most_apart"] == pytest.approx(max(map(abs, apart)))
    assert study.summary(True)["root_mean_square"] == pytest.approx(np.sqrt(np.mean(np.square(apart))))
    assert f"{100 * np.mean(np.abs(apart)):.1f} points apart on average" in in_words(study, True)
    assert look_rows(study)[0] == ["a", "alone", "2", "0.10", "–", "50 %", "0 %"]


# --- made-up towns ---------------------------------------------------------------------------------------------------


def bench(name, seed, places):
    database, queries = town(places, seed=seed)
    names = [[f"{i:02}.png" for i in range(len(t))] for t in (database, queries)]
    positives = [np.array([2 * place]) for place in range(places)]
    positives[3] = np.array([], np.int64)  # a query that shows no place of the map does not count
    truth = Truth(name, name, tuple(names[0]), tuple(names[1]), tuple(positives), {}, "by hand")
    return Bench(None, truth, FakeEncoder(), Photos(database), Photos(DescribedQueries(queries)), "", HeadSpec(words=4))


@pytest.fixture(scope="module")
def study():
    towns = [bench("small", 0, 20), bench("large", 1, 70), bench("third", 2, 24)]
    return study_confidence(towns, "cpu", SilentProgress())


def test_every_dataset_and_way_is_judged(study):
    asked = [(row.dataset, row.way) for row in study.rows if row.verified]
    assert asked == [
        ("small", "alone"), ("small", "online"),  # 20 queries are too few to calibrate with 64
        ("large", "alone"), ("large", "online"), ("large", "c64"), ("third", "alone"), ("third", "online"),
    ]  # fmt: skip
    assert [(row.dataset, row.way) for row in study.rows if not row.verified] == asked
    for row in study.rows:
        assert 0 <= row.low <= row.expected <= row.high <= 1
        assert row.outside_sure is not None
        assert row.verified or row.sure == 0
    alone = [row for row in study.rows if row.way == "alone"]
    assert all(row.recall > 0.9 for row in alone if row.verified)  # where patches lie tells the two images apart
    assert all(row.outside_expected < 0.2 < 0.9 < row.expected for row in alone if row.verified)


def test_strangers_are_looked_at_beside_own_photos(study):
    assert {name: sorted(looks) for name, looks in study.looks.items()} == {
        name: sorted(
            [*more, "alone", "online", *(f"outside {n}, {way}" for n in (1, 2) for way in ("alone", "online"))]
        )
        for name, more in (("small", []), ("large", ["c64"]), ("third", []))
    }
    own, strange = (study.looks["large"][kind].evidence[0] for kind in ("alone", "outside 1, alone"))
    assert strange < own
    assert study.count_outside("alone")[1] == 6
    assert not any(study.looks["large"]["alone"].outside)


def test_frames_of_a_drive_are_followed():
    benches = [bench("small", 0, 20), bench("third", 2, 24)]
    strangers = [one.queries.tokens for one in benches[1:]]
    samples = collect(
        benches[0].database.tokens, benches[0].queries.tokens, benches[0].truth.positives, strangers, HeadSpec(words=4),
        "cpu", SilentProgress(), drive=True,
    )  # fmt: skip
    frames = samples.frames
    assert 0 <= frames.outside_sure < frames.sure
    assert frames.sure_right <= frames.sure_beside
    study = studied({"small": samples, "other": samples}, "encoder")
    assert frame_rows(study)[0][:2] == ["small", f"{100 * frames.recall:.1f}"]


def test_tables_and_json(study):
    written = json.loads(json.dumps(study.to_dict()))
    assert written["summary"]["verified"] == study.summary(True)
    assert ConfidenceStudy.from_dict(written) == study
    assert {len(row) for row in table_rows(study, True)} == {len(COLUMNS)}
    assert {len(row) for row in look_rows(study)} == {len(LOOK_COLUMNS)}
    assert set(study.to_dict()["in_use"]["verified"]) == {
        *("temperature", "offset", "per_place", "per_agreement", "per_lead")
    }


def test_one_dataset_is_not_enough():
    with pytest.raises(BadSpec, match="at least twice"):
        study_confidence([bench("small", 0, 8)], "cpu", SilentProgress())


def test_the_share_answered_at_a_precision():
    right = np.array([False, True, True, True, False, True])
    assert share_answered(np.array([0.1, 0.9, 0.8, 0.7, 0.2, 0.3]), right, 0.99) == pytest.approx(4 / 6)
    assert share_answered(np.array([0.1, 0.9, 0.8, 0.7, 0.2, 0.3]), right, 0.8) == pytest.approx(5 / 6)
    assert share_answered(np.array([0.9, 0.1]), np.array([False, True]), 0.99) == 0
