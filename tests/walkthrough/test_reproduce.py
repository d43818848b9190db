"""The page that reproduces the paper: every command runs on tiny datasets, with random weights of the true layout."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import SamModel

from tests.benchmarks.heads.sam.test_sam import tiny_config
from tests.benchmarks.heads.trained.tiny import tensors_of
from tests.cli.conftest import run  # noqa: F401
from tests.encoders.tiny import random_weights, renamed
from tests.maps.conftest import photo
from tests.walkthrough.commands import ROOT, SHELL
from tfa.encoders import weights
from tfa.encoders.catalogue import CATALOGUE
from tfa_bench import protocols
from tfa_bench.datasets.card import cards

PAGE = ROOT / "docs" / "reproduce-the-paper.md"
TEXT = PAGE.read_text("utf-8")
ROWS = [
    line.split(" | ") for line in re.findall(r"^\| (.+) \|$", TEXT.partition("## Data and weights")[0], re.MULTILINE)
]
PLACES, PHOTOS, WIDTH = 8, 10, 24
# Patches are larger and blocks narrower, but as many as in the true model, so that --encoder reads the same block.
PATCHES = {"dinov2-b14": 46, "dinov2-l14": 46, "dinov2-g14": 46, "dinov3-b16": 48}
SMALL = shlex.split("--images 10 --queries 70 --words 4 --warm 1 --timed 2 --repetitions 1 --threads 1 --device cpu")
FILES = {
    "salad": "dino_salad.ckpt", "boq": "dinov2_12288.pth", "selavpr++-b": "SelaVPRplusplus_base.pth",
    "selavpr++-l": "SelaVPRplusplus_large_rerank.pth", "sample4geo": "weights_e1_0.9515.pth",
}  # fmt: skip


def list_commands() -> list[str]:
    """List the commands of the page, in order and once each."""
    blocks = [line for block in SHELL.findall(TEXT) for line in block.splitlines() if line]
    return list(dict.fromkeys([*blocks, *(command for row in ROWS for command in re.findall("`(.+?)`", row[1]))]))


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A folder with every dataset and file that the page names; models, budgets and splits are small."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    for name in sorted(set(re.findall(r"=data/([\w-]+)", TEXT))):
        root = tmp_path / "data" / name
        for place in range(PHOTOS):
            shade = sum(map(ord, name)) + place
            if place < PLACES:
                photo(root / "database" / f"{place}.png", shade)
            photo(root / "queries" / f"{place}.png", shade, light=0.8)
        listed = {f"{place}.png": [f"{place}.png"] for place in range(PLACES)}
        (root / "positives.json").write_text(json.dumps(listed))
        if name in cards():
            (root / "card.json").write_text('{"counts": {}}')
    hub = tmp_path / "hub"
    hub.mkdir()
    for name, patch in PATCHES.items():
        true = CATALOGUE[name]
        card = dataclasses.replace(true, width=WIDTH, heads=2, patch=patch, positions=min(true.positions, 3))
        monkeypatch.setitem(CATALOGUE, name, card)
        naming = "facebookresearch" if name.startswith("dinov2") else "transformers4"
        tensors = renamed(random_weights(card), card, naming)
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, hub / f"{name}.safetensors")
    monkeypatch.setattr(weights, "_from_hub", lambda card: hub / f"{card.name}.safetensors")
    for name, file in FILES.items():
        torch.save(tensors_of(name), file)
    words = np.random.default_rng(0).normal(size=(32, WIDTH)).astype(np.float32)
    torch.save(torch.from_numpy(words), "c_centers.pt")
    torch.manual_seed(0)
    SamModel(tiny_config()).save_pretrained("sam_vit_h_4b8939.pth")
    splits = protocols.Plan.splits

    def few(plan: protocols.Plan, *given):
        small = dataclasses.replace(plan, n=4) if plan.kind == "budget" else plan
        return splits(small, *given)

    monkeypatch.setattr(protocols.Plan, "splits", few)
    monkeypatch.setattr(protocols.budget, "__kwdefaults__", {"splits": 2, "specific": False})
    return tmp_path


@pytest.mark.slow
def test_every_command_runs(tiny, run, capsys):  # noqa: F811
    done = list_commands()
    assert len(done) > 50
    for command in done:
        program, *words = shlex.split(command)
        if program == "pip":
            continue  # the tests run in an installed checkout
        if program == "python":
            script = Path(words[0]).relative_to("benchmarks/studies").with_suffix("")
            module = importlib.import_module(f"studies.{'.'.join(script.parts)}")
            fewer = ["--heads", "anyloc,tfa-c64"] if "amortized" in words else []  # each head starts a process
            assert module.main([*words[1:], *SMALL, *fewer]) == 0, command
            continue
        result = run(*words)
        assert result.exit_code == 0, f"{command}\n{result.output}\n{result.exception!r}"
        assert "was not run" not in result.stderr, f"{command}\n{result.stderr}"
    assert "system: TFA-C10 as published" in run("info", "sped.tfa").stdout


def test_every_table_figure_and_paragraph_has_a_row():
    items = " ".join(row[0] for row in ROWS)
    numbered = {int(number) for number in re.findall(r"Table (\d)", items)}
    assert numbered == {1, 2, 3, 4, 5, 6, 7, 8, 9}
    assert {len(row) for row in ROWS} == {5}
    for word in ("Figure 1", "Figure 2", "calibration size", "Paired", "Retention", "held-out", "Office Loop", "CLS"):
        assert word in items
