"""The script sequences.py: the whole way on a small drive."""

from __future__ import annotations

import json

import pytest

import tfa.encoders
from studies import sequences
from studies.sequences import TABLES, table_rows
from tests.benchmarks.studies.test_sequence_study import few_seen  # noqa: F401
from tests.cli.conftest import write_drive

pytestmark = pytest.mark.slow

FRAMES = 16


@pytest.fixture
def bench(script, fake_encoder):
    return lambda *args: script(sequences.main, *args)


def test_every_dataset_is_in_all_tables_and_in_the_file(bench, tmp_path):
    drive, again = write_drive(tmp_path / "drive", FRAMES), write_drive(tmp_path / "again", FRAMES)
    done = bench(f"--dataset=drive={drive}", f"--dataset=again={again}", "--out", tmp_path / "studies.json")
    assert done.exit_code == 0, done.output
    facts = json.loads((tmp_path / "studies.json").read_text("utf-8"))
    assert [(one["dataset"], one["encoder"], one["images"], one["photos"]) for one in facts] == [
        ("drive", "fake@28", FRAMES, FRAMES),
        ("again", "fake@28", FRAMES, FRAMES),
    ]
    assert facts[0]["events"]["outside"]["outside_lost"] is not None  # by photos of the next one
    assert facts[0]["drive"]["alone"] > 0.9  # the queries are the database, a little brighter
    assert str(tmp_path) not in json.dumps(facts)  # what is committed names no folder
    shown = [" ".join(line.split()) for line in done.stdout.splitlines() if line.startswith(("drive", "again"))]
    assert shown == [" ".join(" ".join(row).split()) for table in TABLES for row in table_rows(facts, table)]


def test_one_dataset_has_no_photos_of_elsewhere(bench, tmp_path):
    done = bench(f"--dataset=drive={write_drive(tmp_path / 'drive', 12)}", "--json")
    assert done.exit_code == 0, done.output
    [facts] = json.loads(done.stdout)
    assert set(facts["events"]) == {"gap", "jump"}
    assert facts["change"]["fresh"][2:] == [None, None]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--dataset", "drive"), "is not NAME=PATH"),
        (("--dataset", "drive=DRIVE"), "drive has 1 queries; a drive needs at least 8"),
        (("--dataset", "drive=DRIVE", "--out", "DRIVE/positives.json/studies.json"), "is a file, not a folder"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_encoded(bench, tmp_path, monkeypatch, words, message):
    drive = write_drive(tmp_path / "drive", 1)
    monkeypatch.setattr(tfa.encoders, "load_encoder", lambda name, **given: pytest.fail("an encoder was loaded"))
    done = bench(*(word.replace("DRIVE", str(drive)) for word in words))
    assert done.exit_code != 0
    assert message in " ".join(done.stderr.split())
