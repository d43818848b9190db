"""An encoder without weights: the mean colour of each patch, and of the whole photo.

Used as `tfa build photos/ --encoder example-colours@64`; `load` gets the name as it was written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

PATCH, SIDE = 8, 64


class ColourEncoder:
    """All that `tfa.Encoder` asks for."""

    def __init__(self, side: int, device: str) -> None:
        self.id = f"example-colours@{side}"  # begins with the name of the entry point: a map finds it again by this
        # Everything that shapes the tokens belongs in here: tokens are cached under it.
        self.fingerprint = hashlib.sha256(f"colours 1, patches of {PATCH}, side {side}".encode()).hexdigest()
        self.model = self.fingerprint  # which model it is, whatever its arithmetic
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


def load(name: str, *, weights: Path | None, device: str, threads: int | None) -> ColourEncoder:
    size = name.partition("@")[2] or str(SIDE)
    return ColourEncoder(max(int(size) // PATCH, 1) * PATCH, device)
