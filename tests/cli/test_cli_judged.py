"""Judged maps on the command line: built, told about, calibrated without the map's photos, and fitted again."""

from __future__ import annotations

import json
import shutil

import pytest

from tfa.maps import PlaceMap


def told(result) -> str:
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


@pytest.fixture
def judged(run, folder):
    return told(run("build", "photos", "--out", "judged.tfa", "--set", "head.words=6"))


def test_build_and_info_say_what_the_judge_saw(run, judged):
    reason = PlaceMap.load("judged.tfa").info().to_dict()["reasons"]["judge"]
    for text in (judged, told(run("info", "judged.tfa"))):
        for part in ("representation", "carrier", "centring on the map", "scores as they are", reason):
            assert part in text
    text = told(run("info", "judged.tfa"))
    assert "candidates value error difference difference error" in text
    assert "second_order/tempered" in text
    info = json.loads(run("info", "judged.tfa", "--json").stdout)
    assert info["head"] == "judged"
    assert {"representation", "carrier", "centring", "score_calibrated"} <= set(info["decisions"])


@pytest.mark.parametrize("head", ["judged", "paper"])
def test_a_carrier_is_refused_where_the_head_decides_about_it(run, folder, head):
    refused = run("build", "photos", "--out", "other.tfa", "--head", head, "--set", "map.carrier=partial")
    assert refused.exit_code == 1
    assert f"the {head} head decides about its carrier itself" in " ".join(refused.output.split())
    assert not (folder / "other.tfa").exists()


def test_a_head_and_its_carrier_are_chosen(run, folder):
    words = ("--head", "second-order", "--set", "map.carrier=blend")
    text = told(run("build", "photos", "--out", "blended.tfa", *words))
    assert "carrier blend plain and partly whitened scores blended" in text
    assert "not judged, the carrier was given" in text
    refused = run("build", "photos", "--out", "other.tfa", "--head", "best")
    assert refused.exit_code == 2
    assert all(kind in refused.stderr for kind in ("--head", "'judged'", "'second-order'", "'paper'"))


def test_calibrate_needs_the_map_alone(run, judged, folder):
    shutil.rmtree("photos")
    shutil.rmtree(folder / "cache", ignore_errors=True)
    text = told(run("calibrate", "judged.tfa", "camera"))
    assert "centring on the photos" in text
    assert "changes:" in text
    assert "queries are centred on the photos; scores are calibrated" in text
    assert "queries are centred on the photos" in told(run("info", "judged.tfa"))


def test_refit_says_what_changed(run, judged, folder):
    assert "no decision changed" in told(run("refit", "judged.tfa"))
