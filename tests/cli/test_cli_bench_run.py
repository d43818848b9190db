"""`tfa bench run`, `heads`, `results`: the whole way on a small folder, with the encoder replaced."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.cli.conftest import write_drive
from tests.fakes import FakeEncoder
from tfa_bench.records import Record, find_records

pytestmark = pytest.mark.slow

PLACES = 24


@pytest.fixture
def bench(run, fake_encoder):
    return lambda *args: run("bench", *args)


@pytest.fixture
def town(tmp_path):
    return write_drive(tmp_path / "town", PLACES)


def test_records_are_written_scored_and_kept(bench, town, tmp_path):
    args = ("run", "--dataset", f"town={town}", "--heads", "mean,tfa,tfa-c8,tfa-c64", "--out", tmp_path / "results")
    done = bench(*args)
    assert done.exit_code == 0, done.output
    assert "town: mean written" in done.stdout
    assert "tfa-c64 was not run: a budget of 64 of 24 queries" in done.stderr
    [row] = [line for line in done.stdout.splitlines() if line.startswith("mean ")]
    assert "100.0 [100.0, 100.0]" in row
    assert "3 records" in done.stdout
    again = bench(*args)
    assert "town: tfa-c8 kept" in again.stdout
    assert "town: tfa same" in bench(*args, "--again").stdout


def test_a_run_says_what_ran_where(bench, town, tmp_path):
    args = ("run", "--dataset", f"town={town}", "--heads", "mean", "--out", tmp_path / "results")
    assert "encoder on" not in bench(*args).stderr
    said = " ".join(bench(*args, "--device", "auto").stderr.split())
    assert "encoder on cpu, fit on cpu, scores of TFA's heads on cpu, of others on cpu" in said


def test_json_holds_runs_and_scores(bench, town, tmp_path):
    done = bench("run", "--dataset", f"town={town}", "--heads", "mean,tfa-c64", "--out", tmp_path / "r", "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert [(one["head"], one["outcome"]) for one in facts["runs"]] == [("mean", "written"), ("tfa-c64", "skipped")]
    assert facts["runs"][1]["record"] is None
    assert facts["scores"][0]["recalls"]["1"]["mean"] == 1


def test_rankings_shallower_than_twenty_are_scored_as_deep_as_they_are(bench, town, tmp_path):
    done = bench("run", "--dataset", f"town={town}", "--heads", "mean", "--depth", 7, "--out", tmp_path / "r")
    assert done.exit_code == 0, done.output
    assert "R@5" in done.stdout
    assert "R@10" not in done.stdout


@pytest.mark.parametrize(
    ("dataset", "heads", "message"),
    [
        ("town", "mean", "is not NAME=PATH"),
        ("town=nowhere", "mean", "nowhere is not a folder"),
        ("town=TOWN", "meen", "did you mean 'mean'"),
        ("sped=TOWN", "mean", "607"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_encoded(bench, town, tmp_path, dataset, heads, message):
    args = ("--dataset", dataset.replace("TOWN", str(town)), "--heads", heads, "--out", tmp_path / "r")
    done = bench("run", *args)
    assert done.exit_code != 0
    assert message in done.stderr
    assert not (tmp_path / "r").exists()


def test_dual_heads_take_their_source_words_from_the_file(bench, town, tmp_path):
    np.save(tmp_path / "words.npy", np.random.default_rng(0).normal(size=(6, FakeEncoder().channels)))
    np.save(tmp_path / "narrow.npy", np.eye(3))
    (tmp_path / "notes.npy").write_text("no array")
    args = ("run", "--dataset", f"town={town}", "--heads", "dual,dual-c8", "--out", tmp_path / "r", "--vocabulary")
    done = bench(*args, tmp_path / "words.npy")
    assert done.exit_code == 0, done.output
    for path in find_records(tmp_path / "r"):
        record = Record.read(path)
        assert record.head["settings"]["vocabulary"] == "words.npy"
        assert len(record.head["settings"]["vocabulary_blake2b"]) == 32
        made = record.folds[0][0]["decisions"]
        assert (made["source"], made["source_words"]) == ("given", 6)
    assert "was made from other inputs (head)" in bench(*args[:-1]).stderr  # never mixed with database-fitted words

    def refuse(file, *heads):
        refused = bench(*args[:4], *(heads or args[4:5]), "--out", tmp_path / "other", "--vocabulary", file)
        assert refused.exit_code != 0
        return " ".join(refused.stderr.replace("│", " ").split())

    assert "words of 3 channels" in refuse(tmp_path / "narrow.npy")
    assert "is not an array of numbers in .npy format" in refuse(tmp_path / "notes.npy")
    assert "applies to anyloc-released and dual heads" in refuse(tmp_path / "words.npy", "tfa")
    assert "does not exist" in refuse(tmp_path / "gone.npy")


def test_heads_are_listed_with_what_they_see(bench):
    done = bench("heads")
    assert done.exit_code == 0, done.output
    [row] = [line for line in done.stdout.splitlines() if line.startswith("tfa-c64 ")]
    assert "target" in row
    assert "C64" in row
    assert "ablations: tfa-support-only" in done.stdout
    facts = json.loads(bench("heads", "--json").stdout)
    assert {"name", "title", "sees", "plan", "settings", "note"} == set(facts["heads"][0])
    assert "tfa" in facts["groups"]["calibrated"]


@pytest.mark.slow
def test_the_page_says_where_a_head_is_below_a_peer(bench, town, tmp_path):
    results = tmp_path / "results"
    heads = "anyloc,mean,ria,tfa,tfa-c8,dual-c8,tfa-no-cls,soft-original,tfa-fullq"
    assert bench("run", "--dataset", f"town={town}", "--heads", heads, "--out", results).exit_code == 0
    page = tmp_path / "page.md"
    done = bench("results", "--records", results, "--encoder", "fake@28", "--out", page, "--command", "make it")
    assert done.exit_code == 0, done.output
    text = page.read_text("utf-8")
    assert "$ make it" in text
    assert "The encoder is `fake@28`.\n**The paper does not use this encoder" in text
    assert "| town | `town` | 24 | 24 |" in text
    for heading in (
        "Heads, R@1/5/10/20",
        "Ablations, R@1",
        "Spectral controls",
        "Differences from published methods",
        "Decisions of TFA",
    ):
        assert heading in text
    scores = {one["head"]: one for one in json.loads(bench("score", results, "--json").stdout)}
    lost = sum(
        scores["tfa"]["recalls"]["1"]["mean"] < scores[name]["recalls"]["1"]["mean"]
        for name in ("anyloc", "mean", "ria")
    )
    differences = text.partition("## Differences from published methods")[2].partition("\n## ")[0]
    [row] = [line for line in differences.partition("### TFA\n")[2].splitlines() if line.startswith("| town |")]
    assert row.count("**-") == lost
    printed = bench("results", "--records", results, "--encoder", "fake@28", "--command", "make it")
    assert printed.stdout == text
