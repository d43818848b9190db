"""An encoder without weights: the mean color of each patch and of the whole photo.

Use it with `tfa build photos/ --encoder example-colors@64`; `load` gets the name as written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

PATCH, SIDE = 8, 64


class ColorEncoder:
    """All attributes of the `tfa.encoders.Encoder` protocol."""

    def __init__(self, side: int, device: str) -> None:
        self.id = f"example-colors@{side}"  # begins with the entry point's name, so that a map finds it
        # The fingerprint must cover everything that determines the tokens: it is their cache key.
        self.fingerprint = hashlib.sha256(f"colors 1, patches of {PATCH}, side {side}".encode()).hexdigest()
        self.model = self.fingerprint  # fingerprint of the model in its usual arithmetic
        self.channels, self.global_channels = 3, 3
        self.grid = (side // PATCH, side // PATCH)
        self.notes: tuple[str, ...] = ()
        self.device = device
        self._side = side

    def encode(self, images: Sequence[Image.Image]) -> tuple[np.ndarray, np.ndarray | None]:
        rows, columns = self.grid
        pixels = np.stack([np.asarray(image.resize((self._side, self._side))) for image in images]) / 255.0 + 0.01
        blocks = pixels.reshape(len(images), rows, PATCH, columns, PATCH, 3)
        patches = blocks.mean(axis=(2, 4)).reshape(len(images), rows * columns, 3)
        return patches.astype(np.float16), patches.mean(axis=1).astype(np.float16)


def load(name: str, *, weights: Path | None, device: str, threads: int | None) -> ColorEncoder:
    size = name.partition("@")[2] or str(SIDE)
    return ColorEncoder(max(int(size) // PATCH, 1) * PATCH, device)
