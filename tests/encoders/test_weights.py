"""Weights: every naming read alike, a wrong file explained, nothing executed."""

from __future__ import annotations

import dataclasses
import os
import pickle
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled
from safetensors.torch import save_file

from tests.encoders.tiny import NAMINGS, TINY, random_weights, renamed
from tfa.encoders import CATALOGUE, load_encoder
from tfa.encoders import weights as weights_module
from tfa.encoders.packaged_weights import expected_shapes
from tfa.encoders.vit import build_vit
from tfa.encoders.weights import resolve_weights
from tfa.errors import BadWeights, WeightsMissing


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("naming", NAMINGS)
def test_every_naming_gives_the_same_weights(name: str, naming: str, tmp_path: Path) -> None:
    card, weights = TINY[name], random_weights(TINY[name])
    save_file(renamed(weights, card, naming), tmp_path / "w.safetensors")
    torch.save({"epoch": 3, "teacher": renamed(weights, card, naming)}, tmp_path / "w.pth")
    found = resolve_weights(card, tmp_path / "w.safetensors")
    again = resolve_weights(card, tmp_path / "w.pth")
    assert found.tensors.keys() == weights.keys()
    assert all(np.array_equal(found.tensors[key], weights[key].numpy()) for key in weights)
    assert found.sha256 == again.sha256


@pytest.mark.parametrize("name", CATALOGUE)
def test_expected_names_are_those_of_transformers(name: str) -> None:
    card = dataclasses.replace(CATALOGUE[name], depth=2)  # shapes do not depend on the depth
    weights = {key: np.zeros(shape, np.float32) for key, shape in expected_shapes(card).items()}
    model = build_vit(card, 2, weights)
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items() if "mask_token" not in key}
    assert shapes == expected_shapes(card)


def test_one_changed_value_changes_the_digest(tmp_path: Path) -> None:
    card, weights = TINY["tiny-v2"], random_weights(TINY["tiny-v2"])
    digests = set()
    for step in range(2):
        weights["layernorm.bias"][3] += step
        save_file(weights, tmp_path / "w.safetensors")
        digests.add(resolve_weights(card, tmp_path / "w.safetensors").sha256)
    assert len(digests) == 2


def test_prefixes_of_wrappers_are_taken_off(tmp_path: Path) -> None:
    card, weights = TINY["tiny-v2"], random_weights(TINY["tiny-v2"])
    wrapped = {f"module.backbone.{key}": value for key, value in renamed(weights, card, "facebookresearch").items()}
    torch.save({"state_dict": wrapped}, tmp_path / "w.pt")
    assert resolve_weights(card, tmp_path / "w.pt").tensors.keys() == weights.keys()


def test_half_precision_files_are_read(tmp_path: Path) -> None:
    card = TINY["tiny-v2"]
    halves = {key: value.bfloat16() for key, value in random_weights(card).items()}
    save_file(halves, tmp_path / "w.safetensors")
    found = resolve_weights(card, tmp_path / "w.safetensors").tensors
    assert {array.dtype for array in found.values()} == {np.dtype(np.float32)}
    assert all(np.array_equal(found[key], halves[key].float().numpy()) for key in halves)


@pytest.mark.parametrize("naming", NAMINGS)
def test_missing_extra_and_misshapen_keys_are_listed(naming: str, tmp_path: Path) -> None:
    card = TINY["tiny-v2"]
    weights = renamed(random_weights(card), card, naming)
    gone = next(key for key in weights if "norm2.bias" in key and ".2." in key)
    bent = next(key for key in weights if "mlp.fc1.weight" in key)
    del weights[gone]
    weights["head.weight"] = torch.zeros(3)
    weights[bent] = torch.zeros(5, 7)
    save_file(weights, tmp_path / "w.safetensors")
    with pytest.raises(BadWeights) as caught:
        resolve_weights(card, tmp_path / "w.safetensors")
    text = str(caught.value)
    assert "1 missing: encoder.layer.2.norm2.bias" in text
    assert "1 extra: head.weight" in text
    assert "encoder.layer.0.mlp.fc1.weight (5, 7) instead of (96, 24)" in text


def test_long_lists_are_cut_and_counted(tmp_path: Path) -> None:
    card = TINY["tiny-v2"]
    save_file({f"x{i}": torch.zeros(1) for i in range(20)}, tmp_path / "w.safetensors")
    with pytest.raises(BadWeights, match=r"20 extra: x0, .*…") as caught:
        resolve_weights(card, tmp_path / "w.safetensors")
    assert f"{len(expected_shapes(card))} missing" in str(caught.value)


