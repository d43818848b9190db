"""Checkpoint files: every form that is published loads; of wrong, cut and hostile ones each gives one clear error."""

from __future__ import annotations

import os
import pickle
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.benchmarks.heads.trained import layouts
from tests.benchmarks.heads.trained.tiny import LAYOUTS, random_weights, tensors_of, unwrapped
from tfa.errors import BadWeights, WeightsMissing
from tfa_bench.heads.trained.checkpoints import build_trained_model, load_model, read_checkpoint
from tfa_bench.heads.trained.systems import SYSTEMS, published_file

PLAIN = tensors_of("salad")
FORMS = {
    "plain": PLAIN,
    "state_dict": {"state_dict": PLAIN, "epoch": 3, "hyper": {"lr": 1.0}},
    "model_state_dict": {"model_state_dict": PLAIN, "best_r5": 0.5},
    "wrapped": {f"module.{name}": tensor for name, tensor in PLAIN.items()},
    "nested and wrapped": {"state_dict": {f"module.{name}": tensor for name, tensor in PLAIN.items()}},
}


def saved(folder: Path, content: object, name: str = "file.ckpt") -> Path:
    torch.save(content, folder / name)
    return folder / name


def refusal(path: Path, head: str = "salad") -> str:
    with pytest.raises(BadWeights) as caught:
        load_model(SYSTEMS[head], path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("form", FORMS)
def test_every_container_gives_the_same_model(form, tmp_path):
    model, sha256 = load_model(SYSTEMS["salad"], saved(tmp_path, FORMS[form]))
    assert torch.equal(model.aggregator.dust_bin, PLAIN["aggregator.dust_bin"])
    block = model.backbone.encoder.layer[1]
    assert torch.equal(block.layer_scale2.lambda1, PLAIN["backbone.model.blocks.1.ls2.gamma"])
    queries, keys, values = PLAIN["backbone.model.blocks.1.attn.qkv.weight"].chunk(3)
    assert torch.equal(block.attention.q_proj.weight, queries)
    assert torch.equal(block.attention.k_proj.weight, keys)
    assert torch.equal(block.attention.v_proj.weight, values)
    assert len(sha256) == 64
    assert not model.training


@pytest.mark.parametrize("head", LAYOUTS)
def test_every_system_loads_from_safetensors_too(head, tmp_path):
    save_file(unwrapped(tensors_of(head)), tmp_path / "model.safetensors")
    model, _ = load_model(SYSTEMS[head], tmp_path / "model.safetensors")
    assert model.output > 1


def test_both_releases_of_megaloc_load(tmp_path):
    small = {"D": 64, "L": 1, "P": 10, "H": 4, "M": 2, "F": 2, "Q": 2, "U": 3}
    for old in (True, False):
        tensors = random_weights(layouts.megaloc(old=old, **small))
        model, _ = load_model(SYSTEMS["megaloc"], saved(tmp_path, tensors, "megaloc.torch"))
        assert model.output == 3


def test_half_precision_is_widened_and_counters_may_be_absent(tmp_path):
    tensors = {name: tensor.half() for name, tensor in tensors_of("cosplace").items() if "num_batches" not in name}
    model, _ = load_model(SYSTEMS["cosplace"], saved(tmp_path, tensors))
    assert model.backbone.embedder.embedder.convolution.weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("boq", "salad"), ("salad", "boq"), ("megaloc", "salad"), ("salad", "megaloc"), ("selavpr++-l", "sample4geo"),
        ("sample4geo", "selavpr++-b"), ("cosplace", "megaloc"),
    ],
)  # fmt: skip
def test_the_file_of_another_system_is_named(given, asked, tmp_path):
    text = refusal(saved(tmp_path, tensors_of(given)), asked)
    found = "selavpr++-b" if given == "selavpr++-l" else given  # too small for its width to tell
    assert f"looks like {SYSTEMS[found].title}'s checkpoint" in text
    assert f"use --heads {found}" in text


def test_base_and_large_are_told_apart_by_their_width(tmp_path):
    large = random_weights(layouts.selavpr(two=False, D=1024, L=0, P=2, A=0, U=2))
    text = refusal(saved(tmp_path, large | {"module.backbone.adapters.0.D_fc1.weight": torch.zeros(1)}), "selavpr++-b")
    assert "looks like SelaVPR++-L's checkpoint; use --heads selavpr++-l" in text


