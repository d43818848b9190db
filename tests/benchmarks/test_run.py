"""The first loop on a small folder of pictures: records, their order, interruption, repetition."""

import copy
import dataclasses

import numpy as np
import pytest

from tests.benchmarks.rigged import EXTRA, PLACES, Rigged, only_record, rigged
from tfa.errors import BadSpec
from tfa_bench.heads.catalogue import head_cards
from tfa_bench.protocols import FULL_QUERY, NO_CALIBRATION, ONLINE, ONLINE_SHUFFLED, budget, cross_fit
from tfa_bench.run import identify, run_heads
from tfa_bench.scores import score


def test_rankings_of_every_query_replica_and_split(bench, tmp_path):
    [ran] = run_heads(bench, [rigged(budget(3, splits=4))], tmp_path / "results", depth=5)
    assert ran.outcome == "written"
    record, truth = only_record(tmp_path / "results")
    assert record.rankings.shape == (PLACES, 4, 2, 5)
    for split in range(4):
        drawn = np.random.default_rng(split).permutation(PLACES)[:3]
        [fold] = record.folds[split]
        assert fold["calibration"].tolist() == drawn.tolist() == fold["decisions"]["seen"]
        rest = np.setdiff1d(np.arange(PLACES), drawn)
        assert record.evaluated(split).tolist() == rest.tolist()
        assert (record.rankings[rest, split, 0, 0] == rest).all()
        assert (record.rankings[rest, split, 1, 0] == PLACES + EXTRA - 1).all()
        assert (record.rankings[rest, split, 1, 1] == rest).all()
        assert (record.rankings[drawn, split] == record.nothing).all()
        assert np.isnan(record.confidence[drawn, split]).all()
        assert (record.confidence[rest, split] > 0).all()
    assert truth.positives[3].tolist() == [3]
    assert score(record, truth, ks=(1, 2)).recalls[1].mean == pytest.approx(0.5)
    assert score(record, truth, ks=(1, 2)).recalls[2].mean == 1


def test_a_dataset_is_known_before_it_is_encoded(bench):
    known = identify(bench.dataset, bench.encoder)
    assert (known.images, known.truth.fingerprint, known.spec) == (bench.images, bench.truth.fingerprint, bench.spec)


def test_a_record_made_before_patches_could_be_small_is_kept(bench, tmp_path):
    old, new = (
        dataclasses.replace(rigged(NO_CALIBRATION), settings={"verification": {"always": False, **more}})
        for more in ({}, {"patches": "full"})
    )
    assert [run_heads(bench, [card], tmp_path)[0].outcome for card in (old, new)] == ["written", "kept"]
    small = dataclasses.replace(old, settings={"verification": {"always": False, "patches": "small"}})
    with pytest.raises(BadSpec, match="made from other inputs"):
        run_heads(bench, [small], tmp_path)


def test_depth_is_at_most_the_database(bench, tmp_path):
    run_heads(bench, [rigged(NO_CALIBRATION)], tmp_path / "results", depth=100)
    assert only_record(tmp_path / "results")[0].depth == PLACES + EXTRA


def test_cross_fit_evaluates_each_query_with_the_other_half(bench, tmp_path):
    run_heads(bench, [rigged(cross_fit())], tmp_path / "results")
    record, _ = only_record(tmp_path / "results")
    even, odd = record.folds[0]
    assert even["decisions"]["seen"] == [1, 3, 5, 7, 9]
    assert odd["evaluated"].tolist() == [1, 3, 5, 7, 9]
    assert record.evaluated(0).tolist() == list(range(PLACES))


class Counting(Rigged):
    """Answers the n-th query it is given with image n, whatever it shows."""

    def in_order(self, queries, replica):
        for number in range(len(queries)):
            yield np.eye(self.images)[[number]], None

    def scores(self, queries, replica):
        return np.eye(self.images)[: len(queries)]


def test_online_queries_come_in_their_order_and_every_replica_begins_anew(bench, tmp_path):
    for plan, order in ((ONLINE, np.arange(PLACES)), (ONLINE_SHUFFLED, np.random.default_rng(0).permutation(PLACES))):
        card = dataclasses.replace(rigged(plan), fit=lambda database, shared: Counting(len(database)))
        run_heads(bench, [card], tmp_path / plan.name)
        record, _ = only_record(tmp_path / plan.name)
        assert record.plan["kind"] == "online"
        for replica in (0, 1):
            assert record.rankings[order, 0, replica, 0].tolist() == list(range(PLACES))
        assert record.folds[0][0]["evaluated"].tolist() == order.tolist()
        assert record.sample.scores.argmax(axis=1).tolist() == np.argsort(order).tolist()


def test_a_head_that_follows_a_drive_is_skipped_where_there_is_none(bench, tmp_path):
    card = dataclasses.replace(rigged(ONLINE), needs_order=True)
    [ran] = run_heads(bench, [card], tmp_path / "results")
    assert ran.outcome == "skipped"
    assert "driving order" in ran.reason
    drive = dataclasses.replace(bench, dataset=ordered(bench.dataset))
    assert run_heads(drive, [card], tmp_path / "results")[0].outcome == "written"


def test_a_head_of_two_depths_is_skipped_under_an_encoder_that_reads_one_block(bench, tmp_path):
    [ran] = run_heads(bench, [dataclasses.replace(rigged(NO_CALIBRATION), needs_depths=True)], tmp_path / "results")
    assert (ran.outcome, ran.path) == ("skipped", None)
    assert "reads one block" in ran.reason


def ordered(dataset):
    return dataclasses.replace(dataset, card=dataclasses.replace(dataset.card, ordered=True))


def test_full_query_sees_everyone(bench, tmp_path):
    run_heads(bench, [rigged(FULL_QUERY)], tmp_path / "results")
    record, _ = only_record(tmp_path / "results")
    assert record.folds[0][0]["decisions"]["seen"] == list(range(PLACES))


def test_a_record_says_what_it_was_made_of(bench, tmp_path):
    run_heads(bench, [rigged(budget(3, splits=2))], tmp_path / "results", depth=4)
    record, truth = only_record(tmp_path / "results")
    assert record.encoder == {"id": "fake@28", "fingerprint": bench.encoder.fingerprint, "grid": [4, 4]}
    assert record.dataset["fingerprint"] == truth.fingerprint
    assert record.head["settings"] == {"skill": 2}
    assert record.head["spec"]["words"] == 64
    assert record.plan["n"] == 3
    assert record.seeds == (0, 1)
    assert {"tfa", "numpy", "python"} <= set(record.versions)
    assert record.hardware["cores"] >= 1
    assert {"fit", "calibrate", "query"} == set(record.timings)
    assert record.sample.scores.shape == (PLACES, PLACES + EXTRA)


def test_two_depths_are_for_second_order_heads(bench, tmp_path):
    encoder = copy.copy(bench.encoder)
    encoder.depths = 2
    with pytest.raises(BadSpec, match="only second-order heads use two depths, not anyloc"):
        run_heads(dataclasses.replace(bench, encoder=encoder), head_cards(["anyloc"]), tmp_path)
