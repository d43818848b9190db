"""`tfa encoders` and `tfa weights get`, without a network."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tfa.core.files import write_tensors
from tfa.encoders import packaged_weights, weights
from tfa.encoders.catalogue import CATALOGUE
from tfa.errors import WeightsMissing


@pytest.fixture(autouse=True)
def empty_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda repository, file: None)


def put_weights() -> Path:
    """A whole file in the cache, by what it says of itself."""
    card = CATALOGUE["dinov2-s14-focus"]
    assert card.package is not None
    path = packaged_weights.packaged_path(card)
    write_tensors(path, {"any": np.zeros(9)}, {"sha256": card.package.sha256})
    return path


def test_the_table_lists_every_encoder(run):
    result = run("encoders")
    assert result.exit_code == 0
    for name in CATALOGUE:
        assert name in result.stdout
    assert "yes" not in result.stdout
    assert "default: dinov2-s14-focus" in result.stdout


def test_json_and_the_weights_that_are_here(run):
    path = put_weights()
    rows = {row["name"]: row for row in json.loads(run("encoders", "--json").stdout)}
    assert list(rows) == list(CATALOGUE)
    assert rows["dinov2-s14-focus"]["weights"] == str(path)
    assert rows["dinov2-b14"]["weights"] is None
    assert rows["dinov2-b14"]["hub"] == "facebook/dinov2-base"
    assert rows["dinov2-s14"]["parameters"] == pytest.approx(22.06e6, rel=1e-3)
    path.write_bytes(path.read_bytes()[:-8])  # a download that was cut
    assert "yes" not in run("encoders").stdout


def test_weights_get(run, monkeypatch):
    asked = []

    def resolve(card, file=None, *, progress=None):
        asked.append((card.name, progress))
        put_weights()

    monkeypatch.setattr(weights, "resolve_weights", resolve)
    result = run("weights", "get", "dinov2-s14-focus@224", "--quiet")
    assert result.exit_code == 0
    assert asked == [("dinov2-s14-focus", False)]
    assert Path(result.stdout.split(": ")[1].strip()) == packaged_weights.packaged_path(CATALOGUE["dinov2-s14-focus"])


def test_weights_that_cannot_be_had_and_names_that_are_none(run, monkeypatch):
    def resolve(card, file=None, *, progress=None):
        raise WeightsMissing("no weights for dinov2-b14: the hub is out of reach")

    monkeypatch.setattr(weights, "resolve_weights", resolve)
    result = run("weights", "get", "dinov2-b14")
    assert result.exit_code == 1
    assert result.stderr == "error: no weights for dinov2-b14: the hub is out of reach\n"
    result = run("weights", "get", "dinov2-b41")
    assert result.exit_code == 2
    assert "did you mean 'dinov2-b14'" in result.stderr
