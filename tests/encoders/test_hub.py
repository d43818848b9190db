"""Encoders outside the catalogue: `hf:` and `timm:`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.encoders.hub_models import LAYOUTS, MODELS, SIDE, save_layout, save_model
from tests.encoders.tiny import TINY, random_weights
from tests.fakes import random_image
from tfa.encoders import load_encoder
from tfa.encoders.hub import choose_block, find_blocks, parse_hub_name, read_preprocessing
from tfa.errors import BadSpec, BadWeights, MissingExtra, UnknownEncoder, WeightsMissing
from tfa.maps import PlaceMap
from tfa.photos.images import to_array

COMMIT = "f9e44c814b77203eaa57a6bdbbd535f21ede1415"


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hf:facebook/dinov2-base", {"place": "facebook/dinov2-base"}),
        ("hf:facebook/dinov2-base@322/l7", {"place": "facebook/dinov2-base", "size": "322", "choice": "l7"}),
        ("hf:facebook/dinov2-base/l7", {"place": "facebook/dinov2-base", "choice": "l7"}),
        (f"hf:a/b:{COMMIT}@64x32", {"place": "a/b", "revision": COMMIT, "size": "64x32"}),
        ("hf:a/b@640x480c/l7", {"place": "a/b", "size": "640x480c", "choice": "l7"}),
        ("hf:./models/l7", {"folder": "./models/l7"}),
        ("hf:../a@b/c@224/l3", {"folder": "../a@b/c", "size": "224", "choice": "l3"}),
        ("hf:/srv/models/vit@224", {"folder": "/srv/models/vit", "size": "224"}),
        (
            "timm:vit_base_patch16_siglip_224.v2_webli/l7",
            {"timm": "vit_base_patch16_siglip_224.v2_webli", "choice": "l7"},
        ),
    ],
)
def test_names_have_parts(text: str, parts: dict[str, str]) -> None:
    assert parse_hub_name(text) == {"size": "", "choice": "", **parts}


@pytest.mark.parametrize(
    "text", ["hf:", "hf:dinov2", "hf:a/b@", "hf:a/b/", "hf:a/b:@224", "hf:a/b/l7/l8", "timm:", "hf:a b/c"]
)
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(UnknownEncoder, match="hf:facebook/dinov2-base@322/l7"):
        load_encoder(text)


@pytest.mark.parametrize(("depth", "block"), [(12, 7), (24, 15), (40, 25), (18, 11), (3, 1), (2, 0), (1, 0)])
def test_the_default_block_is_at_two_thirds_of_the_depth(depth: int, block: int) -> None:
    assert choose_block(depth) == block


def test_size_and_layer_of_a_folder(tmp_path: Path) -> None:
    name = save_model("vit", tmp_path / "vit")
    encoder = load_encoder(f"{name}@65x32/l2")
    assert (encoder.id, encoder.grid) == (f"{name}@64x32/l2", (2, 4))
    assert "64x32 instead of 65x32" in encoder.notes[0]
    cropped = load_encoder(f"{name}@70x40c/l2")
    assert (cropped.id, cropped.grid, cropped.reads[:2]) == (f"{name}@70x40c/l2", (2, 4), (70, 40))  # type: ignore[attr-defined]
    with pytest.raises(UnknownEncoder, match="l0 to l2"):
        load_encoder(f"{name}@64/l3")
    with pytest.raises(UnknownEncoder, match="only tokens"):
        load_encoder(f"{name}@64/key")


# --- tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_grid_and_prefix_are_read_from_the_model(kind: str, tmp_path: Path) -> None:
    _, _, prefix, patch = MODELS[kind]
    encoder = load_encoder(save_model(kind, tmp_path))
    assert encoder.grid == (SIDE // patch, SIDE // patch)
    assert encoder.global_channels == (encoder.channels if prefix else None)
    assert encoder.identity.card.prefix == prefix  # type: ignore[attr-defined]
    assert encoder.reads == (SIDE, SIDE, "bicubic")  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["dinov2", "dinov2-registers", "dinov3", "siglip", "clip-vision", "vit"])
def test_tokens_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    encoder = load_encoder(save_model(kind, tmp_path) + f"@{SIDE}/l1")
    model = transformers.AutoModel.from_pretrained(tmp_path).eval()
    resampled = {} if kind.startswith("dino") else {"interpolate_pos_encoding": True}
    image = random_image(5, (90, 70))
    pixels = torch.from_numpy(to_array(image, (SIDE, SIDE), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), "bicubic"))[None]
    with torch.inference_mode():
        states = model(pixels, output_hidden_states=True, **resampled).hidden_states
    prefix = MODELS[kind][2]
    patches, cls = encoder.encode([image])
    np.testing.assert_allclose(patches[0], states[2][0, prefix:].numpy(), rtol=2e-3, atol=2e-3)
    if cls is not None:
        np.testing.assert_allclose(cls[0], states[2][0, 0].numpy(), rtol=2e-3, atol=2e-3)


def test_two_depths_come_from_one_pass(tmp_path: Path) -> None:
    name = save_model("vit", tmp_path)
    both, image = load_encoder(name, depths=2), random_image(5, (90, 70))
    assert both.id.endswith("/l0+1"), both.id
    parts = [load_encoder(f"{name}@{both.reads[0]}/l{layer}").encode([image])[0] for layer in (0, 1)]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(both.encode([image])[0], np.concatenate(parts, axis=2))


def test_two_depths_of_different_shapes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match="outputs of different shapes"):
        load_encoder(f"{save_model('resnet', tmp_path)}@{SIDE}/l0+3")


def test_a_feature_map_is_read_along_rows(tmp_path: Path) -> None:
    encoder = load_encoder(save_model("convnext", tmp_path) + "@96x64/l3")
    model = transformers.AutoModel.from_pretrained(tmp_path).eval()
    image = random_image(5, (96, 64))
    pixels = torch.from_numpy(to_array(image, (96, 64), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), "bicubic"))[None]
    with torch.inference_mode():
        stage = model(pixels, output_hidden_states=True).hidden_states[3][0]  # after stages of 1, 1 and 2 blocks
    assert encoder.grid == (4, 6)
    patches, _ = encoder.encode([image])
    np.testing.assert_allclose(patches[0], stage.flatten(1).T.numpy(), rtol=2e-3, atol=2e-3)


def test_a_model_without_blocks_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    model.config = SimpleNamespace()  # type: ignore[assignment]
    with pytest.raises(BadSpec, match="no sequence of blocks"):
        find_blocks(model)


# --- preprocessing --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "size", "mean", "std"),
    [
        ({"size": 224}, 224, 0.5, 0.25),
        (
            {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}, "do_center_crop": True},
            224,
            0.5,
            0.25,
        ),
        ({"size": {"shortest_edge": 256}, "crop_size": 224, "do_center_crop": False}, 256, 0.5, 0.25),
        ({"size": 64, "rescale_factor": 1 / 127.5}, 64, 0.25, 0.125),
        ({"size": 64, "do_rescale": False}, 64, 0.5 / 255, 0.25 / 255),
        ({"size": 64, "do_normalize": False}, 64, 0.0, 1.0),
    ],
)
def test_preprocessing(values: dict[str, Any], size: int, mean: float, std: float, tmp_path: Path) -> None:
    values = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "resample": 3, **values}
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": values}))
    read = read_preprocessing(tmp_path)
    assert (read["size"], read["resample"]) == (size, "bicubic")
    assert read["mean"] == pytest.approx((mean,) * 3)
    assert read["std"] == pytest.approx((std,) * 3)


@pytest.mark.parametrize(
    "text", [None, "[]", "{", '{"size": 224}', '{"size": {}, "image_mean": [1], "image_std": [1]}']
)
def test_missing_preprocessing_is_explained(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(BadWeights):
        read_preprocessing(tmp_path)


# --- identity -------------------------------------------------------------------------------------


def test_the_fingerprint_follows_the_content(tmp_path: Path) -> None:
    first = load_encoder(save_model("vit", tmp_path / "a"))
    moved = load_encoder(save_model("vit", tmp_path / "b"))
    other = load_encoder(save_model("vit", tmp_path / "c", seed=1))
    assert first.fingerprint == moved.fingerprint == load_encoder("hf:any/name", weights=tmp_path / "b").fingerprint
    assert len({first.fingerprint, other.fingerprint, load_encoder(f"hf:{tmp_path}/a@96").fingerprint}) == 3
    config = json.loads((tmp_path / "b/config.json").read_text())
    (tmp_path / "b/config.json").write_text(json.dumps({**config, "num_attention_heads": 4}))
    assert load_encoder(f"hf:{tmp_path}/b").fingerprint != first.fingerprint


@pytest.mark.parametrize("kind", ["resnet", "timm dinov2"])
def test_a_map_refuses_another_model(kind: str, tmp_path: Path) -> None:
    name = save_model(kind, tmp_path / "model")
    photos = tmp_path / "photos"
    photos.mkdir()
    for seed in range(4):
        random_image(seed, (80, 60)).save(photos / f"{seed}.png")
    PlaceMap.build(photos, encoder=f"{name}").save(tmp_path / "town.tfa")
    town = PlaceMap.load(tmp_path / "town.tfa")
    assert town.query(photos / "2.png", k=1)[0].image.endswith("2.png")
    (tmp_path / "model").rename(tmp_path / "kept")
    save_model(kind, tmp_path / "model", seed=1)
    with pytest.raises(BadWeights, match=f"was built with {name}@.* with other weights"):
        PlaceMap.load(tmp_path / "town.tfa").query(photos / "2.png")


def test_a_download_is_named_with_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model("vit", tmp_path / COMMIT)
    asked: list[Any] = []

    def snapshot(place: str, **options: Any) -> str:
        asked.append((place, options["revision"]))
        return str(tmp_path / COMMIT)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    encoder = load_encoder("hf:org/vit@64")
    assert encoder.id == f"hf:org/vit:{COMMIT}@64/l1"
    assert load_encoder(encoder.id).id == encoder.id
    assert asked == [("org/vit", None), ("org/vit", COMMIT)]


def test_a_part_that_another_program_downloaded_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model("vit", tmp_path / COMMIT)
    config = tmp_path / COMMIT / "config.json"
    config.rename(tmp_path / "later")

    def snapshot(place: str, *, local_files_only: bool, **options: Any) -> str:
        if not local_files_only:
            (tmp_path / "later").rename(config)
        return str(tmp_path / COMMIT)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    monkeypatch.setattr("huggingface_hub.get_session", lambda: SimpleNamespace(head=lambda *_, **__: None))
    assert load_encoder("hf:org/vit@64").grid == (4, 4)


def test_a_hub_out_of_reach_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    def snapshot(place: str, *, local_files_only: bool = False, **options: Any) -> str:
        raise LocalEntryNotFoundError("absent") if local_files_only else OfflineModeIsEnabled("offline")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    monkeypatch.setattr("huggingface_hub.get_session", lambda: SimpleNamespace(head=lambda *_, **__: None))
    with pytest.raises(WeightsMissing, match=r"org/vit is not available: .*HF_HUB_OFFLINE") as caught:
        load_encoder("hf:org/vit@64")
    assert "hf:./folder" in str(caught.value)


# --- files that are refused -----------------------------------------------------------------------


def test_folders_that_are_not_models(tmp_path: Path) -> None:
    with pytest.raises(WeightsMissing, match="not found"):
        load_encoder(f"hf:{tmp_path}/absent")
    with pytest.raises(BadWeights, match=r"config.json does not exist"):
        load_encoder(f"hf:{tmp_path}")
    name = save_model("vit", tmp_path / "vit")
    with pytest.raises(BadSpec, match="remove --precision"):
        load_encoder(name, precision="int8")
    weights = tmp_path / "vit/model.safetensors"
    tensors = load_file(weights)
    save_file({key: tensor for key, tensor in tensors.items() if ".1." not in key}, weights)
    with pytest.raises(BadWeights, match=r"lacks .* weights"):
        load_encoder(name)
    weights.rename(tmp_path / "vit/pytorch_model.bin")
    with pytest.raises(BadWeights, match=r"no model.safetensors"):
        load_encoder(name)


def test_code_of_a_repository_is_not_executed(tmp_path: Path) -> None:
    name = save_model("vit", tmp_path)
    config = {"model_type": "unheard-of", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    with pytest.raises(BadWeights, match="nothing in it is executed"):
        load_encoder(name)
    assert not (tmp_path / "executed").exists()


# --- timm's layout --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_layout_gives_the_tokens_of_our_vit(kind: str, tmp_path: Path) -> None:
    card = TINY[LAYOUTS[kind]]
    save_file(random_weights(card), tmp_path / "plain.safetensors")
    expected = load_encoder(f"{card.name}@{card.size}/l1", weights=tmp_path / "plain.safetensors")
    encoder = load_encoder(save_model(kind, tmp_path / "model"))
    assert (encoder.id, encoder.grid) == (f"hf:{tmp_path}/model@{card.size}/l1", expected.grid)
    for ours, plain in zip(encoder.encode([random_image(4)]), expected.encode([random_image(4)]), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=2e-3, atol=2e-3)


def test_a_block_may_lack_biases_and_layer_scales(tmp_path: Path) -> None:
    name = save_layout(TINY["tiny-v2"], tmp_path / "model")
    tensors = load_file(tmp_path / "model/model.safetensors")
    for key in list(tensors):
        if key.endswith("qkv.bias"):
            tensors[key] = torch.zeros_like(tensors[key])
        elif key.endswith("gamma"):
            tensors[key] = torch.ones_like(tensors[key])
    save_file(tensors, tmp_path / "model/model.safetensors")
    full = load_encoder(name)
    short = {key: tensor for key, tensor in tensors.items() if not key.endswith(("qkv.bias", "gamma"))}
    save_file(short, tmp_path / "model/model.safetensors")
    assert load_encoder(name).fingerprint == full.fingerprint


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"architecture": "vit_base_patch16_rope_224"}, "is not a plain ViT.*timm:vit_base_patch16_rope_224"),
        ({"model_args": {}}, "number of attention heads.*num_heads"),
        ({"model_args": {"num_heads": 7}}, "number of attention heads"),
        ({"pretrained_cfg": {}}, "pretrained_cfg of config.json is not valid"),
    ],
)
def test_layouts_that_cannot_be_read_are_explained(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    name = save_layout(TINY["tiny-v2"], tmp_path / "model")
    config = tmp_path / "model/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    with pytest.raises(BadWeights, match=says):
        load_encoder(name)


def test_weights_of_another_architecture_are_explained(tmp_path: Path) -> None:
    name = save_layout(TINY["tiny-v2"], tmp_path / "model")
    file = tmp_path / "model/model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "norm_pre.weight": torch.zeros(24)}, file)
    with pytest.raises(BadWeights) as caught:
        load_encoder(name)
    assert "1 extra: norm_pre.weight" in str(caught.value)
    save_file({key: tensor for key, tensor in tensors.items() if key != "cls_token"}, file)
    with pytest.raises(BadWeights, match="it has no cls_token"):
        load_encoder(name)


# --- timm -----------------------------------------------------------------------------------------


class _TimmVit(torch.nn.Module):
    """A stand-in with the interface of timm's models: patches of 8 pixels, CLS and one register."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.feature_info, self.side = torch.nn.Conv2d(3, 6, 8, 8), [{}] * 12, (64, 64)

    def set_input_size(self, img_size: tuple[int, int]) -> None:
        self.side = img_size

    def forward_intermediates(
        self, x, indices, return_prefix_tokens=False, stop_early=False, intermediates_only=False
    ) -> list[Any]:
        assert tuple(x.shape[2:]) == self.side
        patches = self.stem(x) + indices[0]
        return [(patches, torch.ones(len(x), 2, 6))]


