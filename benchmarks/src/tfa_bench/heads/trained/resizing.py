"""From a photo to the pixels a system was published with. Every resize is hard: the aspect ratio is not kept.

    pil        Pillow on 8-bit pixels, always antialiased
    rounded    without antialiasing, rounded back to 8 bits
    float      on floats, antialiased or not, neither rounded nor clamped
    native     no resize: the photo's own size

Resizing floats and normalising them commute, so which comes first in a published pipeline does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from tfa.photos.images import resize

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, of every system here


@dataclass(frozen=True, kw_only=True)
class Resizing:
    """How a system reads a photo. `size` is the side of the square input, 0 for the photo's own size."""

    size: int
    kind: str = "float"  # "pil" | "rounded" | "float" | "native"
    kernel: str = "bilinear"  # "bilinear" | "bicubic"
    antialias: bool = True

    @property
    def name(self) -> str:
        return str(self.size) if self.size else "native"

    @property
    def settings(self) -> dict[str, Any]:
        return asdict(self)

    def prepared(self, image: Image.Image) -> Image.Image:
        """Smaller at once where the system itself resizes 8-bit pixels; else as it is."""
        if self.kind == "pil":
            return resize(image, (self.size, self.size), self.kernel)
        if self.kind == "rounded" and image.size != (self.size, self.size):
            levels = self._resized(_levels(image)).round().to(torch.uint8)
            return Image.fromarray(levels.permute(1, 2, 0).numpy())
        return image

    def pixels(self, image: Image.Image) -> Tensor:
        """float32 `3 h w`, normalised."""
        levels = _levels(self.prepared(image))
        if self.kind == "float":
            levels = self._resized(levels)
        mean, std = (torch.tensor(values, dtype=torch.float32)[:, None, None] for values in (MEAN, STD))
        return (levels / 255 - mean) / std

    def _resized(self, levels: Tensor) -> Tensor:
        if levels.shape[1:] == (self.size, self.size):
            return levels
        return functional.interpolate(
            levels[None], (self.size, self.size), mode=self.kernel, align_corners=False, antialias=self.antialias
        )[0]


def _levels(image: Image.Image) -> Tensor:
    """`3 h w` from 0 to 255, as floats."""
    return torch.from_numpy(np.asarray(image, np.float32).transpose(2, 0, 1).copy())


def batches_of_equal_size(pixels: Sequence[Tensor]) -> list[list[int]]:
    """Positions of pictures that can be one batch: photos at their own size may differ."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, one in enumerate(pixels):
        groups.setdefault(tuple(one.shape), []).append(index)
    return list(groups.values())
