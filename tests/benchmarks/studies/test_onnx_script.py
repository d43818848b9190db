"""The script onnx_file.py: maps as one file, run by onnxruntime on the photos of a dataset."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from studies import onnx_file
from tests.cli.conftest import write_drive
from tests.encoders.tiny import TINY, random_weights
from tfa.encoders.catalogue import CATALOGUE

PLACES = 10


@pytest.fixture
def bench(script, tmp_path, monkeypatch):
    """The command on a town of ten places, under a tiny encoder of random weights."""
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    card = TINY["tiny-v2"]
    monkeypatch.setitem(CATALOGUE, card.name, card)
    save_file({k: 0.1 * t if "lambda1" in k else t for k, t in random_weights(card).items()}, "w.safetensors")
    write_drive(tmp_path / "town", PLACES)
    chosen = ("--dataset=town=town", "--encoder=tiny-v2@112", "--weights=w.safetensors", "--head=second-order")
    return lambda *args: script(onnx_file.main, *chosen, *args)


def test_files_of_all_numbers_and_of_fewer_are_run_and_counted(bench):
    done = bench("--dims", "5,32", "--out", "files.json", "--queries", "9")
    assert done.exit_code == 0, done.output
    plain, fast = json.loads(Path("files.json").read_text("utf-8"))
    assert [(one["images"], one["queries"], one["fast"]) for one in (plain, fast)] == [(10, 9, False), (10, 9, True)]
    whole, few, many = plain["files"]
    assert (few["dims"], many["dims"]) == (5, 32)
    assert whole["recall"] == many["recall"] == 1.0  # nine directions are all there are
    assert few["recall"] < 1.0
    assert max(one["differs"] for one in plain["files"]) < 1e-4
    assert 1e-4 < fast["files"][0]["differs"] < 0.2  # 8 bits
    assert fast["files"][0]["megabytes"] < whole["megabytes"]
    rows = [line for line in done.stdout.splitlines() if line.startswith("| town")]
    assert len(rows) == 2
    assert f"| 100.0 | {100 * few['recall']:.1f} ({100 * few['recall'] - 100:+.1f}) | 100.0 (+0.0) |" in rows[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [(("--dims", "3"), "integers from 4"), (("--dims", "a,8"), "integers from 4"), (("--head", "best"), "best")],
)
def test_what_is_wrong_is_said_before_anything_is_encoded(bench, tmp_path, words, message):
    done = bench(*words)
    assert done.exit_code != 0
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "cache").exists()
