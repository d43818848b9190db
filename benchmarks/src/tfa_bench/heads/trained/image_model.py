"""What a trained system is to the benchmark: a model of the sizes its checkpoint has, and how it reads a photo."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from tfa_bench.heads.trained.dinov2_backbone import HEAD_WIDTH, PATCH, BackboneSizes, VisionTransformer
from tfa_bench.heads.trained.resizing import Resizing

BLOCKS = {384: 12, 768: 12, 1024: 24, 1536: 40}  # of DINOv2 by its width
Shapes = Mapping[str, tuple[int, ...]]  # of a checkpoint's tensors, under the names of our modules


class ImageModel(nn.Module):
    """Pixels `b 3 h w` → unit vectors `b output`, and codes of ±1 `b code` where a system ranks by bits first."""

    output: int
    code: int | None = None
    about: str = ""  # which of a system's published forms the checkpoint is

    def ready(self, size: int) -> None:
        """Once the weights are in: what depends on the input size is made here, once."""
        for module in self.modules():
            if isinstance(module, VisionTransformer):
                module.resample_positions(size // PATCH)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A system's model and preprocessing, whatever its weights."""

    resizing: Resizing
    build: Callable[[Shapes], ImageModel]  # an empty model of the sizes that these shapes have
    renamed: Mapping[str, str] = field(default_factory=dict)  # prefix in a file → prefix in our modules
    may_lack: tuple[str, ...] = ("mask_token", "num_batches_tracked")  # ends of names that no answer depends on
    may_have: tuple[str, ...] = ()  # further names in files, read by nothing


def size_of(shapes: Shapes, name: str, axis: int, published: int) -> int:
    """A side of a tensor; the published one where a file lacks it, so that it is then reported as missing."""
    shape = shapes.get(name, ())
    return shape[axis] if axis < len(shape) else published


def numbered(shapes: Shapes, prefix: str, published: int) -> int:
    """How many different numbers follow a prefix: no file can make a model longer than itself."""
    numbers = {found[1] for name in shapes if (found := re.match(re.escape(prefix) + r"(\d+)\.", name))}
    return len(numbers) or published


def backbone_sizes(shapes: Shapes, published: BackboneSizes) -> BackboneSizes:
    """Sizes a transformer can have; others are a ValueError."""
    width = size_of(shapes, "backbone.patch_embed.proj.weight", 0, published.width)
    sizes = BackboneSizes(
        width=width,
        # As many as a published model of this width has, so that what a file lacks of it is missing.
        blocks=BLOCKS.get(width) or numbered(shapes, "backbone.blocks.", published.blocks),
        hidden=size_of(shapes, "backbone.blocks.0.mlp.fc1.weight", 0, published.hidden),
        positions=size_of(shapes, "backbone.pos_embed", 1, published.positions),
        mask_token="backbone.mask_token" in shapes,
    )
    if sizes.width % HEAD_WIDTH:
        raise ValueError(f"a backbone of {sizes.width} channels, which are no heads of {HEAD_WIDTH}")
    if sizes.positions < 2 or math.isqrt(sizes.positions - 1) ** 2 != sizes.positions - 1:
        raise ValueError(f"{sizes.positions} positions, which are not one and a square")
    return sizes