def test_systems_of_one_layout_are_told_apart_by_the_name_of_the_file(tmp_path):
    for name, asked, found in [
        ("ResNet18_512_eigenplaces.pth", "cosplace", "eigenplaces"),
        ("cliquemining.ckpt", "salad", "cliquemining"),
        ("dino_salad.ckpt", "cliquemining", "salad"),
    ]:
        assert f"by its name; use --heads {found}" in refusal(saved(tmp_path, tensors_of(found), name), asked)
        assert load_model(SYSTEMS[asked], saved(tmp_path, tensors_of(found), "renamed.pth"))
    assert load_model(SYSTEMS["cliquemining"], saved(tmp_path, PLAIN, "salad_cliquemining.ckpt"))  # it names both


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("backbone.blocks.0.adapter.D_fc1.weight", "a checkpoint of CricaVPR, which no head supports"),
        ("aggregator.mix.0.mix.0.weight", "a checkpoint of MixVPR, which no head supports"),
        ("backbone.adapters_hashing.0.D_fc1.weight", "hashing branch alone, which no head supports"),
        ("pos_embed", "a backbone without a head"),
    ],
)
def test_files_that_no_head_reads_are_named_too(name, message, tmp_path):
    assert message in refusal(saved(tmp_path, {name: torch.zeros(2, 2)}))


def test_an_empty_file_is_called_empty(tmp_path):
    (tmp_path / "empty.ckpt").touch()
    assert "the file is empty; download it again" in refusal(tmp_path / "empty.ckpt")


def test_missing_extra_and_misshapen_tensors_are_listed_and_not_all_of_them(tmp_path):
    tensors = dict(PLAIN)
    for part in ("weight", "bias"):
        for layer in ("norm1", "norm2", "attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"):
            for block in (0, 1):
                del tensors[f"backbone.model.blocks.{block}.{layer}.{part}"]
    tensors["surplus"] = torch.zeros(1)
    tensors["aggregator.score.3.bias"] = torch.zeros(9)
    with pytest.raises(BadWeights) as caught:
        load_model(SYSTEMS["salad"], saved(tmp_path, tensors))
    first, *more = caught.value.lines
    assert "release v1.0.0 of serizba/salad" in first
    assert more[0].startswith("24 missing: backbone.model.blocks.0.norm1.weight, ")
    assert more[0].endswith("and 4 more")
    assert more[1:] == ["1 extra: surplus", "1 of another shape: aggregator.score.3.bias (9,) for (4,)"]


def without(layout: layouts.Layout, part: str) -> dict[str, torch.Tensor]:
    """Full-size shapes that take no memory, without the tensors whose names hold a part."""
    return {name: torch.empty(shape, device="meta") for name, shape in layout.items() if part not in name}


@pytest.mark.parametrize(
    ("head", "layout", "part", "missing"),
    [
        ("salad", layouts.salad(), ".blocks.11.", "14 missing: backbone.model.blocks.11.norm1.weight"),
        ("megaloc", layouts.megaloc(), ".blocks.11.", "14 missing: backbone.blocks.11.norm1.weight"),
        ("boq", layouts.boq(), ".boqs.1.", "of another shape: aggregator.fc.weight (32, 128) for (32, 64)"),
        (
            "selavpr++-l",
            layouts.selavpr(two=True, **layouts.LARGE),
            ".blocks.23.",
            "14 missing: backbone.blocks.23.norm1.weight",
        ),
        ("selavpr++-l", layouts.selavpr(two=True, **layouts.LARGE), ".adapters.15.", "missing: backbone.adapters.15."),
        ("sample4geo", layouts.sample4geo(), "stages.2.blocks.26.", "missing: model.stages.2.blocks.26."),
        (
            "cosplace",
            layouts.cosplace(three=True, depths=(3, 4, 6, 3), output=2048),
            "backbone.7.2.",
            "stages of (3, 4, 6, 2) blocks",
        ),
    ],
)
def test_a_published_model_that_lacks_its_last_block_is_not_taken_for_a_shorter_one(head, layout, part, missing):
    with pytest.raises(BadWeights) as caught:
        build_trained_model(SYSTEMS[head], unwrapped(without(layout, part)), Path("cut.pth"))
    assert missing in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"backbone.model.pos_embed": torch.zeros(1, 12, 128)}, "12 positions, which are not one and a square"),
        ({"backbone.model.patch_embed.proj.weight": torch.zeros(100, 3, 14, 14)}, "100 channels"),
        ({"aggregator.score.3.weight": torch.zeros(600, 8, 1, 1)}, "600 clusters for 529 patches"),
        ({"backbone.model.pos_embed": torch.zeros(1, 1, 128)}, "1 positions, which are not one and a square"),
        ({"backbone.model.pos_embed": torch.zeros(1, 0, 128)}, "the tensor backbone.model.pos_embed is empty"),
        ({"aggregator.score.3.weight": torch.zeros(0, 8, 1, 1)}, "the tensor aggregator.score.3.weight is empty"),
        ({"aggregator.dust_bin": torch.tensor(float("nan"))}, "values that are not numbers"),
        ({"aggregator.dust_bin": torch.zeros(1).expand(10**12)}, "more numbers than the file stores"),
        ({"aggregator.dust_bin": torch.zeros(2, 2).to_sparse()}, "not a plain array"),
        ({"aggregator.dust_bin": torch.tensor(1j)}, "not a plain array"),
        ({"aggregator.dust_bin": 0.5}, "is a float, must be a tensor"),
        ({7: torch.zeros(1)}, "save only the state_dict"),
        ({"backbone.norm.weight": torch.zeros(128)}, "under two names"),
        ({"aggregator.dust_bin": torch.tensor(1e300, dtype=torch.float64)}, "values that are not numbers"),
        ({"backbone.model.blocks.99999999999.x": torch.zeros(1)}, "missing: backbone.model.blocks.2."),
    ],
)
@pytest.mark.filterwarnings("ignore")  # torch warns of sparse tensors
def test_hostile_numbers_are_refused(changed, message, tmp_path):
    assert message in refusal(saved(tmp_path, {**PLAIN, **changed}))


