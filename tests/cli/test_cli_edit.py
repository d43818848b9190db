"""`tfa info`, `tfa add`, `tfa remove`, `tfa refit`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tfa.maps import PlaceMap
from tfa.photos.find_positions import PositionSources


def test_info_is_short(run, folder):
    result = run("info", "town.tfa")
    facts = PlaceMap.load("town.tfa").info()
    labels = [line.split(":")[0].strip() for line in result.stdout.splitlines()]
    assert labels == [
        "town.tfa", "images", "size", "encoder", "head", "reranking", "calibrations", "expected recall",
        "show the decisions and their reasons with",
    ]  # fmt: skip
    assert f"{facts.decisions['assignment']} assignment, {facts.decisions['carrier']} carrier" in result.stdout
    assert "σ" not in result.stdout


def test_evidence_gives_decisions_with_numbers_and_reasons(run, folder):
    result = run("info", "town.tfa", "--evidence")
    assert result.exit_code == 0
    facts, told = PlaceMap.load("town.tfa").info().to_dict(), " ".join(result.stdout.split())
    said = [text for name, text in facts["reasons"].items() if name != "strengths"]
    reasons = [text.partition(": ")[2] for text in (*said, facts["verification"]["reason"])]  # after the choice
    for text in (
        "images: 14 (3 with a position)", *reasons, f"format {facts['format_version']}, ",
        "fitted on 14 images", "map images only", "pseudo queries 14", "rho", "192 bytes of patches per image",
        " ".join(f"{sigma:.4g}" for sigma in facts["decisions"]["sigma_local"]),
        f"hard/partial {row(facts['evidence']['candidates']['hard/partial'])}",
        f"usual evidence {facts['verification']['usual_evidence']:.4g}",
    ):  # fmt: skip
        assert text in told
    assert "the global token rests on less than one photo" in result.stderr


def row(measured: dict) -> str:
    return " ".join(f"{number:.4g}" for number in (measured["support"], *measured["agreement"]))


def test_info_as_json_is_what_the_map_says(run, folder):
    assert (
        json.loads(run("info", "calibrated.tfa", "--json").stdout) == PlaceMap.load("calibrated.tfa").info().to_dict()
    )


def test_add(run, spy, folder):
    result = run("add", "town.tfa", "near.jpg", "walk", "bad.jpg", "--positions", "where.csv", "--skip-bad")
    assert result.exit_code == 0
    assert spy.given("add") == {
        "photos": [Path("near.jpg"), Path("walk"), Path("bad.jpg")],
        "positions": PositionSources(csv=Path("where.csv")),
        "progress": True,
    }  # fmt: skip
    assert "added 3 images (ids 14, 15, 16)" in result.stdout
    assert "the map holds 17 images" in result.stdout
    assert "note: 4 rows of where.csv match no image" in result.stderr
    assert "1 file skipped:\n  bad.jpg cannot be opened: " in result.stderr
    assert "images: 17 (4 with a position; the head was not fitted on 18% of them)" in run("info", "town.tfa").stdout


def test_add_as_json(run, folder):
    result = run("add", "town.tfa", "near.jpg", "walk", "far.jpg", "bad.jpg", "--skip-bad", "--json")
    told = json.loads(result.stdout)
    assert [skipped.pop("file") for skipped in told["skipped"]] == ["bad.jpg"]
    assert [set(skipped) for skipped in told.pop("skipped")] == [{"reason"}]
    advice = "the head was not fitted on 22% of the photos; refit with: tfa refit"
    assert told == {"added": [14, 15, 16, 17], "removed": [], "notes": [advice], "images": 18}
    assert f"note: {advice}" in result.stderr
    assert f"note: {advice}" in run("info", "town.tfa").stderr


def test_remove_takes_files_and_ids(run, spy, folder):
    result = run("remove", "town.tfa", "3", "photos/05.png")
    assert spy.given("remove")["photos"] == [3, "photos/05.png"]
    assert "removed 2 images (ids 3, 5)" in result.stdout
    assert "the map holds 12 images" in result.stdout
    told = json.loads(run("remove", "town.tfa", "4", "--json").stdout)
    assert (told["removed"], told["images"]) == ([4], 11)


def test_refit_says_what_changed(run, folder):
    assert "no decision changed" in run("refit", "town.tfa").stdout
    before = PlaceMap.load("town.tfa").info().to_dict()["decisions"]
    run("add", "town.tfa", "near.jpg", "walk")
    result = run("refit", "town.tfa")
    assert result.exit_code == 0
    after = PlaceMap.load("town.tfa").info().to_dict()["decisions"]
    assert "refitted town.tfa" in result.stdout
    assert before["assignment"] != after["assignment"]
    assert f"changed: assignment: {before['assignment']} → {after['assignment']}" in result.stdout
    assert json.loads(run("refit", "town.tfa", "--json").stdout)["decisions"] == after


def test_refit_fits_where_it_should(run, spy, folder):
    assert run("refit", "town.tfa", "--device", "cuda").exit_code == 0
    assert spy.given("use_encoder")["options"].device == "cuda"


@pytest.mark.parametrize("verb", [("add", "town.tfa", "near.jpg"), ("refit", "town.tfa")])
@pytest.mark.parametrize("precision", ["int8", "float32"])
def test_edits_encode_in_the_chosen_precision(run, spy, folder, verb, precision):
    assert run(*verb, "--precision", precision).exit_code == 0
    assert spy.given("use_encoder")["options"].precision == precision
