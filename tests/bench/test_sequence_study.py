"""Recall with and without the temporal filter and self-calibration, on made-up drives."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from tests.worlds import seen_again, world
from tfa.base.config import HeadSpec
from tfa.bench.heads.contract import Photos
from tfa.bench.studies.sequences import scores_of, study_drive, study_replay, study_sequence, table_rows
from tfa.errors import BadSpec
from tfa.pipeline import fit


def drive(frames=60, seed=0):
    """One image a frame; every fifth frame another image is higher."""
    scores = np.random.default_rng(seed).normal(size=(frames, frames))
    scores[np.arange(frames), np.arange(frames)] += 5
    errs = np.arange(4, frames, 5)
    scores[errs, (errs * 7 + 30) % frames] += 8
    return scores, [np.arange(max(i - 1, 0), i + 2) for i in range(frames)]


def test_the_filter_corrects_what_single_frames_get_wrong():
    study = study_sequence("made", *drive())
    assert study.single < 0.85
    assert study.filtered > 0.9
    assert study.levelled > 0.85
    assert study.lost < 0.1
    assert study.frames == 60


def test_self_calibration_takes_a_hub_out_of_the_second_half():
    scores, positives = drive()
    scores[:, 3] += 6
    study = study_replay("made", scores, positives)
    assert study.without < 0.5
    assert study.frozen > study.without + 0.2
    assert study.fresh > study.without + 0.2
    assert study.frames == 30


def test_a_filter_settles_on_a_hub_unless_its_level_is_taken_off():
    scores, positives = drive(120)
    scores[:, 3] += 7
    study = study_sequence("made", scores, positives)
    assert study.filtered < 0.3
    assert study.levelled > 0.7
    assert study.levelled > study.single_levelled


def test_too_few_queries_to_learn_from_change_nothing():
    scores, positives = drive(10)
    study = study_replay("made", scores, positives)
    assert study.without == study.frozen == study.fresh


def test_rows_and_queries_must_fit():
    scores, positives = drive(10)
    with pytest.raises(BadSpec, match="10 rows of scores for 9 queries"):
        study_sequence("made", scores, positives[:9])


def synthetic_bench():
    tokens = world()
    return SimpleNamespace(
        database=Photos(tokens, tuple(map(str, range(len(tokens))))),
        queries=SimpleNamespace(tokens=seen_again(tokens)),
        spec=HeadSpec(words=6),
        encoder=SimpleNamespace(id="fake@28"),
        truth=SimpleNamespace(name="made", title="Made", positives=[np.array([i]) for i in range(len(tokens))]),
    )


def test_scores_are_those_of_the_head_fitted_on_the_database():
    bench = synthetic_bench()
    head = fit(bench.database.tokens, bench.spec)
    scores = dict(scores_of(bench))
    assert list(scores) == [0, 1, 2, "ensemble"]
    for replica, rows in scores.items():
        assert np.array_equal(rows, head.scores(bench.queries.tokens, replica))


def test_a_drive_is_studied_with_every_replica():
    bench = synthetic_bench()
    study = study_drive(bench)
    scores = dict(scores_of(bench))
    assert study.sequences[1] == study_sequence("made", scores[1], bench.truth.positives)
    assert study.replays["ensemble"] == study_replay("made", scores["ensemble"], bench.truth.positives)
    facts = json.loads(json.dumps(study.to_dict()))
    assert facts["replay"]["added"]["fresh"] == study.replays["ensemble"].fresh
    assert facts["sequence"]["mean"]["single"] == pytest.approx(np.mean([study.sequences[s].single for s in (0, 1, 2)]))


def test_tables_are_in_percent_with_a_row_for_the_mean_and_one_for_added_scores():
    shares = {"single": 0.5, "filtered": 0.75, "lost": 0.125, "single_levelled": 0.6, "levelled": 1.0}
    shares["levelled_lost"] = 0.0
    facts = [{"dataset": "made", "sequence": {"frames": 8, "mean": shares, "added": {**shares, "single": 0.25}}}]
    assert table_rows(facts, "sequence") == [
        ("made", "8", "mean of three", "50.0", "75.0 (lost 12.5)", "60.0", "100.0 (lost 0.0)"),
        ("made", "8", "scores added", "25.0", "75.0 (lost 12.5)", "60.0", "100.0 (lost 0.0)"),
    ]
