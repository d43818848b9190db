"""The script deployment.py in small: storage, both protocols, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from studies import deployment
from tests.encoders.conftest import tiny_cards  # noqa: F401  # a fixture for every test here
from tests.worlds import world
from tfa import pipeline
from tfa.method.database import Rules
from tfa.search.gallery import top_k
from tfa.types import HeadSpec
from tfa_bench.heads.controls import calibrate_by

SMALL = ("--encoder", "tiny-v2", "--images", 12, "--queries", 70, "--words", 3, "--warm", 1, "--timed", 2, "--quiet")


def test_the_papers_storage():
    storage = deployment.count_storage(1231, (49_152, 1194, 1194, 768), 1194, 49_152)
    assert storage.bases == 223.875
    assert storage.descriptors == pytest.approx(245.63, abs=0.005)  # the paper prints 245.62
    assert storage.dual == pytest.approx(5.607, abs=0.001)


def mib(*arrays):
    return sum(array.size for array in arrays) * 4 / 2**20


@pytest.mark.parametrize("name", ["anyloc", "tfa", "mixture"])
def test_storage_is_that_of_the_arrays_of_a_head(name):
    tokens = world(40, 20, 6)
    database, queries = tokens.select(slice(0, 12)), tokens.select(slice(12, None))
    centers = deployment.draw_centers(database, 3)
    if name == "mixture":
        head = pipeline.fit(database, HeadSpec(words=3), centers)
        rules = Rules(route=lambda evidence: "mixture", carrier=lambda *candidates: "partial")
        scorer = calibrate_by(rules, head, queries).scorer(0)
    else:
        scorer = deployment.fit_head(name, database, queries, centers, "cpu").scorers[0]
    storage = deployment.measure_storage(scorer)
    rows = [np.asarray(part) for term in scorer.terms for part in term.gallery.chunks]
    assert storage.descriptors == pytest.approx(mib(*rows))
    bases = [side.geometry.vectors for side in scorer.sides if side.geometry is not None]
    assert len(bases) == {"anyloc": 0, "tfa": 1, "mixture": 2}[name]
    assert storage.dual == pytest.approx(mib(*bases))
    # U has a row for each dimension of a descriptor, E one for each image.
    assert storage.bases == pytest.approx(mib(*bases) / 12 * 3 * 6)


@pytest.mark.parametrize("device", ["cpu", "torch"])
@pytest.mark.parametrize("name", deployment.HEADS)
def test_both_paths_rank_alike(name, device):
    tokens = world(80, 20, 6)
    database, queries = tokens.select(slice(0, 12)), tokens.select(slice(12, None))
    fitted = deployment.fit_head(name, database, queries, deployment.draw_centers(database, 3), "cpu")
    assert len(fitted.scorers) == 3
    assert fitted.setup >= fitted.controller >= 0
    scorer = fitted.scorers[1]
    expected = top_k(scorer.scores(queries), deployment.TOP)[0]
    np.testing.assert_array_equal(deployment.retrieve(scorer, queries, device), expected)
    first = deployment.make_calls(scorer, queries, device)[3]()
    best = first[0].numpy() if isinstance(first, tuple) else first
    np.testing.assert_array_equal(best[0], expected[3])


def test_every_timed_call_waits_for_the_device(monkeypatch):
    events = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("wait"))
    timing = deployment.time_calls([lambda: events.append("a"), lambda: events.append("b")], "cuda", 1, 2)
    assert events == ["wait", "a", "wait", "wait", "b", "wait", "wait", "a", "wait"]
    assert timing.mean > 0


def test_batch_one(script, tmp_path):
    done = script(deployment.main, "batch-one", *SMALL, "--device", "torch", "--out", tmp_path / "a.json")
    assert done.exit_code == 0, done.stderr
    facts = json.loads((tmp_path / "a.json").read_text("utf-8"))
    assert list(facts["heads"]) == ["anyloc", "tfa", "tfa-c64"]
    assert facts["encoder_ms"]["mean"] > 0
    assert facts["device"] == "cpu, torch, float32"
    assert "head × AnyLoc" in done.stdout
    assert "paper (RTX 3090" in done.stdout
    [row] = [line.split() for line in done.stdout.splitlines() if line.startswith("anyloc")]
    assert row[5:7] == ["1.00", "1.00"]


def test_amortized_runs_fresh_processes_in_alternating_order(script, monkeypatch):
    order = []

    def run(command, **_):
        order.append(command[command.index("--worker") + 1])
        facts = {
            "setup": 2.0, "controller": 1.0, "retrieval": 0.3, "milliseconds": len(order[-1]), "rankings": "x",
            "queries": 6, "images": 12, "device": "made up",
        }  # fmt: skip
        return deployment.subprocess.CompletedProcess(command, 0, json.dumps(facts), "")

    monkeypatch.setattr(deployment.subprocess, "run", run)
    done = script(deployment.main, "amortized", *SMALL, "--heads", "anyloc,tfa")
    assert done.exit_code == 0, done.stderr
    assert order == ["anyloc", "tfa", "tfa", "anyloc", "anyloc", "tfa"]
    [row] = [line for line in done.stdout.splitlines() if line.startswith("tfa")]
    assert "2.00 ± 0.00" in row
    assert "3.000 ± 0.000" in row
    assert row.split()[-2:] == ["0.50", "yes"]


def test_a_worker_measures_one_head(script):
    done = script(deployment.main, "amortized", *SMALL, "--device", "cpu", "--threads", 1, "--worker", "tfa-c64")
    facts = json.loads(done.stdout)
    assert (facts["queries"], facts["images"]) == (6, 12)
    assert facts["milliseconds"] == pytest.approx(1000 * facts["retrieval"] / 18)
    assert 0 < facts["controller"] < facts["setup"]


def test_a_failed_process_and_unknown_heads_are_reported(script, monkeypatch):
    failed = deployment.subprocess.CompletedProcess([], 1, "", "error: no memory\n")
    monkeypatch.setattr(deployment.subprocess, "run", lambda *_, **__: failed)
    done = script(deployment.main, "amortized", *SMALL)
    assert done.exit_code == 1
    assert "measures anyloc failed: error: no memory" in done.stderr
    done = script(deployment.main, "batch-one", *SMALL, "--heads", "tfa")
    assert "must name anyloc" in done.stderr
