"""`tfa bench sequences`: the whole way on a small drive."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tfa.encoders
from tests.cli.conftest import write_drive
from tfa.bench.studies.sequences import table_rows

FRAMES = 40


@pytest.fixture
def bench(run, fake_encoder):
    return lambda *args: run("bench", "sequences", *args)


def test_both_studies_of_every_dataset_are_reported(bench, tmp_path):
    drive, again = write_drive(tmp_path / "drive", FRAMES), write_drive(tmp_path / "again", FRAMES)
    done = bench(f"--dataset=drive={drive}", f"--dataset=again={again}", "--out", tmp_path / "studies.json")
    assert done.exit_code == 0, done.output
    facts = json.loads((tmp_path / "studies.json").read_text("utf-8"))
    assert [(one["dataset"], one["encoder"], one["images"]) for one in facts] == [
        ("drive", "fake@28", FRAMES),
        ("again", "fake@28", FRAMES),
    ]
    assert facts[0]["sequence"]["frames"] == FRAMES
    assert facts[0]["replay"]["frames"] == FRAMES // 2
    assert str(tmp_path) not in json.dumps(facts)  # what is committed names no folder
    sequence, replay = done.stdout.split("Replay: ")
    for text, name in ((sequence, "sequence"), (replay, "replay")):
        rows = [" ".join(line.split()) for line in text.splitlines() if line.startswith(("drive", "again"))]
        assert rows == [" ".join(row) for row in table_rows(facts, name)]
        assert len(rows) == 4


def test_the_mean_is_that_of_the_three_replicas(bench, tmp_path):
    done = bench(f"--dataset=drive={write_drive(tmp_path / 'drive', FRAMES)}", "--json")
    assert done.exit_code == 0, done.output
    [facts] = json.loads(done.stdout)
    for study in (facts["sequence"], facts["replay"]):
        assert len(study["replicas"]) == 3
        assert set(study["mean"]) == set(study["added"])
        for share, mean in study["mean"].items():
            assert mean == pytest.approx(np.mean([own[share] for own in study["replicas"]]))
    assert facts["sequence"]["mean"]["single"] > 0.9  # the queries are the database, a little brighter


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--dataset", "drive"), "give NAME=PATH"),
        (("--dataset", "drive=DRIVE"), "drive has 1 queries; a drive needs at least 2"),
        (("--dataset", "drive=DRIVE", "--out", "DRIVE/positives.json/studies.json"), "is a file, not a folder"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_encoded(bench, tmp_path, monkeypatch, words, message):
    drive = write_drive(tmp_path / "drive", 1)
    monkeypatch.setattr(tfa.encoders, "load_encoder", lambda name, **given: pytest.fail("an encoder was loaded"))
    done = bench(*(word.replace("DRIVE", str(drive)) for word in words))
    assert done.exit_code != 0
    assert message in " ".join(done.stderr.split())


def test_the_help_says_that_order_matters(run):
    assert "driving order" in " ".join(run("bench", "sequences", "--help").stdout.replace("│", " ").split())
