"""`tfa encoders` and `tfa weights get`, without a network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.encoders.hub_models import save_model
from tests.fakes import random_image
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


def test_try_tells_tokens_speed_and_memory(run, folder):
    result = run("encoders", "try", "fake", "--photos", "photos")
    assert result.exit_code == 0, result.stderr
    assert "encoder: fake@28\ntokens: 16 patches of 12 channels, grid 4 x 4, a global token\nspeed: " in result.stdout
    assert "token cache for 14 photos: 5.5 kB" in result.stdout
    trial = json.loads(run("encoders", "try", "fake", "--photos", "photos", "--json").stdout)
    assert (trial["patches"], trial["channels"], trial["grid"], trial["global_channels"]) == (16, 12, [4, 4], 6)
    assert (trial["photos"], trial["token_bytes"], trial["input"], trial["prefix"]) == (14, 396, [28, 28], None)
    assert trial["seconds"] > 0
    assert trial["peak_memory"] > 1e7


def test_speed_tells_times_that_add_up(run, folder, monkeypatch):
    monkeypatch.setattr("tfa.cli.tools.SPEED_SECONDS", 0.0)
    result = json.loads(run("speed", "town.tfa", "--json").stdout)
    assert (result["encoder"], result["device"], result["precision"]) == ("fake@28", "cpu", "float32")
    assert (result["images"], result["frames"]) == (14, 3)
    assert min(result[name] for name in ("open", "first_query", "read", "encode", "answer", "threads")) > 0
    assert result["frames_per_second"] == pytest.approx(1 / (result["read"] + result["encode"] + result["answer"]))
    assert result["peak_memory"] > 1e7
    printed = run("speed", "town.tfa", "--photos", "camera", "--threads", 1).stdout
    assert printed.startswith("town.tfa: 14 images, fake@28 in float32 on cpu, 1 thread\ncold: ")
    assert "frames per second of one camera (read " in printed


def test_speed_needs_photos(run, folder):
    assert run("build", "walk", "--out", "walk.tfa").exit_code == 0
    shutil.rmtree("walk")
    result = run("speed", "walk.tfa")
    assert result.exit_code == 2
    assert "pass photos with --photos FOLDER" in result.stderr


def test_try_tells_the_preprocessing_of_a_model(run, tmp_path):
    random_image(1).save(tmp_path / "photo.png")
    name = save_model("dinov2-registers", tmp_path / "model")
    result = run("encoders", "try", f"{name}@45", "--photos", tmp_path / "photo.png")
    assert result.exit_code == 0, result.stderr
    assert "tokens: 9 patches of 24 channels, grid 3 x 3, a global token" in result.stdout
    assert "input: 42 x 42 pixels, bicubic, mean [0.5, 0.4, 0.3], std [0.2, 0.3, 0.4]" in result.stdout
    assert "tokens before the patches: 5" in result.stdout
    assert "42x42 instead of 45x45" in result.stderr
    result = run("encoders", "try", f"hf:{tmp_path}/absent", "--photos", tmp_path / "photo.png")
    assert result.exit_code == 1
    assert "absent not found" in result.stderr


def test_weights_of_a_hub_model(run, tmp_path):
    name = save_model("vit", tmp_path / "model")
    assert run("weights", "get", name).stdout.strip().endswith(str(tmp_path / "model"))