class _TimmCnn(_TimmVit):
    def forward_intermediates(self, x, indices, stop_early=False, intermediates_only=False) -> list[Any]:  # type: ignore[override]
        return [self.stem(x)]


def fake_timm(model: torch.nn.Module) -> Any:
    facts = {"input_size": (3, 64, 64), "mean": (0.5,) * 3, "std": (0.5,) * 3, "interpolation": "bicubic"}

    def create_model(name: str, pretrained: bool) -> torch.nn.Module:
        if name != "known":
            raise RuntimeError(f"Unknown model ({name})")
        return model

    return SimpleNamespace(
        create_model=create_model, data=SimpleNamespace(resolve_model_data_config=lambda model: facts)
    )


def test_timm_models_are_read_by_their_intermediates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", fake_timm(_TimmVit()))
    encoder = load_encoder("timm:known@80x48")
    assert (encoder.id, encoder.grid, encoder.global_channels) == ("timm:known@80x48/l7", (6, 10), 6)
    patches, cls = encoder.encode([random_image(1)])
    assert (patches.shape, cls is not None and cls.shape) == ((1, 60, 6), (1, 6))
    monkeypatch.setitem(sys.modules, "timm", fake_timm(_TimmCnn()))
    assert load_encoder("timm:known").global_channels is None
    with pytest.raises(WeightsMissing, match="Unknown model"):
        load_encoder("timm:unknown")


def test_timm_that_cannot_be_imported_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtra, match="pip install timm"):
        load_encoder("timm:known")
