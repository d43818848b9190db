"""`tfa info`, `tfa add`, `tfa remove`, `tfa refit`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def test_info_gives_decisions_with_numbers_and_reasons(run, stub, folder):
    result = run("info", "town.tfa")
    assert result.exit_code == 0
    for text in (
        "92 images, 88 with a position; 2% of them not seen", "soft agrees more", "widest support",
        "0.1 0.2 0.3", "format 1", "fitted on 90 images", "its own photos only", "pseudo queries  90",
        "rho", "0.9 0.8 0.7", "hard/partial  61.25    0.5 0.75 1", "67,712 bytes per image",
        "not used: with it 61.2; it must cover more of the map", "with          61.25    0.75 0.75 0.75",
    ):  # fmt: skip
        assert text in result.stdout
    assert "note: 2 rows" in result.stderr


def test_info_as_json_is_what_the_map_says(run, stub, folder):
    assert json.loads(run("info", "town.tfa", "--json").stdout) == stub().info()


def test_add(run, stub, folder):
    result = run("add", "town.tfa", "near.jpg", "photos", "--positions", "where.csv", "--skip-bad")
    assert result.exit_code == 0
    assert stub.given("add") == {
        "photos": [Path("near.jpg"), Path("photos")], "positions": Path("where.csv"), "skip_bad": True,
        "progress": True,
    }  # fmt: skip
    assert "added 2 images (ids 90, 91)" in result.stdout
    assert "the map holds 92 images" in result.stdout
    assert "note: 21 % of the images were not seen" in result.stderr
    assert "1 file skipped" in result.stderr


def test_add_as_json(run, stub, folder):
    assert json.loads(run("add", "town.tfa", "near.jpg", "--json").stdout) == {
        "added": [90, 91],
        "removed": [],
        "skipped": [{"file": "photos/[b]roken.jpg", "reason": "image file is truncated"}],
        "notes": ["21 % of the images were not seen"],
        "images": 92,
    }


def test_remove_takes_files_and_ids(run, stub, folder):
    result = run("remove", "town.tfa", "17", "photos/a.jpg")
    assert stub.given("remove")["images"] == [17, "photos/a.jpg"]
    assert "removed 1 image (id 17)" in result.stdout


def test_refit_says_what_changed(run, stub, folder):
    result = run("refit", "town.tfa")
    assert result.exit_code == 0
    assert "fitted town.tfa again" in result.stdout
    assert "changed: assignment: hard → soft" in result.stdout
    assert json.loads(run("refit", "town.tfa", "--json").stdout)["decisions"]["assignment"] == "soft"


def test_refit_fits_where_it_is_told(run, stub, folder):
    assert run("refit", "town.tfa", "--device", "cuda").exit_code == 0
    assert stub.given("refit")["device"] == "cuda"


@pytest.mark.parametrize("verb", [("add", "town.tfa", "near.jpg"), ("refit", "town.tfa")])
@pytest.mark.parametrize("fast", [True, False])
def test_edits_may_encode_in_integers(run, stub, folder, verb, fast):
    assert run(*verb, *(["--fast"] if fast else [])).exit_code == 0
    assert stub.given("use_encoder")["fast"] is fast
