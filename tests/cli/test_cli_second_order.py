"""Second-order maps on the command line: built, shown, calibrated without the map's photos, and refitted."""

from __future__ import annotations

import json
import shutil

import pytest

from tfa.maps import PlaceMap


def told(result) -> str:
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


@pytest.fixture
def second_order(run, folder):
    return told(run("build", "photos", "--out", "second.tfa", "--set", "head.words=6"))


def test_build_and_info_name_the_defaults(run, second_order):
    reasons = PlaceMap.load("second.tfa").info().reasons
    plain, evidence = told(run("info", "second.tfa")), told(run("info", "second.tfa", "--evidence"))
    assert "head: second-order (tempered carrier)" in plain
    assert "with: tfa info second.tfa --evidence" in plain
    for reason in reasons.values():
        assert reason in evidence
        assert reason not in plain
    assert "σ of S_0" in evidence
    assert "σ" not in plain
    info = json.loads(run("info", "second.tfa", "--json").stdout)
    assert info["head"] == "second-order"
    assert {"representation", "carrier", "centring", "score_calibrated"} <= set(info["decisions"])


def test_a_carrier_is_refused_where_the_head_decides_about_it(run, folder):
    refused = run("build", "photos", "--out", "other.tfa", "--head", "paper", "--set", "map.carrier=partial")
    assert refused.exit_code == 2
    assert "the paper head chooses its carrier" in " ".join(refused.output.split())
    assert not (folder / "other.tfa").exists()


def test_a_head_and_its_carrier_are_chosen(run, folder):
    told(run("build", "photos", "--out", "blended.tfa", "--head", "second-order", "--set", "map.carrier=blend"))
    assert "blend carrier" in told(run("info", "blended.tfa"))
    refused = run("build", "photos", "--out", "other.tfa", "--head", "best")
    assert refused.exit_code == 2
    assert (
        refused.stderr
        == "error: --head: 'best' is unknown; use second-order, paper or paper-dual\nSee tfa build --help.\n"
    )


def test_calibrate_needs_the_map_alone(run, second_order, folder):
    shutil.rmtree("photos")
    shutil.rmtree(folder / "cache", ignore_errors=True)
    assert "fitted on 14 of 14 photos" in told(run("calibrate", "second.tfa", "camera"))
    text = told(run("info", "second.tfa", "--evidence"))
    assert "centering on the photos" in text
    assert "changes:" in text
    assert "queries are centered on the photos; scores are calibrated" in text


def test_refit_says_what_changed(run, second_order, folder):
    assert "no decision changed" in told(run("refit", "second.tfa"))
