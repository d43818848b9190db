"""A trained system as an encoder, so that the token cache stores its descriptors by content and checkpoint.

The cache stores halves: a descriptor `D` in float32 is two rows of float16, its rounding and 2,048 times the rest,
which together have 22 bits. A code of ±1 is the global token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tfa.core.arrays import choose_device
from tfa.core.files import hash_json
from tfa.core.tokens import Tokens
from tfa_bench.heads.trained.checkpoints import get_architecture, load_model
from tfa_bench.heads.trained.models import group_by_size
from tfa_bench.heads.trained.systems import TrainedSystem
from tfa_bench.provenance import ALGORITHM

_REST = 2048.0  # 2¹¹: the rounding error of one half, times this, fits another


class ImageEncoder:
    """An `Encoder` whose two tokens per image are its descriptor; see `tfa.encoders`."""

    grid = (2, 1)
    notes: tuple[str, ...] = ()

    def __init__(
        self, system: TrainedSystem, checkpoint: Path, device: str = "cpu", *, antialias: bool = False
    ) -> None:
        """Load a checkpoint; `antialias` applies to systems whose published resizing is unknown."""
        self.device = choose_device(device)
        model, self.sha256 = load_model(system, checkpoint)
        self._model = model.to(self.device)
        self._resizing = get_architecture(system).resizing
        if antialias and system.may_antialias:
            self._resizing = replace(self._resizing, antialias=True)
        self.id = f"{system.name}@{self._resizing.name}"
        self.channels, self.global_channels = model.output, model.code
        self.about = model.about
        self.fingerprint = self.model = hash_json(self._identity(system))

    @property
    def preprocessing(self) -> dict[str, Any]:
        return self._resizing.settings

    def _identity(self, system: TrainedSystem) -> dict[str, Any]:
        """Return everything that affects the descriptors, without the file name."""
        return {
            "system": system.architecture,
            "revision": ALGORITHM["trained"],
            "preprocessing": self._resizing.settings,
            "sha256": self.sha256,
        }

    def prepare(self, image: Image.Image) -> Image.Image:
        """Make the image as small as the system's preprocessing allows."""
        return self._resizing.prepare(image)

    def encode(self, images: Sequence[Image.Image]) -> tuple[np.ndarray, np.ndarray | None]:
        """Return float16 `(b, 2, D)`, and codes `(b, c)` if the system has them; batches change only the rounding."""
        pixels = [self._resizing.pixels(image) for image in images]
        vectors = np.empty((len(images), self.channels), np.float32)
        codes = None if self.global_channels is None else np.empty((len(images), self.global_channels), np.float16)
        # By default CUDA rounds convolutions to TF32 on hardware that has it, and only there.
        full_float32 = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        with torch.inference_mode(), full_float32:
            for batch in group_by_size(pixels):
                vector, code = self._model(torch.stack([pixels[index] for index in batch]).to(self.device))
                vectors[batch] = vector.float().cpu().numpy()
                if codes is not None and code is not None:
                    codes[batch] = code.cpu().numpy()
        return split_halves(vectors), codes


def split_halves(vectors: np.ndarray) -> np.ndarray:
    """Split float32 descriptors `(b, D)` into float16 `(b, 2, D)`."""
    rounded = vectors.astype(np.float16)
    rest = (vectors - rounded.astype(np.float32)) * np.float32(_REST)
    return np.stack([rounded, rest.astype(np.float16)], axis=1)


def join_halves(tokens: Tokens) -> np.ndarray:
    """Join halves to float32 descriptors `(b, D)` of unit length."""
    halves = tokens.load(0, len(tokens)).astype(np.float32)
    vectors = halves[:, 0] + halves[:, 1] / np.float32(_REST)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
