"""Records made in memory, whose recalls can be worked out by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.synthetic_records import NOTHING, named, ranking, synthetic_record, synthetic_truth, written
from tfa.errors import BadSpec
from tfa_bench.records import TRUTH_FILE, BadRecord, record_path
from tfa_bench.scores import paired, score, score_folder
from tfa_bench.tables.table import read_scored

KS = (1, 2, 4)
RIGHT, SECOND, WRONG = ranking([0]), ranking([1, 0]), ranking([1, 2])  # image 0 is the positive of every query
TRUTH = synthetic_truth([[0]] * 4)


def test_recall_is_averaged_over_replicas():
    record = synthetic_record(TRUTH, [[[RIGHT, RIGHT]], [[RIGHT, WRONG]], [[SECOND, WRONG]], [[WRONG, SECOND]]])
    scored = score(record, TRUTH, ks=KS)
    assert {k: recall.mean for k, recall in scored.recalls.items()} == {1: 3 / 8, 2: 5 / 8, 4: 5 / 8}
    assert scored.recalls[1].sd == 0
    assert scored.per_query.tolist() == [1, 0.5, 0, 0]
    assert scored.interval.mean == 3 / 8
    assert scored.interval.low <= 3 / 8 <= scored.interval.high


def test_older_records_of_dual_heads_get_the_note_they_lack():
    notes = {
        name: score(synthetic_record(TRUTH, [[[RIGHT]]] * 4, head={**named(name), "note": ""}), TRUTH, ks=[1]).note
        for name in ("dual-c64", "tfa-c64")
    }
    assert notes["dual-c64"].startswith("our reading")
    assert not notes["tfa-c64"]


def test_splits_have_a_mean_and_a_sample_deviation():
    ranked = np.full((4, 2, 1, 4), NOTHING)
    ranked[:3, 0, 0], ranked[1:, 1, 0] = [RIGHT, RIGHT, WRONG], [WRONG, WRONG, RIGHT]
    record = synthetic_record(TRUTH, ranked, evaluated=[[0, 1, 2], [1, 2, 3]])
    scored = score(record, TRUTH, ks=[1])
    assert scored.splits == ((2 / 3,), (1 / 3,))
    assert scored.recalls[1].mean == pytest.approx(1 / 2)
    assert scored.recalls[1].sd == pytest.approx(np.std([2 / 3, 1 / 3], ddof=1))
    assert scored.per_query.tolist() == [1, 0.5, 0, 1]
    assert scored.decisions[0][0] == {"condition": None, "calibration": 1, "evaluated": 3, "decisions": {"c": 0.5}}


def test_a_query_never_evaluated_has_no_value():
    scored = score(synthetic_record(TRUTH, [[[RIGHT]]] * 4, evaluated=[[0, 2]]), TRUTH, ks=[1])
    assert np.isnan(scored.per_query).tolist() == [False, True, False, True]
    assert (scored.evaluated, scored.queries, scored.recalls[1].mean) == (2, 4, 1)


def test_conditions_weigh_the_same_whatever_their_size():
    truth = synthetic_truth([[0]] * 4, conditions={"day": [0, 1, 2], "night": [3]})
    scored = score(synthetic_record(truth, [[[RIGHT]], [[RIGHT]], [[RIGHT]], [[WRONG]]]), truth, ks=[1, 2])
    assert scored.recalls[1].mean == 0.5
    assert (scored.conditions["day"][1].mean, scored.conditions["night"][1].mean) == (1, 0)
    assert (scored.interval.mean, scored.interval.low, scored.interval.high) == (0.5, 0.5, 0.5)
    assert scored.mean_average_precision.mean == 0.5


def test_a_condition_that_was_not_evaluated_is_left_out():
    truth = synthetic_truth([[0]] * 4, conditions={"day": [0, 1, 2], "night": [3]})
    scored = score(synthetic_record(truth, [[[RIGHT]]] * 4, evaluated=[[0, 1]]), truth, ks=[1])
    assert (list(scored.conditions), scored.recalls[1].mean) == (["day"], 1)


@pytest.mark.parametrize(
    ("unanswerable", "recall", "message"), [("miss", 0.5, "count as misses"), ("skip", 1, "left out")]
)
def test_queries_without_positives_are_misses_or_left_out(unanswerable: str, recall: float, message: str):
    truth = synthetic_truth([[0], [0], [], []])
    record = synthetic_record(truth, [[[RIGHT]]] * 4, confidence=[[[3]], [[2]], [[4]], [[1]]])
    scored = score(record, truth, ks=[1], unanswerable=unanswerable)
    assert scored.recalls[1].mean == scored.mean_average_precision.mean == recall
    assert scored.without_positives == 2
    assert message in scored.to_dict()["unanswerable"]
    # Accepting the confident wrong answer first costs precision only where it counts.
    assert scored.acceptance.recall_at_100.mean == (0 if unanswerable == "miss" else 1)


def test_nothing_but_queries_without_positives_cannot_be_skipped():
    truth = synthetic_truth([[], []])
    record = synthetic_record(truth, [[[RIGHT]]] * 2)
    assert score(record, truth, ks=[1]).recalls[1].mean == 0
    with pytest.raises(BadRecord, match="no evaluated query has positives"):
        score(record, truth, ks=[1], unanswerable="skip")


def test_a_constant_scorer_earns_nothing():
    record = synthetic_record(TRUTH, np.full((4, 1, 1, 4), NOTHING), confidence=np.zeros((4, 1, 1)))
    scored = score(record, TRUTH, ks=KS)
    assert [recall.mean for recall in scored.recalls.values()] == [0, 0, 0]
    assert scored.mean_average_precision.mean == scored.acceptance.area.mean == 0


def test_precision_against_recall_is_averaged_over_replicas_and_splits():
    ranked = [[[RIGHT, RIGHT]], [[RIGHT, WRONG]], [[WRONG, RIGHT]], [[WRONG, WRONG]]]
    record = synthetic_record(TRUTH, ranked, confidence=[[[4, 4]], [[3, 3]], [[2, 2]], [[1, 1]]])
    acceptance = score(record, TRUTH, ks=[1]).acceptance
    assert acceptance.area.mean == pytest.approx((2 / 4 + (1 / 4 + 1 / 4 * 2 / 3)) / 2)
    assert acceptance.recall_at_99.mean == acceptance.recall_at_100.mean == (2 / 4 + 1 / 4) / 2
    assert acceptance.curve["recall"] == [1 / 4, 2 / 4, 2 / 4, 2 / 4]


def test_mean_average_precision_needs_rankings_as_deep_as_positives_are_many():
    truth = synthetic_truth([[0, 1, 2, 3, 4], [0]])
    record = synthetic_record(truth, [[[RIGHT]]] * 2)
    scored = score(record, truth, ks=[1])
    assert scored.mean_average_precision is None
    assert scored.refused == "a query has 5 positives but rankings have length 4"
    other_queries = score(synthetic_record(truth, [[[RIGHT]]] * 2, evaluated=[[1]]), truth, ks=[1])
    assert other_queries.mean_average_precision.mean == 1


def test_mean_average_precision_can_be_cut_to_the_depth_of_a_shallower_record():
    truth = synthetic_truth([[0, 2]])
    record = synthetic_record(truth, [[[[0, 1, 3, 2]]]])
    assert score(record, truth, ks=[1]).mean_average_precision.mean == pytest.approx((1 + 2 / 4) / 2)
    assert score(record, truth, ks=[1], precision_depth=3).mean_average_precision.mean == pytest.approx(1 / 2)
    assert (
        score(record, truth, ks=[1], precision_depth=1).refused == "a query has 2 positives but rankings have length 1"
    )
    assert score(record, truth, ks=[1], precision_depth=9).mean_average_precision.mean == pytest.approx(3 / 4)


def test_a_k_beyond_the_rankings_names_both():
    record = synthetic_record(TRUTH, [[[RIGHT]]] * 4)
    with pytest.raises(BadSpec, match="length 4, too short for recall at 20"):
        score(record, TRUTH)


def test_a_ranking_of_every_image_is_deep_enough_for_any_k():
    record = synthetic_record(TRUTH, [[[RIGHT]]] * 4)
    whole = replace(record, dataset={**record.dataset, "database": record.depth})
    assert score(whole, TRUTH, ks=[1, 20]).recalls[20].mean == 1


@pytest.mark.parametrize(
    ("given", "message"), [({"ks": [0]}, "at least 1"), ({"unanswerable": "x"}, "'miss' or 'skip'")]
)
def test_impossible_settings_say_what_is_allowed(given: dict, message: str):
    with pytest.raises(BadSpec, match=message):
        score(synthetic_record(TRUTH, [[[RIGHT]]] * 4), TRUTH, **{"ks": [1], **given})


def test_a_record_of_other_positives_is_refused():
    record = synthetic_record(TRUTH, [[[RIGHT]]] * 4)
    with pytest.raises(BadRecord, match=r"other images or positives.*rerun the head"):
        score(record, synthetic_truth([[1]] * 4), ks=[1])


def test_a_record_whose_arrays_do_not_fit_is_refused():
    record = synthetic_record(TRUTH, [[[RIGHT]]] * 4)
    with pytest.raises(BadRecord, match="expected"):
        score(replace(record, confidence=np.ones((3, 1, 1), np.float32)), TRUTH, ks=[1])


def test_paired_heads_are_compared_on_the_queries_both_were_evaluated_on():
    better = score(
        synthetic_record(TRUTH, [[[RIGHT]], [[RIGHT]], [[RIGHT]], [[WRONG]]], evaluated=[[0, 1, 3]]), TRUTH, ks=[1]
    )
    worse = score(synthetic_record(TRUTH, [[[WRONG]], [[RIGHT]], [[RIGHT]], [[WRONG]]]), TRUTH, ks=[2])
    found = paired(better, worse)
    assert (found.mean, found.queries) == (pytest.approx(1 / 3), 3)
    assert 0.5 < found.above < 1
    with pytest.raises(BadRecord, match="different positives"):
        paired(better, replace(worse, truth="other"))
    with pytest.raises(BadSpec, match="score both the same way"):
        paired(better, replace(worse, unanswerable="skip"))


def test_what_is_scored_survives_json():
    truth = synthetic_truth([[0], [0], [], [0]], conditions={"day": [0, 1], "night": [2, 3]})
    scored = score(synthetic_record(truth, [[[RIGHT, WRONG]], [[SECOND, RIGHT]]] * 2), truth, ks=KS)
    facts = scored.to_dict()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts["recalls"]["2"] == {"mean": scored.recalls[2].mean, "sd": 0.0}
    assert (facts["head"], facts["sees"], facts["note"]) == ("vlad", "database", "hard words")


def test_a_split_none_of_whose_queries_counts_is_left_out():
    truth = synthetic_truth([[0], []])
    record = synthetic_record(truth, [[[RIGHT], [RIGHT]]] * 2, evaluated=[[0], [1]])
    scored = score(record, truth, ks=[1], unanswerable="skip")
    assert (scored.recalls[1].mean, scored.recalls[1].sd) == (1, 0)
    assert scored.to_dict()["splits"] == [[1.0], [None]]


def synthetic_results(folder: Path) -> Path:
    for name in ("lake", "town"):
        truth = synthetic_truth([[0]] * 4, name=name)
        good = synthetic_record(truth, [[[RIGHT]]] * 4, head=named("tfa"))
        bad = synthetic_record(truth, [[[WRONG]]] * 4)
        other = synthetic_record(
            truth, [[[SECOND]]] * 4, encoder={"id": "org/big@56", "fingerprint": "", "grid": [4, 4]}
        )
        written(folder, truth, good, bad, other)
    return folder


def test_a_folder_is_scored_in_the_order_of_its_names(tmp_path: Path):
    scored = score_folder(synthetic_results(tmp_path), ks=[1])
    assert [(one.dataset, one.encoder, one.head, one.recalls[1].mean) for one in scored] == [
        (name, *rest)
        for name in ("lake", "town")
        for rest in [("org/big@56", "vlad", 0), ("tiny@28", "tfa", 1), ("tiny@28", "vlad", 0)]
    ]
    assert scored[0].timings == {"fit": 1.5}


def test_datasets_heads_and_an_encoder_can_be_chosen(tmp_path: Path):
    synthetic_results(tmp_path)
    [one] = score_folder(tmp_path, ks=[1], datasets=["town"], heads=["vlad"], encoder="org/big@56")
    assert (one.dataset, one.encoder, one.head) == ("town", "org/big@56", "vlad")
    assert len(score_folder(tmp_path / "town", ks=[1], heads=["vlad", "tfa"])) == 3
    assert len(score_folder(tmp_path / "town" / "tiny@28" / "records.zip", ks=[1])) == 2


def test_a_name_without_a_record_is_an_error(tmp_path: Path):
    synthetic_results(tmp_path)
    with pytest.raises(BadRecord, match=r"no record of head 'vald'; recorded: tfa, vlad; did you mean vlad\?"):
        score_folder(tmp_path, ks=[1], heads=["vald"])
    with pytest.raises(BadRecord, match="no record matches all filters: head tfa, encoder org/big@56"):
        score_folder(tmp_path, ks=[1], heads=["tfa"], encoder="org/big@56")


def test_a_folder_without_records_is_an_error(tmp_path: Path):
    with pytest.raises(BadRecord, match="holds no records"):
        score_folder(tmp_path)
    with pytest.raises(BadRecord, match="does not exist"):
        score_folder(tmp_path / "nowhere")


def test_a_torn_file_among_the_records_is_an_error(tmp_path: Path):
    synthetic_results(tmp_path)
    torn = record_path(tmp_path, "town", "tiny@28", "torn")
    torn.write_bytes(b"PK\3\4")
    for heads in (None, ["tfa"]):
        with pytest.raises(BadRecord, match=r"records\.zip/torn\.npz"):
            score_folder(tmp_path, ks=[1], heads=heads)
    torn.archive.write_bytes(torn.archive.read_bytes()[:-30])
    for heads in (None, ["tfa"]):
        with pytest.raises(BadRecord, match=r"records\.zip cannot be read"):
            score_folder(tmp_path, ks=[1], heads=heads)


def test_records_without_their_dataset_file_cannot_be_scored(tmp_path: Path):
    synthetic_results(tmp_path)
    (tmp_path / "town" / TRUTH_FILE).unlink()
    with pytest.raises(BadRecord, match="does not exist"):
        score_folder(tmp_path, ks=[1])


def test_scoring_loads_no_model_and_no_plotting():
    heavy = "('torch', 'scipy', 'matplotlib')"
    code = f"import sys, tfa_bench.scores; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_records_of_two_revisions_are_not_compared(tmp_path: Path):
    truth = synthetic_truth([[0]] * 4)
    old = synthetic_record(truth, [[[RIGHT]]] * 4, head=named("old"), algorithm={"kmeans": 1, "residuals": 1})
    new = synthetic_record(truth, [[[RIGHT]]] * 4, head=named("new"), algorithm={"kmeans": 2})
    bare = synthetic_record(truth, [[[RIGHT]]] * 4, head=named("bare"), algorithm={})
    other = synthetic_record(truth, [[[RIGHT]]] * 4, head=named("other"), algorithm={"peers": 1})
    scored = {one.name: score(one, truth, ks=[1]) for one in (old, new, bare, other)}
    with pytest.raises(BadRecord, match=r"revisions of the algorithm \(kmeans 1 and 2\).*tfa bench run"):
        paired(scored["old"], scored["new"])
    with pytest.raises(BadRecord, match="kmeans 2 and unrecorded"):
        paired(scored["new"], scored["bare"])
    assert paired(scored["old"], scored["other"]).mean == 0  # they share no stage
    written(tmp_path, truth, old, new)
    with pytest.raises(BadRecord, match="kmeans 1 and 2"):
        read_scored(tmp_path)
