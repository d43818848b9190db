"""`tfa calibrate`, and calibrations in `tfa query` and `tfa info`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfa.maps import PlaceMap
from tfa.types import EncoderOptions

pytestmark = pytest.mark.slow


def test_calibrate_passes_on_what_is_asked(run, spy, folder):
    result = run("calibrate", "town.tfa", "camera", "near.jpg")
    assert result.exit_code == 0
    assert spy.given("calibrate") == {
        "photos": [Path("camera"), Path("near.jpg")], "name": "target", "budget": 64, "score": None,
        "progress": True,
    }  # fmt: skip


@pytest.mark.parametrize(("flag", "score"), [("--score", True), ("--no-score", False)])
def test_calibrate_options(run, spy, folder, flag, score):
    options = ("--name", "night", "--budget", 20, flag, "--skip-bad", "--device", "cuda", "--quiet")
    assert run("calibrate", "town.tfa", "camera", *options).exit_code == 0
    assert spy.given("calibrate") == {
        "photos": [Path("camera")], "name": "night", "budget": 20, "score": score,
        "progress": False,
    }  # fmt: skip
    assert spy.given("use_encoder")["options"] == EncoderOptions(device="cuda", skip_bad=True)


def test_calibrate_reports_the_photos_and_how_to_go_back(run, folder):
    result = run("calibrate", "town.tfa", "camera", "bad.jpg", "--name", "fog", "--budget", 9, "--skip-bad")
    entry, told = calibration("town.tfa", "fog"), " ".join(result.stdout.split())
    for text in (
        "calibrated town.tfa as fog", "fitted on 9 of 15 photos; data used: map images and calibration photos",
        "--calibration none",
    ):  # fmt: skip
        assert text in told
    assert "carrier" not in told
    [strength] = entry["decisions"]["strengths"].values()
    said = (entry["reasons"]["route"], entry["reasons"]["carrier"], entry["verification"]["reason"])
    decided = " ".join(run("info", "town.tfa", "--evidence").stdout.split())
    for text in (
        f"assignment {entry['decisions']['route']}", *(text.partition(": ")[2] for text in said),
        f"c {strength['c']:.3f}, β {strength['beta']:.3f}", f"changes: {'; '.join(entry['differences'])}",
    ):  # fmt: skip
        assert text in decided
    assert entry["differences"]
    assert "9 of 15 photos were sampled" in result.stderr


def calibration(path: str, name: str) -> dict[str, Any]:
    """What the map on disk says of its calibration."""
    [entry] = [entry for entry in PlaceMap.load(path).info().to_dict()["calibrations"] if entry["name"] == name]
    return entry


def test_calibrate_as_json(run, folder):
    result = run("calibrate", "town.tfa", "camera", "bad.jpg", "--name", "fog", "--skip-bad", "--json")
    told = json.loads(result.stdout)
    assert [skipped["file"] for skipped in told.pop("skipped")] == ["bad.jpg"]
    assert told.pop("notes") == []
    assert told == calibration("town.tfa", "fog")


@pytest.mark.parametrize("name", ["night", "none", None])
def test_query_asks_with_the_calibration_that_is_named(run, spy, folder, name):
    assert run("query", "calibrated.tfa", "near.jpg", *(["--calibration", name] if name else [])).exit_code == 0
    assert spy.given("query_many")["calibration"] == name


def test_info_shows_each_calibration(run, folder, monkeypatch):
    assert "calibrations: day, night (active)\n" in run("info", "calibrated.tfa").stdout
    result = run("info", "calibrated.tfa", "--evidence")
    for text in ("calibration day\n", "calibration night (active)", "not calibrated", "calibrated"):
        assert text in result.stdout
    monkeypatch.setattr("tfa.maps.describe.list_differences", lambda before, after: [])
    same = "changes: none, the decisions are the same"
    assert run("info", "calibrated.tfa", "--evidence").stdout.count(same) == 2


def test_a_real_map_is_calibrated_asked_and_told(run, folder):
    told = json.loads(run("calibrate", "town.tfa", "camera", "--name", "night", "--score", "--json", "-q").stdout)
    assert (told["name"], told["active"], told["data_used"]) == ("night", True, "target")
    assert told["calibration"]["used"] == 14
    assert told["decisions"]["score_calibrated"]
    answers = {
        name: json.loads(run("query", "town.tfa", "camera/05.png", "--json", *option).stdout)
        for name, option in {"default": (), **{n: ("--calibration", n) for n in ("night", "none")}}.items()
    }
    assert answers["default"] == answers["night"] != answers["none"]
    assert "calibrations: night (active)" in run("info", "town.tfa").stdout
    result = run("query", "town.tfa", "camera/05.png", "--calibration", "fog")
    assert result.exit_code == 1
    assert "calibration 'fog' not found. Available: night" in result.stderr
    result = run("calibrate", "town.tfa", "photos")
    assert result.exit_code == 1
    assert "14 of 14 photos are in the map" in result.stderr
    result = run("refit", "town.tfa", "-q")
    assert "calibration night is dropped" in result.stderr


def test_a_calibration_is_activated_and_dropped_without_photos(run, folder):
    for name in ("night", "fog"):
        assert run("calibrate", "town.tfa", "camera", "--name", name, "-q").exit_code == 0
    told = run("calibrate", "town.tfa", "--activate", "none")
    assert told.stdout.strip() == "calibrations: night, fog; active: none"
    assert json.loads(run("calibrate", "town.tfa", "--activate", "fog", "--json").stdout)["active"] == "fog"
    dropped = json.loads(run("calibrate", "town.tfa", "--drop", "fog", "--json").stdout)
    assert dropped == {"active": "none", "calibrations": ["night"]}
    missing = run("calibrate", "town.tfa", "--drop", "fog")
    assert (missing.exit_code, "calibration 'fog' not found" in missing.stderr) == (1, True)


@pytest.mark.parametrize("options", [(), ("camera", "--activate", "none"), ("--activate", "none", "--drop", "night")])
def test_photos_and_the_choice_of_a_calibration_exclude_each_other(run, folder, options):
    result = run("calibrate", "town.tfa", *options)
    assert result.exit_code == 2
    assert "pass photos to calibrate with, or one of --activate" in result.stderr
