"""What holds for every encoder, ours and yours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from tests.encoders.hub_models import LAYOUTS, MODELS, save_model
from tests.encoders.tiny import TINY, random_weights
from tests.fakes import FakeEncoder, random_image
from tfa.encoders import Encoder, load_encoder
from tfa.service.decoders import SharedEncoder

pytestmark = pytest.mark.slow

FAST = [f"{name} in integers" for name in TINY]
HUB = [*(kind for kind in MODELS if kind != "mobilenet"), *LAYOUTS]  # its 16 random blocks let no change through
SHARED = ["shared fake", f"shared {FAST[0]}"]


@pytest.fixture(params=["fake", "fake without a global token", *TINY, *FAST, *SHARED, *HUB])
def encoder(request: pytest.FixtureRequest, tmp_path: Path) -> Encoder:
    name = request.param.removeprefix("shared ")
    if name.startswith("fake"):
        plain: Encoder = FakeEncoder(global_token=name == "fake")
    elif name in HUB:
        plain = load_encoder(save_model(name, tmp_path / "model"))
    else:
        name, precision = name.removesuffix(" in integers"), "int8" if name.endswith(" in integers") else "float32"
        save_file(random_weights(TINY[name]), tmp_path / "tiny.safetensors")
        plain = load_encoder(name, weights=tmp_path / "tiny.safetensors", precision=precision)
    return SharedEncoder(plain) if request.param.startswith("shared") else plain


def test_attributes(encoder: Encoder) -> None:
    assert isinstance(encoder, Encoder)
    assert "@" in encoder.id
    assert len(encoder.fingerprint) == 64
    int(encoder.fingerprint, 16)
    assert len(encoder.model) == 64
    int(encoder.model, 16)
    assert encoder.device == "cpu"
    assert isinstance(encoder.notes, tuple)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_shapes_and_types(encoder: Encoder, count: int) -> None:
    patches, cls = encoder.encode([random_image(seed) for seed in range(count)])
    assert patches.shape == (count, encoder.grid[0] * encoder.grid[1], encoder.channels)
    assert patches.dtype == np.float16
    assert np.isfinite(patches).all()
    if encoder.global_channels is None:
        assert cls is None
    else:
        assert cls is not None
        assert cls.shape == (count, encoder.global_channels)
        assert cls.dtype == np.float16


def test_the_same_image_gives_the_same_tokens(encoder: Encoder) -> None:
    first, again = encoder.encode([random_image(1)]), encoder.encode([random_image(1)])
    np.testing.assert_array_equal(first[0], again[0])


def test_the_batch_does_not_matter(encoder: Encoder) -> None:
    images = [random_image(seed, (50 + seed, 40)) for seed in range(4)]
    together = encoder.encode(images)
    for index, image in enumerate(images):
        alone = encoder.encode([image])
        for a, b in zip(together, alone, strict=True):
            if a is not None:
                np.testing.assert_allclose(a[index].astype(np.float32), b[0].astype(np.float32), rtol=2e-3, atol=2e-3)


def test_patches_run_along_rows(encoder: Encoder) -> None:
    """A change in one corner of the picture moves the patch of that corner most."""
    rows, columns = encoder.grid
    plain = Image.new("RGB", (columns * 16, rows * 16), (90, 120, 60))
    marked = plain.copy()
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    marked.paste(Image.fromarray(noise), ((columns - 1) * 16, 0))
    before, after = (encoder.encode([image])[0][0].astype(np.float32) for image in (plain, marked))
    assert np.argmax(np.linalg.norm(after - before, axis=1)) == columns - 1


def test_preparing_changes_nothing(encoder: Encoder) -> None:
    image = random_image(3, (90, 70))
    prepared = encoder.prepare(image)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(encoder.encode([image])[0], encoder.encode([prepared])[0])
