"""`tfa bench run --heads salad --checkpoint salad=FILE`: from photos and a small checkpoint to a row of a table."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch

from tests.benchmarks.heads.trained.tiny import tensors_of
from tests.cli.conftest import write_drive
from tfa_bench.provenance import ALGORITHM
from tfa_bench.records import Record, record_path

PLACES = 6


@pytest.fixture
def town(tmp_path):
    return write_drive(tmp_path / "town", PLACES)


@pytest.fixture
def salad(tmp_path):
    torch.save(tensors_of("salad"), tmp_path / "dino_salad.ckpt")
    return tmp_path / "dino_salad.ckpt"


def test_a_checkpoint_becomes_a_record_and_a_row(run, fake_encoder, town, salad, tmp_path):
    results = tmp_path / "results"
    args = ("--dataset", f"town={town}", "--heads", "salad,mean", "--out", results)
    done = run("bench", "run", *args, "--checkpoint", f"salad={salad}")
    assert done.exit_code == 0, done.output
    assert "town: salad written" in done.stdout
    record = Record.read(record_path(results, "town", "salad@322", "salad"))
    assert record.head["data_used"] == "labels"
    assert record.head["settings"]["checkpoint"] == "dino_salad.ckpt"
    assert record.head["settings"]["sha256"] == hashlib.sha256(salad.read_bytes()).hexdigest()
    assert record.algorithm == {"trained": ALGORITHM["trained"]}
    assert record.rankings[:, 0, 0, 0].tolist() == list(range(PLACES))  # brighter photos of the same places
    again = run("bench", "run", *args, "--checkpoint", f"salad={salad}", "--again")
    assert "town: salad same" in again.stdout
    for encoder in ((), ("--encoder", "fake@28")):  # a reference stands beside any encoder's rows
        table = run("bench", "table", "heads", "--records", results, *encoder)
        assert table.exit_code == 0, table.output
        lines = table.stdout.splitlines()
        heading = next(i for i, line in enumerate(lines) if "**Supervised references**" in line)
        assert lines[heading + 1].startswith("| SALAD ")
        assert "| labels " in lines[heading + 1]
        assert "100.00" in lines[heading + 1]
        assert "**100" not in lines[heading + 1]  # not ranked
    assert "trained with labels, weights of dino\\_salad.ckpt" in table.stdout


def test_with_trained_heads_alone_no_other_encoder_is_loaded(run, town, salad, tmp_path, monkeypatch):
    monkeypatch.setattr("tfa_bench.cli.run.loaded_encoder", lambda *_: pytest.fail("was loaded"))
    monkeypatch.setenv("TFA_CHECKPOINTS", str(salad.parent))
    done = run("bench", "run", "--dataset", f"town={town}", "--heads", "salad", "--out", tmp_path / "r", "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert [(one["head"], one["outcome"]) for one in facts["runs"]] == [("salad", "written")]
    assert facts["scores"][0]["sees"] == "labels"
    native = run("bench", "table", "native", "--records", tmp_path / "r")
    assert "| SALAD " in native.stdout


@pytest.mark.parametrize(
    ("heads", "checkpoints", "message"),
    [
        ("salad", [], "pass --checkpoint salad=FILE, or put it as dino_salad.ckpt"),
        ("salad", ["salad"], "is not HEAD=FILE"),
        ("salad", ["sallad=x"], "'sallad' is not a trained system"),
        ("mean", ["salad=SALAD"], "--heads does not name salad"),
        ("salad", ["salad=SALAD", "salad=SALAD"], "--checkpoint names salad twice"),
        ("salad", ["salad=nowhere.pth"], "no checkpoint nowhere.pth of SALAD"),
        ("salad", ["salad=CUT"], "dino_cut.ckpt is not a complete checkpoint of SALAD"),
        ("salad", ["salad=CUT"], "1 missing: aggregator.token_features.0.bias"),
        ("boq", [], "MIT (repository); none stated for the weights"),
        ("boq", ["boq=SALAD"], "looks like SALAD's checkpoint; use --heads salad"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_encoded(run, town, salad, tmp_path, heads, checkpoints, message):
    cut = {name: tensor for name, tensor in tensors_of("salad").items() if name != "aggregator.token_features.0.bias"}
    torch.save(cut, tmp_path / "dino_cut.ckpt")
    given = []
    for text in checkpoints:
        given += ["--checkpoint", text.replace("SALAD", str(salad)).replace("CUT", str(tmp_path / "dino_cut.ckpt"))]
    done = run("bench", "run", "--dataset", f"town={town}", "--heads", heads, "--out", tmp_path / "r", *given)
    assert done.exit_code != 0
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert "\\n" not in done.stderr
    assert not (tmp_path / "r").exists()


def test_antialiasing_without_a_system_that_leaves_it_open_is_refused(run, town, tmp_path):
    done = run("bench", "run", "--dataset", f"town={town}", "--heads", "mean", "--out", tmp_path / "r", "--antialias")
    assert done.exit_code == 2
    assert "--heads names neither" in " ".join(done.stderr.replace("│", " ").split())


def test_every_system_of_the_paper_is_listed_with_what_it_needs(run):
    printed = run("bench", "heads").stdout
    facts = json.loads(run("bench", "heads", "--json").stdout)
    wanting = {one["name"]: one for one in facts["need_files"]}
    for name in ("salad", "boq", "selavpr++-b", "selavpr++-l", "sample4geo", "megaloc"):
        assert wanting[name]["sees"] == "labels"
        assert wanting[name]["needs"] == f"--checkpoint {name}=FILE"
        assert name in printed
    assert wanting["segvlad-mobilesam"]["sees"] == "database"
    assert "tfa weights get mobilesam" in wanting["segvlad-mobilesam"]["needs"]
    known = {one["name"] for one in facts["heads"]} | set(wanting)
    assert {"anyloc", "tfvpr", "ria", "segvlad", "tfa", "tfa-c64", "dual-c64"} <= known


@pytest.mark.slow
def test_the_page_of_results_shows_a_reference_and_counts_it_among_no_peers(run, fake_encoder, town, salad, tmp_path):
    results = tmp_path / "results"
    args = ("--dataset", f"town={town}", "--heads", "salad,mean,tfa", "--out", results)
    assert run("bench", "run", *args, "--checkpoint", f"salad={salad}").exit_code == 0
    done = run("bench", "results", "--records", results, "--encoder", "fake@28")
    assert done.exit_code == 0, done.output
    tables, _, compared = done.stdout.partition("## Differences from published methods")
    assert "**Supervised references**" in tables
    assert "| SALAD " in tables
    assert "Mean patch token" in compared
    assert "SALAD" not in compared
    missing = run("bench", "results", "--records", results, "--encoder", "fake@29")
    assert "holds no record of encoder 'fake@29'" in missing.stderr
