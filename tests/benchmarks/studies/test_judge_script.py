"""The script judge.py on a small folder."""

from __future__ import annotations

import json

from studies import judge
from tests.cli.conftest import write_drive


def test_every_candidate_is_in_the_table_and_in_the_file(script, fake_encoder, tmp_path):
    town = write_drive(tmp_path / "town", 12)
    done = script(judge.main, f"--dataset=town={town}", "--out", tmp_path / "judge.json")
    assert done.exit_code == 0, done.stderr
    [facts] = json.loads((tmp_path / "judge.json").read_text("utf-8"))
    assert facts["dataset"] == "town"
    assert facts["database"]["candidates"]
    assert "town" in done.stdout
    assert script(judge.main, f"--dataset=town={town}", "--cells", "--out", tmp_path / "cells.json").exit_code == 0
    [other] = json.loads((tmp_path / "cells.json").read_text("utf-8"))
    values = [{one["name"]: one["value"] for one in study["database"]["candidates"]} for study in (facts, other)]
    assert values[0].keys() == values[1].keys()
    assert values[0] != values[1]


def test_a_dataset_without_a_folder_is_refused(script):
    done = script(judge.main, "--dataset", "town")
    assert done.exit_code == 2
    assert "is not NAME=PATH" in done.stderr


def test_a_stored_result_is_printed_again(script, fake_encoder, tmp_path):
    town, file = write_drive(tmp_path / "town", 12), tmp_path / "judge.json"
    printed = script(judge.main, f"--dataset=town={town}").stdout
    script(judge.main, f"--dataset=town={town}", "--out", file)
    assert script(judge.main, "--show", file).stdout == printed


def test_a_stored_result_that_is_not_json_is_refused(script, tmp_path):
    (tmp_path / "judge.json").write_text("no", "utf-8")
    done = script(judge.main, "--show", tmp_path / "judge.json")
    assert done.exit_code == 1
    assert "judge.json cannot be read" in done.stderr
    assert "--out" in done.stderr
