"""Verification through the real command line, on a real map under the fake encoder."""

from __future__ import annotations

import json

from tfa.maps import PlaceMap


def asked(run, *words):
    result = run("query", *words, "--json")
    assert result.exit_code == 0, result.stderr
    return [hit["inliers"] for hit in json.loads(result.stdout)["answers"][0]["hits"]]


def test_a_real_map_is_asked_with_and_without_verification(run, folder):
    admitted = json.loads(run("info", "town.tfa", "--json").stdout)["verification"]["admitted"]
    verified = asked(run, "town.tfa", "camera/05.png", "--rerank", "--set", "candidates=2")
    assert [inliers is None for inliers in verified] == [False, False, True, True, True]
    assert asked(run, "town.tfa", "camera/05.png", "--no-rerank") == [None] * 5
    default = asked(run, "town.tfa", "camera/05.png")
    assert [inliers is not None for inliers in default] == [admitted] * 5


def test_a_map_without_compact_tokens_cannot_verify(run, folder):
    assert asked(run, "plain.tfa", "camera/05.png") == [None] * 5
    result = run("query", "plain.tfa", "camera/05.png", "--rerank")
    assert result.exit_code == 2
    assert "build it with --rerank" in result.stderr
    assert "reranking: off (no patches stored)" in run("info", "plain.tfa").stdout


def test_info_tells_the_decision_with_its_numbers(run, folder):
    facts = PlaceMap.load("town.tfa").info().to_dict()["verification"]
    told = " ".join(run("info", "town.tfa", "--evidence").stdout.split())
    assert "192 bytes of patches per image" in told
    assert facts["reason"].partition(": ")[2] in told
    assert f"usual evidence {facts['usual_evidence']:.4g}" in told
    run("calibrate", "town.tfa", "camera", "-q")
    told = " ".join(run("info", "town.tfa", "--evidence").stdout.split())
    assert told.count("reranking on the map stores patches") == 2  # of the map and of the calibration


def test_refit_keeps_verification_as_the_map_has_it(run, folder):
    for name, kept in (("town.tfa", True), ("plain.tfa", False)):
        after = json.loads(run("refit", name, "--json").stdout)
        assert (after["verification"] is not None) == kept
    assert "changed" in run("refit", "town.tfa", "-q").stdout