def test_the_full_depth_is_checked_even_if_less_is_run(tmp_path: Path) -> None:
    card = TINY["tiny-v2"]
    weights = {key: value for key, value in random_weights(card).items() if ".layer.2." not in key}
    save_file(weights, tmp_path / "w.safetensors")
    with pytest.raises(BadWeights, match=r"encoder\.layer\.2"):
        load_encoder("tiny-v2/l0", weights=tmp_path / "w.safetensors")


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def test_a_malicious_checkpoint_is_not_executed(tmp_path: Path) -> None:
    torch.save({"model": _Evil(tmp_path / "torch")}, tmp_path / "torch.pth")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(_Evil(tmp_path / "plain")))
    for name in ("torch", "plain"):
        with pytest.raises(BadWeights):
            resolve_weights(TINY["tiny-v2"], tmp_path / f"{name}.pth")
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors", ".txt"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", b"\x80\x02}q\x00."])
def test_files_that_hold_no_weights_are_refused(suffix: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"w{suffix}"
    path.write_bytes(content)
    with pytest.raises(BadWeights):
        resolve_weights(TINY["tiny-v2"], path)


@pytest.mark.parametrize("content", [[1, 2], {"a": 1}, {"model": {"x": "y"}}])
def test_checkpoints_of_other_things_are_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(BadWeights, match="must"):
        resolve_weights(TINY["tiny-v2"], tmp_path / "w.pth")


def _names_three_ways(text: str) -> bool:
    return all(way in text for way in ("hub id", "--weights FILE", "tfa weights get dinov2-s14-focus"))


def test_a_file_that_is_not_there_is_told_with_the_three_ways(tmp_path: Path) -> None:
    with pytest.raises(WeightsMissing) as caught:
        resolve_weights(TINY["tiny-v2"], tmp_path / "none.pth")
    assert "none.pth" in str(caught.value)
    assert _names_three_ways(str(caught.value))


class Hub:
    """Stands for huggingface_hub: what it has downloaded before, and what happens on the way to the rest."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.local: Path | None = None
        self.remote: Path | None = None
        self.error: Exception | None = None
        self.knocks = 0
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self.download)
        monkeypatch.setattr(huggingface_hub, "get_session", lambda: self)

    def head(self, _url: str, timeout: float) -> None:
        self.knocks += 1
        if isinstance(self.error, ConnectionError):
            raise self.error

    def download(self, repository: str, file: str, local_files_only: bool = False, **_options: object) -> str:
        assert (repository, file) == (TINY["tiny-v3"].hub, "model.safetensors")
        if local_files_only:
            if self.local is None:
                raise LocalEntryNotFoundError("not here")
            return str(self.local)
        if self.error is not None:
            raise self.error
        return str(self.remote)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ConnectionError("name or service not known"), "cannot be reached"),
        (OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE"),
        (RuntimeError("disk full"), "RuntimeError"),
    ],
)
def test_without_a_hub_the_three_ways_are_named(hub: Hub, error: Exception, says: str) -> None:
    hub.error = error
    with pytest.raises(WeightsMissing) as caught:
        resolve_weights(TINY["tiny-v3"])
    assert says in str(caught.value)
    assert "facebook/dinov3-vits16-pretrain-lvd1689m" in str(caught.value)
    assert _names_three_ways(str(caught.value))


def test_hub_weights_are_used_and_kept(hub: Hub, tmp_path: Path) -> None:
    card = TINY["tiny-v3"]
    hub.remote = tmp_path / "model.safetensors"
    save_file(renamed(random_weights(card), card, "transformers4"), hub.remote)
    assert resolve_weights(card).tensors.keys() == expected_shapes(card).keys()
    assert hub.knocks == 1
    hub.local = hub.remote
    hub.error = ConnectionError("no network any more")
    assert resolve_weights(card).tensors.keys() == expected_shapes(card).keys()
    assert hub.knocks == 1  # what is there is used without asking


def test_the_default_encoder_takes_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, plain = tmp_path / "w.safetensors", dataclasses.replace(TINY["tiny-v2"], hub=None)
    save_file(random_weights(plain), path)
    package = CATALOGUE["dinov2-s14-focus"].package
    assert package is not None
    whole = dataclasses.replace(package, weights=resolve_weights(plain, path).sha256)
    monkeypatch.setattr(weights_module, "get_packaged_weights", lambda *_given: path)
    card = dataclasses.replace(plain, package=whole)
    assert resolve_weights(card).tensors.keys() == expected_shapes(card).keys()
    path.write_bytes(path.read_bytes()[:-40] + bytes(40))  # as long, and with the same header
    with pytest.raises(BadWeights, match="its values differ from the package; delete it"):
        resolve_weights(card)
    assert resolve_weights(card, path).sha256 != whole.weights  # a file of the user's own may be anything
