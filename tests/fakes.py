"""A numpy encoder for tests: color and gradient statistics of patches. Deterministic, fast, no weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from tfa.core.files import hash_json
from tfa.photos.images import resize


class FakeEncoder:
    """28 × 28 pixels, 4 × 4 patches of 12 channels, a global token of 6 (or none)."""

    def __init__(self, *, global_token: bool = True, fail_after: int | None = None, salt: str = "") -> None:
        self.id = "fake@28"
        self.fingerprint = self.model = hash_json(["fake", global_token, salt])
        self.channels = 12
        self.global_channels: int | None = 6 if global_token else None
        self.grid = (4, 4)
        self.notes: tuple[str, ...] = ()
        self.device = "cpu"
        self.reads = (28, 28, "bilinear")
        self.encoded = 0  # images so far
        self.fail_after = fail_after  # images after which it raises, as a machine that gives up

    def prepare(self, image: Image.Image) -> Image.Image:
        return resize(image, (28, 28))

    def encode(self, images: Sequence[Image.Image]) -> tuple[np.ndarray, np.ndarray | None]:
        self.encoded += len(images)
        if self.fail_after is not None and self.encoded > self.fail_after:
            raise RuntimeError("the machine gave up")
        pixels = [np.asarray(self.prepare(image), np.float32) / 255 for image in images]
        pictures = np.stack(pixels) if pixels else np.empty((0, 28, 28, 3), np.float32)
        blocks = pictures.reshape(-1, 4, 7, 4, 7, 3).swapaxes(2, 3).reshape(-1, 16, 7, 7, 3)
        down, right = np.abs(np.diff(blocks, axis=2)), np.abs(np.diff(blocks, axis=3))
        area = (2, 3)
        parts = [blocks.mean(area), blocks.std(area), down.mean(area), right.mean(area)]
        patches = np.concatenate(parts, axis=-1).astype(np.float16)
        if self.global_channels is None:
            return patches, None
        whole = np.concatenate([pictures.mean((1, 2)), pictures.std((1, 2))], axis=-1)
        return patches, whole.astype(np.float16)


def random_image(seed: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    """Smooth random colours."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)
