"""Recall with and without the temporal filter and self-calibration, on made-up drives."""

import json

import numpy as np
import pytest

from tfa.bench.sequence_study import study_replay, study_sequence
from tfa.errors import BadSpec


def drive(frames=60, seed=0):
    """One image a frame; every fifth frame another image is higher."""
    scores = np.random.default_rng(seed).normal(size=(frames, frames))
    scores[np.arange(frames), np.arange(frames)] += 5
    errs = np.arange(4, frames, 5)
    scores[errs, (errs * 7 + 30) % frames] += 8
    return scores, [np.arange(max(i - 1, 0), i + 2) for i in range(frames)]


def test_the_filter_mends_what_single_frames_get_wrong():
    study = study_sequence("made", *drive())
    assert study.single < 0.85
    assert study.filtered > 0.9
    assert study.levelled > 0.85
    assert study.lost < 0.1
    assert json.loads(json.dumps(study.to_dict()))["frames"] == 60
    assert "made, 60 frames: R@1" in str(study)


def test_self_calibration_takes_a_hub_out_of_the_second_half():
    scores, positives = drive()
    scores[:, 3] += 6
    study = study_replay("made", scores, positives)
    assert study.without < 0.5
    assert study.frozen > study.without + 0.2
    assert study.fresh > study.without + 0.2
    assert study.frames == 30
    assert "30 frames" in str(study)
    assert set(study.to_dict()) == {"dataset", "frames", "without", "frozen", "fresh"}


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


def test_scores_are_those_of_the_head_fitted_on_the_database():
    from types import SimpleNamespace

    from tests.core.worlds import seen_again, world
    from tfa.bench.sequence_study import scores_of
    from tfa.config import HeadSpec
    from tfa.pipeline import fit

    tokens, spec = world(), HeadSpec(words=6)
    bench = SimpleNamespace(
        database=SimpleNamespace(tokens=tokens), queries=SimpleNamespace(tokens=seen_again(tokens)), spec=spec
    )
    assert np.array_equal(scores_of(bench), fit(tokens, spec).scores(seen_again(tokens)))
