"""Published preprocessing of photos. Every resize ignores the aspect ratio.

    pil        Pillow on 8-bit pixels, always antialiased
    rounded    without antialiasing, rounded back to 8 bits
    float      on floats, antialiased or not, neither rounded nor clamped
    native     no resize

Resizing floats and normalizing them commute, so their order in a published pipeline does not matter.
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

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, for every system here


@dataclass(frozen=True, kw_only=True)
class Resizing:
    """A system's preprocessing. `size` is the side of the square input, 0 for the photo's size."""

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

    def prepare(self, image: Image.Image) -> Image.Image:
        """Resize if the system resizes 8-bit pixels."""
        if self.kind == "pil":
            return resize(image, (self.size, self.size), self.kernel)
        if self.kind == "rounded" and image.size != (self.size, self.size):
            levels = self._resize(_to_levels(image)).round().to(torch.uint8)
            return Image.fromarray(levels.permute(1, 2, 0).numpy())
        return image

    def pixels(self, image: Image.Image) -> Tensor:
        """Return normalized float32 `3 h w`."""
        levels = _to_levels(self.prepare(image))
        if self.kind == "float":
            levels = self._resize(levels)
        mean, std = (torch.tensor(values, dtype=torch.float32)[:, None, None] for values in (_MEAN, _STD))
        return (levels / 255 - mean) / std

    def _resize(self, levels: Tensor) -> Tensor:
        if levels.shape[1:] == (self.size, self.size):
            return levels
        return functional.interpolate(
            levels[None], (self.size, self.size), mode=self.kernel, align_corners=False, antialias=self.antialias
        )[0]


def _to_levels(image: Image.Image) -> Tensor:
    """Return floats `3 h w` from 0 to 255."""
    return torch.from_numpy(np.asarray(image, np.float32).transpose(2, 0, 1).copy())


def group_by_size(pixels: Sequence[Tensor]) -> list[list[int]]:
    """Return the positions of images that can be one batch: without a resize photos may differ in size."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, one in enumerate(pixels):
        groups.setdefault(tuple(one.shape), []).append(index)
    return list(groups.values())
