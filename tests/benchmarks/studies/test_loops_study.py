"""The script loops.py: heads under one rule, and its tables."""

from __future__ import annotations

import json

import numpy as np
import pytest

from studies import loops
from studies.loops import HEADS, TABLES, decide_fixed, decide_vectors, join_studies, measure, table_rows
from tests.benchmarks.studies.test_orb_words import write_vocabulary
from tests.cli.conftest import write_drive
from tfa.errors import MissingExtra

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
    assert (found.precision, found.strict_precision, found.strict_false_loops) == (0.5, 0.0, 2)
    assert (found.pairs, found.false_pairs, found.recall_at_100) == (3, 2, 0.0)


def test_recall_at_a_precision_counts_down_to_the_last_threshold_that_reaches_it():
    positives = {t: np.array([t - 100]) for t in range(100, 300)}
    # 50 positives, 100 frames near one, a wrong one, then 49 positives.
    lines = [(t, t - 100 + (0 if t < 150 else 2), float(-t)) for t in range(100, 250)]
    lines += [(250, 0, -250.0)] + [(t, t - 100, float(-t)) for t in range(251, 300)]
    facts = {"dataset": "x", "encoder": None, "head": "orb", "sessions": 1, "frames": 300}
    found = measure(({}, {}, lines), positives, **facts)
    assert (found.recall_at_100, found.recall_at_99) == (150 / 200, 199 / 200)
    assert (found.strict_recall_at_100, found.strict_recall_at_99) == (50 / 200, 50 / 200)
    assert (found.precision, found.strict_precision, found.loops) == (None, None, 0)


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
        streams = 0 if table == "joined" else 2
        assert [len(row) for row in table_rows(facts, table)] == [len(columns)] * streams


def test_orb_words_run_without_an_encoder_and_join_earlier_heads(script, monkeypatch, tmp_path):
    pytest.importorskip("cv2")
    monkeypatch.setattr(loops, "find_vocabulary", lambda: write_vocabulary(tmp_path / "words.dbow3"))
    monkeypatch.setattr(loops, "open_encoder", lambda _: pytest.fail("an encoder was loaded"))
    drive = write_drive(tmp_path / "drive", 4)
    done = script(loops.main, f"--dataset=drive={drive}", "--heads=orb", "--out", tmp_path / "orb.json", "--quiet")
    assert done.exit_code == 0, done.stderr
    facts = json.loads((tmp_path / "orb.json").read_text("utf-8"))
    assert [(one["head"], one["sessions"], one["encoder"]) for one in facts] == [("orb", 1, None), ("orb", 2, None)]
    for table, (_, columns) in TABLES.items():
        rows = table_rows(facts, table)
        if table == "joined":
            assert rows == []
            continue
        assert [len(row) for row in rows] == [len(columns)] * 2
        assert rows[0][2] == "–"  # TFA did not run
    earlier = [{**one, "head": head, "frames": 0} for one in facts for head in ("fixed", "orb", "tfa")]
    joined = join_studies(facts, earlier)
    assert [one["head"] for one in joined] == ["tfa", "tfa", "orb", "orb", "fixed", "fixed"]
    assert [one["frames"] for one in joined] == [0, 0, 8, 8, 0, 0]


def test_orb_words_are_left_out_unless_they_were_named(script, monkeypatch, tmp_path):
    def miss():
        raise MissingExtra("install it")

    monkeypatch.setattr(loops, "find_vocabulary", miss)
    monkeypatch.setattr(loops, "open_encoder", lambda _: None)
    studied = []
    monkeypatch.setattr(loops, "study_stream", lambda data, heads, *_: studied.append(heads) or [])
    drive = write_drive(tmp_path / "drive", 2)
    done = script(loops.main, f"--dataset=drive={drive}", "--json", "--quiet")
    assert (done.exit_code, json.loads(done.stdout)) == (0, [])
    assert "ORB words are left out: install it" in done.stderr
    assert studied == [[head for head in HEADS if head != "orb"]]
    done = script(loops.main, f"--dataset=drive={drive}", "--heads=orb", "--quiet")
    assert done.exit_code == 1
    assert "install it" in done.stderr


def test_an_unknown_head_is_an_error(script):
    done = script(loops.main, "--dataset=x=y", "--heads=tfa,surf")
    assert done.exit_code == 2
    assert "unknown head 'surf'; available: tfa, length, mean" in done.stderr
