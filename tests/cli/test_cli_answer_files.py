"""`tfa query --out` writes complete answer files or none; its how-to page."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.walkthrough.commands import HOW_TO, follow, steps_of
from tfa.exports.answers import ANSWER_FORMATS

pytest.importorskip("rosbags", reason="rosbags is not installed: no recording of answers was written")
pytest.importorskip("mcap", reason="mcap is not installed: no recording of answers was written")
ALL = [word for ending in ANSWER_FORMATS for word in ("--out", f"new/answers{ending}")]


def test_answers_are_written_as_they_are_printed(run, folder):
    """Also of photos that cannot be read, and of names that are no text."""
    odd = os.fsdecode(b"caf\xe9\x1b.jpg")
    shutil.copy("walk/a.jpg", odd)
    asked = ("query", "town.tfa", "near.jpg", "bad.jpg", odd, "--rerank", "--json", "-k", 2)
    result = run(*asked, *ALL)
    assert result.exit_code == 1
    told = run(*asked).stdout
    assert result.stdout == told
    assert "note: wrote new/answers.geojson (answers with a position: 1 of 3 photos)" in result.stderr
    with open("new/answers.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    features = json.loads(Path("new/answers.geojson").read_text("utf-8"))["features"]
    for row, feature, answer in zip(rows, features, json.loads(told)["answers"], strict=True):
        best = (answer["hits"] or [None])[0]
        assert float(row["confidence"]) == feature["properties"]["confidence"] == answer["confidence"]
        assert row["error"] == (answer.get("error") or "").replace("\x1b", "\\x1b").replace("\udce9", "\\xe9")
        assert row["image"] == ("" if best is None else best["image"])
    assert rows[2]["query"] == "caf\\xe9\\x1b.jpg"
    assert float(rows[0]["lat"]) == 57.5
    assert features[0]["geometry"] == {"type": "Point", "coordinates": [13.25, 57.5]}
    assert sorted(os.listdir("new")) == sorted(f"answers{ending}" for ending in ANSWER_FORMATS)


def test_a_calibration_and_frames_of_a_drive_are_named(run, folder):
    from rosbags.highlevel import AnyReader

    words = ("--sequence", "camera", "--calibration", "night", "--set", "out.images=no", "--out", "drive.mcap")
    assert run("query", "calibrated.tfa", *words).exit_code == 0
    with AnyReader([Path("drive.mcap")]) as bag:
        messages = [(one.topic, bag.deserialize(data, one.msgtype)) for one, _, data in bag.messages()]
    matches = [message for topic, message in messages if topic == "/tfa/matches"]
    assert [(one.query, one.calibration) for one in matches[:2]] == [
        ("camera/00.png", "night"),
        ("camera/01.png", "night"),
    ]
    assert {topic for topic, _ in messages} >= {"/tfa/matches", "/tfa/diagnostics"}
    diagnostics = next(message for topic, message in messages if topic == "/tfa/diagnostics")
    values = {one.key: one.value for one in diagnostics.status[0].values}
    assert 0 <= float(values["lost"]) <= 1
    assert float(values["milliseconds"]) > 0


def test_a_file_is_there_even_if_nobody_reads_what_is_printed(run, folder, monkeypatch):
    def nobody(*_):
        raise BrokenPipeError

    monkeypatch.setattr("tfa.cli.query.show_answers", nobody)
    assert run("query", "town.tfa", "near.jpg", *ALL).exit_code == 141
    assert len(os.listdir("new")) == len(ANSWER_FORMATS)


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("--out", "a.kml"), 2, "must end in one of .mcap .geojson .gpx .csv"),
        (("--out", "near.jpg/a.csv"), 1, "near.jpg is a file, not a folder"),
        (("--out", "a.csv", "--set", "out.images=no"), 2, "pass --out FILE.mcap"),
        (("--set", "out.utm=33N"), 2, "pass --out FILE"),
        (("--out", "a.csv", "--set", "out.utm=99N"), 1, "'99N' is not a UTM zone"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_map_is_read(run, spy, folder, words, code, complaint):
    result = run("query", "town.tfa", "near.jpg", *words)
    assert result.exit_code == code
    assert complaint in re.sub(r"\s*│?\n│?\s*", " ", result.stderr)
    assert spy.calls == []


def test_what_cannot_hold_the_positions_of_the_map_is_refused_before_photos_are_read(run, spy, folder):
    result = run("query", "plain.tfa", "near.jpg", "--out", "a.gpx")
    assert result.exit_code == 1
    assert "a.gpx would be empty: no map image has a position" in result.stderr
    assert "query_many" not in [name for name, _ in spy.calls]


def test_the_page_runs(run, folder):
    page = HOW_TO / "export-answers.md"
    shutil.copytree("walk", "evening-walk")
    printed = follow(page, run)
    names = [name for step in steps_of(page) for name in re.findall(r"--out (\S+)", step.text)]
    assert len(names) == 5
    assert all(Path(name).stat().st_size > 100 for name in names)
    assert "evening-walk/a.jpg" in printed[-1]
