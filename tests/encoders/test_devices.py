"""Encoders on other devices: half precision, memory that runs out, and devices that are not there."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.encoders.tiny import TINY, as_arrays, random_weights
from tests.fake_devices import OperationLog, fake_device
from tests.fakes import random_image
from tfa.core import arrays
from tfa.core.arrays import backend_for, choose_device
from tfa.encoders import load_encoder, parse_encoder, vit
from tfa.encoders.vit import VitEncoder
from tfa.encoders.weights import LoadedWeights
from tfa.errors import BadSpec, OutOfResources

IMAGES = [random_image(seed) for seed in range(7)]


def encoder(name: str = "tiny-v2", device: str = "cpu", *, half: bool = False) -> VitEncoder:
    return VitEncoder(
        parse_encoder(name), LoadedWeights(as_arrays(random_weights(TINY[name])), "0" * 64), device, half=half
    )


# --- devices -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cuda", "metal", "chosen"), [(2, True, "cuda"), (1, False, "cuda"), (0, True, "mps"), (0, False, "cpu")]
)
def test_auto_prefers_cuda_then_metal(monkeypatch, cuda, metal, chosen):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: metal)
    assert choose_device("auto") == chosen
    assert choose_device(chosen) == chosen
    with pytest.raises(BadSpec, match=f"finds {cuda} CUDA devices and {int(metal)} Metal devices; use auto or cpu"):
        choose_device(f"cuda:{cuda}")


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "mps:1", "", "cpu:0"])
def test_an_unknown_device_is_refused(device):
    with pytest.raises(BadSpec, match=f"unknown device '{device}'; use auto, cpu, cuda, cuda:N or mps"):
        choose_device(device)


def test_metal_fits_with_numpy_and_scores_with_torch(monkeypatch):
    monkeypatch.setattr(arrays, "choose_device", lambda device: device)
    assert backend_for("mps").torch_device is None
    assert backend_for("mps", double=False).torch_device == "mps"
    assert backend_for("cuda").torch_device == "cuda"


# --- half precision ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TINY)
def test_half_precision_is_close_and_has_its_own_fingerprint(name):
    exact, half = encoder(name), encoder(name, half=True)
    assert exact.fingerprint == exact.model == half.model != half.fingerprint
    assert (exact.precision, half.precision) == ("float32", "float16")
    assert {p.dtype for key, p in half.network.state_dict().items() if "rope" not in key} == {torch.float16}
    for ours, theirs in zip(half.encode(IMAGES[:2]), exact.encode(IMAGES[:2]), strict=True):
        assert 0 < np.abs(ours.astype(np.float32) - theirs.astype(np.float32)).max() < 0.05 * np.abs(theirs).max()


def test_float16_is_half_precision_on_a_gpu(monkeypatch, tmp_path):
    save_file(random_weights(TINY["tiny-v2"]), tmp_path / "w.safetensors")
    made = []
    monkeypatch.setattr("tfa.encoders.choose_device", lambda device: device)
    monkeypatch.setattr(vit, "VitEncoder", lambda *given, **named: made.append((given[2], named)))
    load_encoder("tiny-v2", weights=tmp_path / "w.safetensors", device="cuda", precision="float16")
    load_encoder("tiny-v2", weights=tmp_path / "w.safetensors", device="mps")
    assert made == [("cuda", {"half": True}), ("mps", {"half": False})]


# --- memory --------------------------------------------------------------------------------------------------------


def limit_memory(monkeypatch, one: VitEncoder, most: int, error: Exception) -> list[int]:
    """Let larger batches than `most` fail; return the sizes of batches."""
    sizes, compute = [], one.compute_tokens

    def compute_tokens(pixels: torch.Tensor) -> torch.Tensor:
        sizes.append(len(pixels))
        if len(pixels) > most:
            raise error
        return compute(pixels)

    monkeypatch.setattr(one, "compute_tokens", compute_tokens)
    return sizes


@pytest.mark.parametrize(
    "error", [torch.cuda.OutOfMemoryError("CUDA out of memory"), RuntimeError("MPS backend out of memory (9 GB)")]
)
def test_a_batch_that_does_not_fit_is_halved(monkeypatch, caplog, error):
    one = encoder()
    expected = one.encode(IMAGES)
    sizes = limit_memory(monkeypatch, one, 2, error)
    with caplog.at_level(logging.WARNING, "tfa.encoders"):
        found = one.encode(IMAGES)
    assert sizes == [7, 3, 1, 1, 1, 1, 1, 1, 1]
    assert [record.getMessage() for record in caplog.records] == [
        "cpu is out of memory; encoding 3 photos at a time instead of 7",
        "cpu is out of memory; encoding 1 photos at a time instead of 3",
    ]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.astype(np.float32), theirs.astype(np.float32), rtol=2e-3, atol=2e-3)
    one.encode(IMAGES[:2])
    assert sizes[-2:] == [1, 1]  # remembered


def test_one_photo_that_does_not_fit_is_an_error(monkeypatch):
    one = encoder()
    limit_memory(monkeypatch, one, 0, torch.cuda.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(OutOfResources, match="too little memory to encode one photo; use a smaller encoder"):
        one.encode(IMAGES[:2])


def test_other_errors_are_not_about_memory(monkeypatch):
    one = encoder()
    sizes = limit_memory(monkeypatch, one, 0, RuntimeError("CUDA error: device-side assert triggered"))
    with pytest.raises(RuntimeError, match="device-side assert"):
        one.encode(IMAGES)
    assert sizes == [7]


# --- devices that are not there ------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", TINY)
def test_no_operation_leaves_a_gpu(monkeypatch, name, half):
    one, size, kind = encoder(name, half=half), TINY[name].size, "cuda"
    one.device = kind
    with fake_device(monkeypatch):
        for module in one.network.modules():  # what a module moves to a device; anything else would stay behind
            for kept in (module._parameters, module._buffers):
                for key, tensor in kept.items():
                    kept[key] = tensor if tensor is None else torch.empty(tensor.shape, dtype=tensor.dtype, device=kind)
        pixels = torch.empty(2, 3, size, size, device=kind)
        with OperationLog() as log:
            tokens = one.compute_tokens(pixels)
    assert log.devices == {kind}
    assert tokens.dtype == (torch.float16 if half else torch.float32)
    assert (kind, torch.float64) not in log.dtypes


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_the_model_is_one_graph(name):
    one = encoder(name)
    pixels = torch.from_numpy(np.stack([one._pixels(image) for image in IMAGES[:2]]))
    compiled = torch.compile(one.network, fullgraph=True, backend="aot_eager")
    with torch.inference_mode(), vit._captured(one._sources) as outputs:
        compiled(pixels)
    torch.testing.assert_close(outputs[-1], one.compute_tokens(pixels))