@pytest.mark.parametrize(
    ("part", "value", "message"), [("running_var", -1.0, "has variances below zero"), (".p", 0.0, "must be above zero")]
)
def test_numbers_of_which_there_is_no_root_are_refused(part, value, message, tmp_path):
    tensors = tensors_of("selavpr++-b")
    name = next(name for name in tensors if name.endswith(part))
    tensors[name] = torch.full_like(tensors[name], value)
    text = refusal(saved(tmp_path, tensors), "selavpr++-b")
    assert message in text
    assert name.removeprefix("module.") in text


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_a_file_that_needs_more_than_tensors_is_refused_unexecuted_with_how_to_convert_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content in ({"state_dict": PLAIN, "more": Hostile()}, {"state_dict": PLAIN, "recalls": np.zeros(3)}):
        text = refusal(saved(tmp_path, content))
        assert "nothing in it was executed" in text
        assert "weights_only=False" in text
        assert "and use plain.pth:" in text
    (tmp_path / "raw.pth").write_bytes(pickle.dumps(Hostile()))
    refusal(tmp_path / "raw.pth")
    assert not (tmp_path / "executed").exists()


MODULE = torch.nn.Sequential(torch.nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ({"state_dict": PLAIN, "recalls": np.zeros(3)}, PLAIN),
        ({"model": PLAIN, "recalls": np.zeros(3)}, PLAIN),
        (PLAIN | {"recalls": np.zeros(3)}, PLAIN),
        (MODULE, MODULE.state_dict()),
        ({"model": MODULE}, MODULE.state_dict()),
    ],
)
def test_the_line_that_converts_a_file_does(content, kept, tmp_path):
    path = saved(tmp_path, content, "it's a file.pth")
    with pytest.raises(BadWeights) as caught:
        load_model(SYSTEMS["salad"], path)
    first, how, line = caught.value.lines
    assert "\n" not in first + how + line
    words = shlex.split(line)
    assert words[0] == "python"
    subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, check=True)
    found = read_checkpoint(tmp_path / "plain.pth")
    assert set(found) == set(kept)
    assert all(torch.equal(found[name], kept[name]) for name in kept)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_program_is_called_one(tmp_path):
    torch.jit.script(MODULE).save(tmp_path / "program.pth")
    assert "is a TorchScript program, which is not executed" in refusal(tmp_path / "program.pth")


@pytest.mark.parametrize("ending", ["ckpt", "safetensors"])
def test_cut_and_foreign_files_are_refused(ending, tmp_path):
    path = tmp_path / f"file.{ending}"
    if ending == "ckpt":
        torch.save(PLAIN, path)
    else:
        save_file(PLAIN, path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"not weights at all", whole[100:]):
        path.write_bytes(content)
        assert "download it again" in refusal(path)


@pytest.mark.parametrize(("content", "kind"), [([1, 2], "a list"), ({}, "nothing"), (torch.zeros(2), "a Tensor")])
def test_what_is_no_dict_of_tensors_is_refused(content, kind, tmp_path):
    assert f"holds {kind}; a checkpoint holds tensors by name" in refusal(saved(tmp_path, content))


def test_a_file_that_is_not_there_says_where_it_is_published(tmp_path):
    with pytest.raises(WeightsMissing, match=r"release v1\.0 of amaralibey/Bag-of-Queries"):
        load_model(SYSTEMS["boq"], tmp_path / "none.pth")


def test_a_folder_of_published_names_is_searched(tmp_path, monkeypatch):
    assert published_file(SYSTEMS["salad"]) is None
    monkeypatch.setenv("TFA_CHECKPOINTS", str(tmp_path))
    assert published_file(SYSTEMS["salad"]) is None
    (tmp_path / "dino_salad.ckpt").write_bytes(b"")
    assert published_file(SYSTEMS["salad"]) == tmp_path / "dino_salad.ckpt"
