"""Maps of the dual-vocabulary head on the command line: built, calibrated, queried, exported and explained."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def words(folder):
    """File of 5 source words."""
    np.save("words.npy", np.random.default_rng(7).normal(size=(5, 12)).astype(np.float32))
    return "words.npy"


def done(result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_dual_map_is_built_and_used(run, folder, words):
    build = ("build", "photos", "--out", "dual.tfa", "--head", "paper-dual", "--vocabulary", words)
    done(run(*build, "--set", "head.words=6"))
    info = json.loads(done(run("info", "dual.tfa", "--json")))
    assert (info["head"], info["decisions"]["vocabulary"]) == ("paper-dual", words)
    assert (info["decisions"]["source"], info["decisions"]["source_words"]) == ("given", 5)
    done(run("calibrate", "dual.tfa", "camera", "--name", "dusk"))
    [answer] = json.loads(done(run("query", "dual.tfa", "near.jpg", "--json")))["answers"]
    assert (Path(answer["hits"][0]["image"]).name, answer["calibration"]) == ("05.png", "dusk")
    done(run("export", "dual.tfa", "--out", "dual.npz"))
    with np.load("dual.npz") as exported:
        assert len(exported["vectors"]) == 14
    explained = json.loads(done(run("explain", "dual.tfa", "near.jpg", "--json")))
    assert Path(explained["answer"]["image"]).name == "05.png"
    assert "5 from words.npy" in " ".join(done(run("info", "dual.tfa", "--evidence")).split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--vocabulary", "words.npy"], "--vocabulary is for --head paper-dual, not second-order"),
        (["--head", "paper-dual", "--vocabulary", "gone.npy"], "--vocabulary: 'gone.npy' does not exist"),
        (["--paper", "--vocabulary", "words.npy"], "--paper builds TFA as published and excludes --vocabulary"),
    ],
)
def test_source_words_are_checked_before_the_work(run, folder, words, options, said):
    refused = run("build", "photos", "--out", "dual.tfa", *options)
    assert refused.exit_code == 2
    assert said in " ".join(refused.stderr.split())
    assert not (folder / "dual.tfa").exists()
