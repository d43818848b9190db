"""Advice and counts that commands print: commands can be copied, options exist, and numbers agree."""

from __future__ import annotations

import html
import re
import shlex
import shutil
from pathlib import Path

from tests.fakes import FakeEncoder
from tfa.encoders import CATALOGUE, parse_encoder
from tfa.encoders.weights import resolve_weights
from tfa.maps import PlaceMap, map


def test_commands_name_a_map_with_a_space_as_one_word(run, folder):
    path = str(shutil.copytree("town.tfa", folder / "my mäp.tfa"))
    report, info = run("report", path, "--out", "page.html"), run("info", path)
    page = re.findall(r'<code class="command">(.*?)</code>', Path("page.html").read_text("utf-8"))
    printed = re.findall(r"tfa (?:info|calibrate|report) ['/].*", report.stdout + info.stdout)
    assert len(page) == 2
    assert len(printed) == 3
    assert {shlex.split(html.unescape(command))[2] for command in (*page, *printed)} == {path}


def test_a_merge_of_duplicates_says_so(run, folder):
    merged = run("merge", "town.tfa", "plain.tfa", "--out", "both.tfa")
    assert "plain: all 14 photos are also in earlier maps" in merged.stdout


def test_a_file_of_answers_counts_as_the_table_does(run, folder):
    result = run("query", "town.tfa", "camera", "far.jpg", "--no-online", "--sure", "--out", "f.csv")
    [recognized] = re.findall(r"15 photos: (\d+) recognized", result.stdout) or ["0"]
    assert f"wrote f.csv (answers: {recognized} of 15 photos)" in result.stderr
    assert recognized != "15"
    assert len(Path("f.csv").read_text("utf-8").splitlines()) == 16


def test_photos_of_a_report_come_from_the_token_cache(run, folder, monkeypatch):
    expected = PlaceMap.load("town.tfa").query_many("camera", k=1).expected_recall
    monkeypatch.setattr(FakeEncoder, "encode", None)
    result = run("report", "town.tfa", "--photos", "camera")
    assert result.exit_code == 0, result.output
    assert f"like the 14 photos of --photos: {expected}" in result.stdout


def test_an_encoder_of_the_user_is_named_as_such(run, folder, monkeypatch):
    monkeypatch.setattr(map, "load_encoder", lambda name, **_options: parse_encoder(name))
    refused = run("query", "town.tfa", "near.jpg")
    assert refused.exit_code == 2
    own = "this map was built with an encoder of your own, fake@28: use PlaceMap.load(path, encoder=…)"
    assert own in refused.stderr


def test_missing_weights_of_a_map_are_not_replaced_by_another_encoder(run, folder, monkeypatch):
    def load(*_args, **_options):
        resolve_weights(CATALOGUE["dinov3-s16"], "moved.safetensors")

    monkeypatch.setattr(map, "load_encoder", load)
    refused = run("query", "town.tfa", "near.jpg")
    assert refused.exit_code == 1
    assert "weights file moved.safetensors for dinov3-s16 not found" in refused.stderr
    assert "--set encoder.weights=FILE" in refused.stderr
    assert "--encoder" not in refused.stderr
