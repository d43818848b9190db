"""The scripts verification.py and confidence.py: the whole way on a small folder."""

from __future__ import annotations

import json

import pytest

import tfa.encoders
from studies import confidence, learned_matcher
from studies import verification as arrangements
from studies.learned_matcher import Matched
from studies.verification import VARIANTS
from tests.cli.conftest import write_drive

PLACES = 7
FUSIONS = [f"fusion-{weight}" for weight in (1, 2, 5, 10)]


@pytest.fixture
def bench(script, fake_encoder, monkeypatch):
    monkeypatch.setattr(arrangements, "TRIALS", 1)
    return lambda name, *args: script({"verification": arrangements.main, "confidence": confidence.main}[name], *args)


@pytest.fixture
def town(tmp_path):
    return write_drive(tmp_path / "town", PLACES)


@pytest.mark.slow
def test_a_table_with_both_halves_and_the_default_marked(bench, town, tmp_path):
    datasets = [f"--dataset={name}={town}" for name in ("north", "south", "west")]
    done = bench("verification", *datasets, "--heads", "tfa-c4+,mean", "--out", tmp_path / "study.json")
    assert done.exit_code == 0, done.output
    assert "Reranking of tfa-c4+, fake@28" in done.stdout
    assert "Reranking of mean" in done.stdout
    assert "tuning: north, west; confirmation: south" in done.stdout
    header = next(line for line in done.stdout.splitlines() if line.startswith("factor"))
    assert header.split() == ["factor", "variant", "north", "west", "mean,", "tuning", "south", "mean,", "confirmation"]
    marked = [line for line in done.stdout.splitlines() if "as built *" in line]
    assert len(marked) == 2
    assert len(marked[0].split()) == 3 + 5
    taken = [line.split()[-5:] for line in done.stdout.splitlines() if "mean number of candidates" in line]
    assert taken == [["7.0"] * 5] * 2  # of seven images all
    facts = json.loads((tmp_path / "study.json").read_text("utf-8"))
    assert [study["head"] for study in facts] == ["tfa-c4+", "mean"]
    assert [one["half"] for one in facts[0]["datasets"]] == ["tuning", "confirmation", "tuning"]
    assert [one["queries"] for one in facts[0]["datasets"]] == [PLACES - 4] * 3
    assert [row["name"] for row in facts[0]["variants"]] == list(VARIANTS)


def test_json_alone_and_one_dataset(bench, town):
    done = bench(
        "verification", "--dataset", f"town={town}", "--heads", "soft-partial", "--factors", "fusion", "--json"
    )
    assert done.exit_code == 0, done.output
    [study] = json.loads(done.stdout)
    assert study["head"] == "soft-partial"
    assert [row["name"] for row in study["variants"]] == ["none", "default", "fusion-alone", *FUSIONS]
    assert study["datasets"][0]["candidates"] == PLACES
    assert study["variants"][0]["confirmation"] is None
    assert study["variants"][0]["recall"] == {"town": study["variants"][0]["tuning"]}


def test_small_patches_are_a_factor_with_their_bytes(bench, town):
    done = bench("verification", "--dataset", f"town={town}", "--heads", "mean", "--factors", "patches", "--json")
    assert done.exit_code == 0, done.output
    [study] = json.loads(done.stdout)
    sizes = {row["name"]: row["bytes_per_image"]["town"] for row in study["variants"]}
    assert sizes == {"none": None, "default": 16 * 12, "patches-small": 16 * 3}  # two bits of twelve numbers


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--dataset", "town"), "is not NAME=PATH"),
        (("--dataset", "town=TOWN", "--factors", "colour"), "unknown factor 'colour'"),
        (("--dataset", "town=TOWN", "--heads", "meen"), "did you mean 'mean'"),
        (
            ("--dataset", "town=TOWN", "--heads", "mean", "--matcher", "sift"),
            "unknown matcher 'sift'; use aliked-lightglue",
        ),
        (("--dataset", "town=TOWN", "--matcher", "aliked-lightglue", "--factors", "fusion"), "are two studies"),
        (("--dataset", "town=TOWN"), "a budget of 64 of 7 queries"),
        (("--dataset", "town=TOWN", "--dataset", "town=TOWN", "--heads", "mean"), "is repeated"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_encoded(bench, town, monkeypatch, words, message):
    monkeypatch.setattr(tfa.encoders, "load_encoder", lambda name, **given: pytest.fail("an encoder was loaded"))
    done = bench("verification", *(word.replace("TOWN", str(town)) for word in words))
    assert done.exit_code != 0
    assert message in done.stderr


class NoKeypoints:
    """A matcher that finds nothing."""

    name, title, fingerprint = "aliked-lightglue", "ALIKED + LightGlue", "fake"

    def describe(self, photo):
        return ()

    def compare(self, query, candidate):
        return Matched(0, 0)


def test_a_learned_matcher_beside_our_patches(bench, town, monkeypatch, tmp_path):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(learned_matcher, "open_matcher", lambda name, bars: NoKeypoints())
    args = ("verification", "--matcher", "aliked-lightglue", "--dataset", f"town={town}", "--heads", "mean")
    done = bench(*args, "--queries", 3)
    assert done.exit_code == 0, done.output
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()]
    assert rows[0] == ["mean, fake@28, 7 candidates", "town"]
    cells = dict(row for row in rows if len(row) == 2)
    assert cells["queries"] == "3"
    assert cells["R@1, no verification"] == cells["R@1, ALIKED + LightGlue, inliers alone"]  # ties: the head's order
    facts = json.loads(bench(*args, "--queries", 3, "--json").stdout)
    assert facts["encoder"] == "fake@28"
    assert f"{100 * facts['datasets'][0]['recall']['patches']:.1f}" == cells["R@1, patch matches, z + 5 √M (ours)"]


def test_confidence_is_judged_on_datasets_left_out(bench, town, tmp_path):
    args = ("confidence", f"--dataset=town={town}", f"--dataset=other={town}")
    done = bench(*args, "--out", tmp_path / "study.json")
    assert done.exit_code == 0, done.output
    facts = json.loads((tmp_path / "study.json").read_text("utf-8"))
    assert {(row["dataset"], row["way"]) for row in facts["left_out"]} == {
        (name, way) for name in ("town", "other") for way in ("alone", "online")
    }
    lines = [line for line in done.stdout.splitlines() if line.startswith("town")]
    assert len(lines) == 2 * 2 + 4  # two ways, reranked and not; own photos and those of the other, in two ways
    assert f"{100 * facts['left_out'][0]['recall']:.1f}" in lines[0]
    assert "points apart on average" in done.stdout
    alone = bench("confidence", f"--dataset=town={town}")
    assert alone.exit_code == 1
    assert "at least twice" in " ".join(alone.stderr.split())
