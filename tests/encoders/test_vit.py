"""Layers and facets agree with transformers; dropped tokens, norms and encoder identity."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.encoders.tiny import NAMINGS, TINY, as_arrays, random_weights, renamed
from tests.fakes import random_image
from tfa.encoders import load_encoder, parse_encoder
from tfa.encoders.vit import load_vit
from tfa.errors import BadSpec
from tfa.photos.images import to_array
from tfa.types import Precision

pytestmark = pytest.mark.slow

IMAGES = [random_image(seed) for seed in range(3)]


@pytest.fixture(params=TINY)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def weights_file(name: str, tmp_path: Path) -> Path:
    save_file(random_weights(TINY[name]), tmp_path / "tiny.safetensors")
    return tmp_path / "tiny.safetensors"


def full_run(name: str, size: tuple[int, int]) -> tuple[list[torch.Tensor], torch.Tensor, dict[str, torch.Tensor]]:
    """Outputs of every block, of the final norm, and of each projection, of the full-depth model."""
    card = TINY[name]
    last = parse_encoder(f"{name}@{size[0]}x{size[1]}/l{card.depth - 1}")
    model = load_vit(last, as_arrays(random_weights(card)))
    seen: dict[str, torch.Tensor] = {}
    for path, module in model.named_modules():
        if path.endswith(("q_proj", "k_proj", "v_proj")):
            module.register_forward_hook(lambda _m, _i, out, path=path: seen.__setitem__(path, out))
    pixels = np.stack([to_array(image, size, card.mean, card.std, card.resample) for image in IMAGES])
    with torch.inference_mode():
        out = model(torch.from_numpy(pixels), output_hidden_states=True)
    return list(out.hidden_states)[-card.depth :], out.last_hidden_state, seen


def close(found: np.ndarray, expected: torch.Tensor) -> None:
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.astype(np.float32), expected.numpy(), rtol=2e-3, atol=2e-3)


def test_layers_and_the_final_norm(name: str, weights_file: Path) -> None:
    card = TINY[name]
    size = (card.size, card.size + card.patch)  # not square: 4 columns, 5 rows
    blocks, normed, _ = full_run(name, size)
    for layer in range(card.depth):
        encoder = load_encoder(f"{name}@{size[0]}x{size[1]}/l{layer}", weights=weights_file)
        patches, cls = encoder.encode(IMAGES)
        expected = normed if layer == card.depth - 1 else blocks[layer]
        assert encoder.grid == (5, 4)
        assert patches.shape == (3, 20, 24)
        close(patches, expected[:, 1 + card.registers :])
        close(cls, expected[:, 0])


def test_two_depths_are_joined_along_channels(name: str, weights_file: Path) -> None:
    both = load_encoder(f"{name}/l0+2", weights=weights_file)
    earlier, later = (load_encoder(f"{name}/l{layer}", weights=weights_file).encode(IMAGES) for layer in (0, 2))
    patches, cls = both.encode(IMAGES)
    assert (both.channels, both.global_channels, both.depths) == (48, 24, 2)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(patches, np.concatenate([earlier[0], later[0]], axis=2))
    np.testing.assert_array_equal(cls, later[1])


@pytest.mark.parametrize("facet", [*(pytest.param(f, marks=pytest.mark.slow) for f in ("query", "key")), "value"])
def test_facets(name: str, facet: str, weights_file: Path) -> None:
    card = TINY[name]
    _, _, projections = full_run(name, (card.size, card.size))
    for layer in (0, card.depth - 1):
        patches, cls = load_encoder(f"{name}/l{layer}-{facet}", weights=weights_file).encode(IMAGES)
        path = next(p for p in projections if f"layer.{layer}." in p and p.endswith(f"{facet[0]}_proj"))
        close(patches, projections[path][:, 1 + card.registers :])
        close(cls, projections[path][:, 0])


def test_only_the_blocks_that_are_needed_are_built(name: str, weights_file: Path) -> None:
    encoder = load_encoder(f"{name}/l1-value", weights=weights_file)
    blocks = {
        path.split("layer.")[1].split(".")[0] for path, _ in encoder.network.named_parameters() if "layer." in path
    }
    assert blocks == {"0", "1"}


@pytest.mark.parametrize("naming", NAMINGS)
def test_tokens_do_not_depend_on_the_naming(name: str, naming: str, weights_file: Path, tmp_path: Path) -> None:
    torch.save(renamed(random_weights(TINY[name]), TINY[name], naming), tmp_path / "other.pth")
    ours = load_encoder(name, weights=weights_file)
    other = load_encoder(name, weights=tmp_path / "other.pth")
    assert ours.fingerprint == other.fingerprint
    for a, b in zip(ours.encode(IMAGES), other.encode(IMAGES), strict=True):
        np.testing.assert_array_equal(a, b)


def test_all_that_shapes_the_tokens_is_in_the_fingerprint(tmp_path: Path) -> None:
    save_file(random_weights(TINY["tiny-v2"], 0), tmp_path / "a.safetensors")
    save_file(random_weights(TINY["tiny-v2"], 1), tmp_path / "b.safetensors")

    def fingerprint(text: str, file: str = "a") -> str:
        return load_encoder(text, weights=tmp_path / f"{file}.safetensors").fingerprint

    choices = [
        "tiny-v2",
        "tiny-v2@70",
        "tiny-v2@70x56",
        "tiny-v2@56x70",
        "tiny-v2/l1",
        "tiny-v2/value",
        "tiny-v2/l1-key",
        "tiny-v2/hf",
    ]
    prints = [fingerprint(text) for text in choices] + [fingerprint("tiny-v2", "b")]
    assert len(set(prints)) == len(prints)
    assert fingerprint("tiny-v2") == fingerprint("tiny-v2@56/l2-token") == fingerprint("tiny-v2@55")


def test_a_changed_size_is_noted(tmp_path: Path) -> None:
    save_file(random_weights(TINY["tiny-v2"]), tmp_path / "w.safetensors")
    encoder = load_encoder("tiny-v2@60x40", weights=tmp_path / "w.safetensors")
    assert encoder.id == "tiny-v2@56x42"
    assert "56x42 instead of 60x40" in encoder.notes[0]
    assert encoder.encode(IMAGES)[0].shape == (3, 12, 24)


def test_loading_leaves_the_random_generator_alone(name: str, weights_file: Path) -> None:
    before = torch.random.get_rng_state()
    load_encoder(name, weights=weights_file).encode(IMAGES)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "cuda:7"}, "use auto or cpu"),
        ({"device": "tpu"}, "use auto, cpu, cuda, cuda:N or mps"),
        ({"device": "cuda:"}, "use auto, cpu, cuda, cuda:N or mps"),
        ({"threads": 0}, "at least 1"),
    ],
)
def test_settings_that_cannot_be_are_explained(options: dict, says: str, tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match=says):
        load_encoder("tiny-v2", weights=tmp_path / "not-even-read", **options)


def test_threads_are_set(tmp_path: Path) -> None:
    save_file(random_weights(TINY["tiny-v2"]), tmp_path / "w.safetensors")
    before = torch.get_num_threads()
    try:
        load_encoder("tiny-v2", weights=tmp_path / "w.safetensors", threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_cropped_photo_has_the_tokens_of_a_plain_center_crop(tmp_path: Path, precision: Precision) -> None:
    save_file(random_weights(TINY["tiny-v2"]), tmp_path / "tiny.safetensors")
    cropping, plain = (
        load_encoder(f"tiny-v2@{size}", weights=tmp_path / "tiny.safetensors", precision=precision)
        for size in ("64x48c", "56x42")
    )
    assert (cropping.grid, cropping.id, cropping.notes) == ((3, 4), "tiny-v2@64x48c", ())
    assert cropping.fingerprint != plain.fingerprint
    photo = random_image(0, (64, 48))
    np.testing.assert_array_equal(cropping.prepare(photo), photo)
    cut = photo.crop((4, 3, 60, 45))  # (64 - 56) / 2 and (48 - 42) / 2 pixels from the left and the top
    np.testing.assert_array_equal(cropping.encode([photo])[0], plain.encode([cut])[0])
    # Photos of another size are resized first, whether the cache prepares them or not.
    large = random_image(1, (128, 96))
    resized = large.resize((64, 48), Image.Resampling.BILINEAR).crop((4, 3, 60, 45))
    for given in (large, cropping.prepare(large)):
        np.testing.assert_array_equal(cropping.encode([given])[0], plain.encode([resized])[0])
