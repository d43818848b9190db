"""The script loops.py: heads under one rule, and its tables."""

from __future__ import annotations

import json

import numpy as np
import pytest

from studies import loops
from studies.loops import TABLES, decide_fixed, decide_vectors, measure, table_rows
from tests.cli.conftest import write_drive

LAP = 60


@pytest.fixture(scope="module")
def vectors():
    """Two laps of unit vectors."""
    rng = np.random.default_rng(1)
    places = rng.normal(size=(LAP, 24))
    seen = np.concatenate([places, places]) + 0.5 * rng.normal(size=(2 * LAP, 24))
    return seen / np.linalg.norm(seen, axis=1, keepdims=True)


@pytest.mark.parametrize("start", [None, LAP])
def test_measured_loops_of_two_laps(vectors, start):
    positives = {LAP + row: np.array([row]) for row in range(LAP)}
    facts = {"dataset": "x", "encoder": "y", "head": "mean", "sessions": 1 if start is None else 2, "frames": 2 * LAP}
    found = measure(decide_vectors(vectors, start), positives, **facts)
    assert (found.false_loops, found.false_pairs) == (0, 0)
    assert found.pair_recall > 0.9
    assert found.recall == found.loops / LAP <= found.pair_recall
    assert found.recall_at_100 > 0.7


def test_a_false_loop_counts_against_precision_and_not_for_recall():
    positives = {10: np.array([2]), 11: np.array([3])}
    decisions = ({10: 4, 11: 9}, {9: 0, 10: 4, 11: 9}, [(11, 9, 3.0), (10, 4, 2.0)])
    facts = {"dataset": "x", "encoder": "y", "head": "tfa", "sessions": 1, "frames": 12}
    found = measure(decisions, positives, **facts)
    assert (found.loops, found.false_loops, found.recall, found.strict_recall) == (2, 1, 0.5, 0.0)
    assert (found.pairs, found.false_pairs, found.recall_at_100) == (3, 2, 0.0)


def test_a_fixed_threshold_accepts_single_frames(vectors):
    same = np.concatenate([vectors[:LAP], vectors[:LAP]])
    loops_found = decide_fixed(same, LAP)[0]
    assert {frame: match for frame, match in loops_found.items() if frame >= LAP} == {LAP + n: n for n in range(LAP)}


@pytest.mark.slow
def test_every_dataset_is_in_all_tables_and_in_the_file(script, fake_encoder, tmp_path):
    drive = write_drive(tmp_path / "drive", 16)
    done = script(loops.main, f"--dataset=drive={drive}", "--out", tmp_path / "loops.json", "--quiet")
    assert done.exit_code == 0, done.stderr
    facts = json.loads((tmp_path / "loops.json").read_text("utf-8"))
    assert [(one["dataset"], one["head"], one["sessions"]) for one in facts[:2]] == [
        ("drive", "tfa", 1),
        ("drive", "tfa", 2),
    ]
    for table, (_, columns) in TABLES.items():
        assert {len(row) for row in table_rows(facts, table)} == {len(columns)}
