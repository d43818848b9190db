"""`tfa calibrate`, and what `tfa query` and `tfa info` make of calibrations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo

import tfa.maps


def test_calibrate_passes_on_what_is_asked(run, stub, folder):
    result = run("calibrate", "town.tfa", "photos", "near.jpg")
    assert result.exit_code == 0
    assert stub.given("calibrate") == {
        "photos": [Path("photos"), Path("near.jpg")], "name": "target", "budget": 64, "score": None,
        "skip_bad": False, "device": "cpu", "progress": True,
    }  # fmt: skip


@pytest.mark.parametrize(("flag", "score"), [("--score", True), ("--no-score", False)])
def test_calibrate_options(run, stub, folder, flag, score):
    options = ("--name", "night", "--budget", 20, flag, "--skip-bad", "--device", "cuda", "--quiet")
    assert run("calibrate", "town.tfa", "photos", *options).exit_code == 0
    assert stub.given("calibrate") == {
        "photos": [Path("photos")], "name": "night", "budget": 20, "score": score, "skip_bad": True,
        "device": "cuda", "progress": False,
    }  # fmt: skip
    assert stub.given("use_encoder")["device"] == "cuda"


def test_calibrate_tells_what_it_decided_and_how_to_go_back(run, stub, folder):
    result = run("calibrate", "town.tfa", "photos", "--name", "fog")
    for text in (
        "calibrated town.tfa as fog", "made of 64 of 70 photos; it saw the map's photos and the calibration's",
        "mixture, soft 0.25", "anchor mass speaks for a mixture", "hard c 0.250, β 0.500", "admitted, weight 0.38",
        "unlike without calibration: the carrier is partial instead of adaptive", "--calibration none",
        "used: with it 70.0",
    ):  # fmt: skip
        assert text in result.stdout
    assert "note: 70 photos are more than the budget" in result.stderr
    assert "1 file skipped" in result.stderr


def test_calibrate_as_json(run, stub, folder):
    result = run("calibrate", "town.tfa", "photos", "--name", "fog", "--json")
    told = json.loads(result.stdout)
    entry = stub()._calibration("fog", True)
    assert {key: told[key] for key in entry} == entry
    assert told["skipped"] == [{"file": "photos/[b]roken.jpg", "reason": "image file is truncated"}]
    assert told["notes"] == ["70 photos are more than the budget: 64 were drawn"]


@pytest.mark.parametrize("name", ["night", "none", None])
def test_query_asks_with_the_calibration_that_is_named(run, stub, folder, name):
    assert run("query", "town.tfa", "near.jpg", *(["--calibration", name] if name else [])).exit_code == 0
    assert stub.given("query_many")["calibration"] == name


def test_info_shows_each_calibration(run, stub, folder):
    result = run("info", "town.tfa")
    for text in (
        "calibration day\n", "calibration night, answers unless another is named", "as they are", "calibrated",
        "unlike without calibration: nothing, the decisions are the same",
    ):  # fmt: skip
        assert text in result.stdout


@pytest.fixture
def town(tmp_path, monkeypatch):
    """A real map of photos under the fake encoder, which every load then finds."""
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for place in range(14):
        photo(tmp_path / "town" / f"{place:02d}.png", place)
        photo(tmp_path / "camera" / f"{place:02d}.png", place, light=0.7)
    tfa.maps.PlaceMap.build(tmp_path / "town", encoder=FakeEncoder(), spec=SPEC).save(tmp_path / "town.tfa")
    monkeypatch.setattr("tfa.maps.query.load_encoder", lambda *_, **__: FakeEncoder())
    return tmp_path


def test_a_real_map_is_calibrated_asked_and_told(run, town):
    told = json.loads(run("calibrate", "town.tfa", "camera", "--name", "night", "--score", "--json", "-q").stdout)
    assert (told["name"], told["active"], told["saw"]) == ("night", True, "target")
    assert told["calibration"]["used"] == 14
    assert told["decisions"]["score_calibrated"]
    answers = {
        name: json.loads(run("query", "town.tfa", "camera/05.png", "--json", *option).stdout)
        for name, option in {"default": (), **{n: ("--calibration", n) for n in ("night", "none")}}.items()
    }
    assert answers["default"] == answers["night"] != answers["none"]
    assert "calibration night" in run("info", "town.tfa").stdout
    result = run("query", "town.tfa", "camera/05.png", "--calibration", "fog")
    assert result.exit_code == 1
    assert "there is no calibration 'fog'; the map has night" in result.stderr
    result = run("calibrate", "town.tfa", "town")
    assert result.exit_code == 1
    assert "14 of 14 photos are in the map themselves" in result.stderr
    result = run("refit", "town.tfa", "-q")
    assert "calibration night is dropped" in result.stderr


def test_a_calibration_is_activated_and_dropped_without_photos(run, town):
    for name in ("night", "fog"):
        assert run("calibrate", "town.tfa", "camera", "--name", name, "-q").exit_code == 0
    told = run("calibrate", "town.tfa", "--activate", "none")
    assert told.stdout.strip() == "the map has night, fog; none answers where none is named"
    assert json.loads(run("calibrate", "town.tfa", "--activate", "fog", "--json").stdout)["active"] == "fog"
    dropped = json.loads(run("calibrate", "town.tfa", "--drop", "fog", "--json").stdout)
    assert dropped == {"active": "none", "calibrations": ["night"]}
    missing = run("calibrate", "town.tfa", "--drop", "fog")
    assert (missing.exit_code, "there is no calibration 'fog'" in missing.stderr) == (1, True)


@pytest.mark.parametrize("options", [(), ("camera", "--activate", "none"), ("--activate", "none", "--drop", "night")])
def test_photos_and_the_choice_of_a_calibration_exclude_each_other(run, town, options):
    result = run("calibrate", "town.tfa", *options)
    assert result.exit_code == 2
    assert "give photos to calibrate with, or one of --activate" in result.stderr
