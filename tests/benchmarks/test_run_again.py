"""Runs with existing records: reused, compared, recomputed, resumed."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.rigged import PLACES, Rigged, numbers_of, only_record, rigged
from tfa.errors import BadSpec
from tfa.evaluate.judgement import PROBABILITY, Z_SCORE
from tfa_bench import provenance
from tfa_bench.heads.catalogue import head_card
from tfa_bench.heads.contract import Photos
from tfa_bench.protocols import NO_CALIBRATION, budget
from tfa_bench.provenance import revisions
from tfa_bench.rank import in_few_bits
from tfa_bench.records import Record, decode_npz, find_records
from tfa_bench.run import run_heads
from tfa_bench.scores import score


def test_what_exists_is_kept_and_nothing_is_fitted(bench, tmp_path):
    log = []
    for expected in ("written", "kept"):
        [ran] = run_heads(bench, [rigged(budget(3), log)], tmp_path / "results")
        assert ran.outcome == expected
    assert log == ["fit"]


@pytest.mark.slow
def test_two_runs_give_identical_records_but_for_timings(bench, tmp_path):
    cards = [head_card(name) for name in ("tfa", "tfa-c4", "dual-c4", "hard-partial", "tfa-no-cls")]
    contents = []
    for folder in ("one", "two"):
        run_heads(bench, cards, tmp_path / folder)
        read = [decode_npz(path.read_bytes()) for path in find_records(tmp_path / folder)]
        assert len(read) == len(cards)
        assert all(facts.pop("timings") for facts, _ in read)
        contents.append([(facts, {name: array.tobytes() for name, array in arrays.items()}) for facts, arrays in read])
    assert contents[0] == contents[1]


def test_again_compares_and_changes_nothing(bench, tmp_path):
    run_heads(bench, [rigged(budget(3))], tmp_path / "results")
    [path] = find_records(tmp_path / "results")
    before = path.read_bytes()
    [ran] = run_heads(bench, [rigged(budget(3))], tmp_path / "results", again=True)
    assert ran.outcome == "same"
    assert path.read_bytes() == before


def test_a_title_that_was_reworded_renews_nothing(bench, tmp_path):
    old = dataclasses.replace(rigged(budget(3)), title="Rigged, centred", note="centres normalised")
    run_heads(bench, [old], tmp_path / "results")
    reworded = dataclasses.replace(old, title="Rigged, centered", note="centers normalized")
    assert [ran.outcome for ran in run_heads(bench, [reworded], tmp_path / "results")] == ["kept"]
    assert [ran.outcome for ran in run_heads(bench, [reworded], tmp_path / "results", again=True)] == ["same"]
    record, truth = only_record(tmp_path / "results")
    assert (score(record, truth).title, score(record, truth).note) == (reworded.title, reworded.note)


def test_again_tells_answers_that_changed(bench, tmp_path):
    run_heads(bench, [rigged(NO_CALIBRATION)], tmp_path / "results")

    class Other(Rigged):
        def scores(self, queries, replica):
            return -super().scores(queries, replica)

    other = dataclasses.replace(rigged(NO_CALIBRATION), fit=lambda database, shared: Other(len(database)))
    with pytest.raises(BadSpec, match="is not reproducible"):
        run_heads(bench, [other], tmp_path / "results", again=True)


def test_a_record_of_another_revision_is_made_again(bench, tmp_path, monkeypatch):
    results, card = tmp_path / "results", rigged(budget(3))
    run_heads(bench, [card], results, depth=5)
    before, _ = only_record(results)
    assert before.algorithm == {stage: provenance.ALGORITHM[stage] for stage in provenance.METHOD}
    monkeypatch.setattr(provenance, "ALGORITHM", {**provenance.ALGORITHM, "kmeans": 99})
    [ran] = run_heads(bench, [card], results, depth=4)
    assert ran.outcome == "renewed"
    after, _ = only_record(results)
    assert (after.algorithm["kmeans"], after.depth) == (99, 4)
    assert after.identity != before.identity
    assert not list(results.rglob(".*"))
    [ran] = run_heads(bench, [card], results, depth=4)
    assert ran.outcome == "kept"


def test_a_record_without_a_revision_is_made_again(bench, tmp_path):
    results, card = tmp_path / "results", rigged(NO_CALIBRATION)
    run_heads(bench, [card], results)
    [path] = find_records(results)
    dataclasses.replace(Record.read(path), algorithm={}).write(path, replace=True)
    [ran] = run_heads(bench, [card], results)
    assert ran.outcome == "renewed"
    assert Record.read(path).algorithm


def test_a_revision_of_a_stage_that_a_head_does_not_run_through_leaves_its_record(bench, tmp_path, monkeypatch):
    run_heads(bench, [rigged(NO_CALIBRATION)], tmp_path / "results")
    monkeypatch.setattr(provenance, "ALGORITHM", {**provenance.ALGORITHM, "verification": 99})
    assert run_heads(bench, [rigged(NO_CALIBRATION)], tmp_path / "results")[0].outcome == "kept"
    assert "verification" in revisions(head_card("tfa-c64-v").stages)
    assert revisions(head_card("anyloc").stages).keys() == {"kmeans", "residuals", "peers"}


def test_a_deeper_record_is_kept(bench, tmp_path):
    run_heads(bench, [rigged(NO_CALIBRATION)], tmp_path / "results", depth=5)
    assert run_heads(bench, [rigged(NO_CALIBRATION)], tmp_path / "results", depth=3)[0].outcome == "kept"
    assert run_heads(bench, [rigged(NO_CALIBRATION)], tmp_path / "results", depth=3, again=True)[0].outcome == "same"
    assert only_record(tmp_path / "results")[0].depth == 5


def test_a_record_names_what_its_confidences_are(bench, tmp_path):
    class Sure(Rigged):
        def scores_and_confidence(self, queries, replica):
            return self.scores(queries, replica), np.full(len(queries), 0.5)

    sure = dataclasses.replace(rigged(NO_CALIBRATION, name="sure"), fit=lambda database, shared: Sure(len(database)))
    run_heads(bench, [rigged(NO_CALIBRATION), sure], tmp_path / "results")
    kinds = {path.head: Record.read(path).confidence_kinds for path in find_records(tmp_path / "results")}
    assert kinds == {"rigged": (Z_SCORE,), "sure": (PROBABILITY,)}


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=0), min_size=1, max_size=30))
def test_confidences_in_few_bits_keep_their_order(values):
    confidence = np.array([[value, values[0]] for value in values], np.float32)
    confidence[0, 0] = np.nan
    kept = in_few_bits(confidence)
    assert np.isnan(kept[0, 0])
    assert not np.isnan(kept[1:]).any()
    for before, after in zip(confidence.T, kept.T, strict=True):
        assert (np.sign(before[:, None] - before) == np.sign(after[:, None] - after))[1:, 1:].all()
    close = np.abs(kept[1:] - confidence[1:]) <= np.maximum(confidence[1:] / 64, 1e-37)
    assert close.all()
    assert np.array_equal(in_few_bits(kept), kept, equal_nan=True)


def test_a_record_of_other_inputs_is_refused_by_name(bench, tmp_path):
    run_heads(bench, [rigged(NO_CALIBRATION)], tmp_path / "results", depth=5)
    with pytest.raises(BadSpec, match=r"other inputs \(depth\).*never overwritten"):
        run_heads(bench, [rigged(NO_CALIBRATION)], tmp_path / "results", depth=6)


def test_records_of_another_copy_are_refused(bench, dataset, tmp_path):
    run_heads(bench, [rigged(NO_CALIBRATION)], tmp_path / "results")
    moved = dataclasses.replace(bench, truth=dataclasses.replace(bench.truth, positives=bench.truth.positives[::-1]))
    with pytest.raises(BadSpec, match="another copy of town"):
        run_heads(moved, [rigged(NO_CALIBRATION)], tmp_path / "results")


class Stops(Rigged):
    """Gives up after two splits."""

    made = 0

    def calibrate(self, target):
        Stops.made += 1
        if Stops.made > 2:
            raise KeyboardInterrupt
        return Rigged(self.images, numbers_of(target))


def test_an_interrupted_run_continues_where_it_stopped(bench, tmp_path):
    Stops.made = 0
    card = rigged(budget(3, splits=4))
    stopping = dataclasses.replace(card, fit=lambda database, shared: Stops(len(database)))
    with pytest.raises(KeyboardInterrupt):
        run_heads(bench, [rigged(NO_CALIBRATION, name="first"), stopping], tmp_path / "results")
    assert [path.head for path in find_records(tmp_path / "results")] == ["first"]
    calibrated = []

    class Counting(Rigged):
        def calibrate(self, target):
            calibrated.append(numbers_of(target))
            return super().calibrate(target)

    counting = dataclasses.replace(card, fit=lambda database, shared: Counting(len(database)))
    first, second = run_heads(bench, [rigged(NO_CALIBRATION, name="first"), counting], tmp_path / "results")
    assert (first.outcome, second.outcome) == ("kept", "written")
    # Split 0 is evaluated again for its piece of the score matrix; split 1 was finished.
    drawn = [np.random.default_rng(split).permutation(PLACES)[:3].tolist() for split in range(4)]
    assert calibrated == [drawn[0], drawn[2], drawn[3]]
    run_heads(bench, [card], tmp_path / "whole")
    resumed, whole = (Record.read(find_records(tmp_path / folder)[-1]) for folder in ("results", "whole"))
    assert resumed.name == whole.name == "rigged"
    assert resumed.identity == whole.identity
    assert not list((tmp_path / "results").rglob(".*"))


def test_splits_of_other_inputs_are_not_used(bench, tmp_path):
    Stops.made = 0
    stopping = dataclasses.replace(rigged(budget(3, splits=4)), fit=lambda database, shared: Stops(len(database)))
    with pytest.raises(KeyboardInterrupt):
        run_heads(bench, [stopping], tmp_path / "results", depth=5)
    run_heads(bench, [rigged(budget(3, splits=4))], tmp_path / "results", depth=7)
    assert only_record(tmp_path / "results")[0].depth == 7


def test_a_budget_larger_than_the_queries_is_skipped_with_its_reason(bench, tmp_path):
    reported = []
    ran = run_heads(
        bench, [rigged(budget(64)), rigged(NO_CALIBRATION, name="b")], tmp_path / "r", report=reported.append
    )
    assert [one.outcome for one in ran] == ["skipped", "written"]
    assert "64 of 10 queries" in ran[0].reason
    assert reported == ran


def test_a_constant_scorer_ranks_nothing(bench, tmp_path):
    class Constant(Rigged):
        def scores(self, queries, replica):
            return np.full((len(queries), self.images), 0.25)

    card = dataclasses.replace(rigged(NO_CALIBRATION), fit=lambda database, shared: Constant(len(database)))
    run_heads(bench, [card], tmp_path / "results")
    record, truth = only_record(tmp_path / "results")
    assert (record.rankings == record.nothing).all()
    assert score(record, truth, ks=(1, 5)).recalls[5].mean == 0


def test_ties_go_to_the_smaller_index(bench, tmp_path):
    class Tied(Rigged):
        def scores(self, queries, replica):
            return np.tile(np.repeat([1.0, 2.0], [3, self.images - 3]), (len(queries), 1))

    card = dataclasses.replace(rigged(NO_CALIBRATION), fit=lambda database, shared: Tied(len(database)))
    run_heads(bench, [card], tmp_path / "results", depth=4)
    record, _ = only_record(tmp_path / "results")
    assert (record.rankings == np.array([3, 4, 5, 6])).all()


def test_the_memory_of_descriptors_changes_no_score(bench):
    plain = Photos(bench.queries.tokens.whole, bench.queries.paths)
    head = head_card("tfa-c4").fit(bench.database, shared=_shared())
    remembered = head.calibrate(bench.queries.select([0, 3, 5, 7]))
    afresh = head.calibrate(plain.select([0, 3, 5, 7]))
    for replica in head.replicas:
        some = [8, 1, 2]
        np.testing.assert_array_equal(
            remembered.scores(bench.queries.select(some), replica), afresh.scores(plain.select(some), replica)
        )


def _shared():
    from tfa_bench.heads.contract import Shared

    return Shared()
