"""Networks of trained systems, run by transformers: DINOv2, ResNet and ConvNeXt, in the sizes of a checkpoint.

Checkpoints have other names than transformers: DINOv2's authors', torchvision's and timm's. A rule renames a module's
weight to its published name, so that files are compared and errors written in published names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from torch import Tensor
from transformers import ConvNextConfig, ConvNextModel, Dinov2Config, Dinov2Model, ResNetConfig, ResNetModel
from transformers.models.dinov2.modeling_dinov2 import Dinov2Embeddings

from tfa.encoders.vit import resample_positions

Shapes = Mapping[str, tuple[int, ...]]  # of a checkpoint's tensors by their published names
NameRules = tuple[tuple[str, str], ...]  # pattern in a module's name, its published replacement

PATCH = 14
HEAD_WIDTH = 64  # of every published transformer, so the number of heads follows from the width

_DINOV2_BLOCKS = {384: 12, 768: 12, 1024: 24, 1536: 40}  # by width
# Layers of published ResNets by the blocks of their stages and the kind of block.
_RESNET_LAYERS: Mapping[tuple[tuple[int, ...], str], int] = {
    ((2, 2, 2, 2), "basic"): 18,
    ((3, 4, 6, 3), "basic"): 34,
    ((3, 4, 6, 3), "bottleneck"): 50,
    ((3, 4, 23, 3), "bottleneck"): 101,
    ((3, 8, 36, 3), "bottleneck"): 152,
}
_RESNET_WIDTHS = (64, 128, 256, 512)  # inside the blocks of each stage
_RESNET_STAGES = (4, 5, 6, 7)  # children of a published network; 2 and 3 are the ReLU and the pooling
_CONVNEXT_BASE = (3, 3, 27, 3), (128, 256, 512, 1024)  # depths and widths

# Rows of the published qkv are all queries, all keys, all values: three weights here have one published name.
DINOV2_NAMES: NameRules = (
    (r"^backbone\.embeddings\.position_embeddings$", "backbone.pos_embed"),
    (r"^backbone\.embeddings\.patch_embeddings\.projection\.", "backbone.patch_embed.proj."),
    (r"^backbone\.embeddings\.", "backbone."),
    (r"^backbone\.layernorm\.", "backbone.norm."),
    (r"^backbone\.encoder\.layer\.", "backbone.blocks."),
    (r"\.attention\.[qkv]_proj\.", ".attn.qkv."),
    (r"\.attention\.o_proj\.", ".attn.proj."),
    (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
)
RESNET_NAMES: NameRules = (
    (r"^backbone\.embedder\.embedder\.convolution\.", "backbone.0."),
    (r"^backbone\.embedder\.embedder\.normalization\.", "backbone.1."),
    *((rf"^backbone\.encoder\.stages\.{i}\.layers\.", f"backbone.{child}.") for i, child in enumerate(_RESNET_STAGES)),
    *((rf"\.layer\.{i}\.convolution\.", f".conv{i + 1}.") for i in range(3)),
    *((rf"\.layer\.{i}\.normalization\.", f".bn{i + 1}.") for i in range(3)),
    (r"\.shortcut\.convolution\.", ".downsample.0."),
    (r"\.shortcut\.normalization\.", ".downsample.1."),
)
CONVNEXT_NAMES: NameRules = (
    (r"^model\.layernorm\.", "model.head.norm."),
    (r"^model\.embeddings\.patch_embeddings\.", "model.stem.0."),
    (r"^model\.embeddings\.layernorm\.", "model.stem.1."),
    (r"^model\.encoder\.stages\.", "model.stages."),
    (r"\.downsampling_layer\.", ".downsample."),
    (r"\.layers\.", ".blocks."),
    (r"\.dwconv\.", ".conv_dw."),
    (r"\.layernorm\.", ".norm."),
    (r"\.pwconv([12])\.", r".mlp.fc\1."),
    (r"\.layer_scale_parameter$", ".gamma"),
)


def to_published_name(name: str, rules: NameRules) -> str:
    """Rename a module's weight to its published name, by every rule in turn."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def read_size(shapes: Shapes, name: str, axis: int, default: int) -> int:
    """Read a side of a tensor; the published one if a file lacks the tensor, which is then reported as missing."""
    shape = shapes.get(name, ())
    return shape[axis] if axis < len(shape) else default


def count_numbers(shapes: Shapes, prefix: str, default: int) -> int:
    """Count the different numbers after a prefix: no file can make a model longer than itself."""
    matches = (re.match(re.escape(prefix) + r"(\d+)\.", name) for name in shapes)
    return len({match[1] for match in matches if match}) or default


class _PublishedPositions(Dinov2Embeddings):
    """DINOv2's embeddings with its authors' resampling of positions, which is not transformers'."""

    def interpolate_pos_encoding(self, embeddings: Tensor, height: int, width: int) -> Tensor:
        return resample_positions(self.position_embeddings, (height // PATCH, width // PATCH))


def make_dinov2(shapes: Shapes, width: int = 768) -> Dinov2Model:
    """Make an empty DINOv2 without registers, of `width` channels if the shapes do not say.

    Raises:
        ValueError: for sizes that a transformer cannot have.
    """
    width = read_size(shapes, "backbone.patch_embed.proj.weight", 0, width)
    positions = read_size(shapes, "backbone.pos_embed", 1, 1370)
    side = math.isqrt(max(positions - 1, 0))
    if width % HEAD_WIDTH:
        raise ValueError(f"a backbone of {width} channels, which are no heads of {HEAD_WIDTH}")
    if positions < 2 or side**2 != positions - 1:
        raise ValueError(f"{positions} positions, which are not one and a square")
    config = Dinov2Config(
        hidden_size=width,
        # As many blocks as a published model of this width has, so that a cut file is not taken for a shorter model.
        num_hidden_layers=_DINOV2_BLOCKS.get(width) or count_numbers(shapes, "backbone.blocks.", 1),
        num_attention_heads=width // HEAD_WIDTH,
        image_size=side * PATCH,
        patch_size=PATCH,
        use_mask_token="backbone.mask_token" in shapes,  # Most checkpoints have one; only training reads it.
    )
    model = Dinov2Model(config)
    model.embeddings = _PublishedPositions(config)
    return model


def to_map(patches: Tensor) -> Tensor:
    """Arrange patch tokens `b g² d` of a square grid as `b d g g`."""
    side = math.isqrt(patches.shape[1])
    return patches.transpose(1, 2).unflatten(2, (side, side))


def make_resnet(shapes: Shapes) -> tuple[ResNetModel, str]:
    """Make an empty ResNet without its classifier.

    Returns:
        The network, and its name.

    Raises:
        ValueError: for published widths with other blocks than any published network has.
    """
    kind = "bottleneck" if "backbone.4.0.conv3.weight" in shapes else "basic"
    stages = list(zip(_RESNET_STAGES, (3, 4, 6, 3), _RESNET_WIDTHS, strict=True))
    depths = tuple(count_numbers(shapes, f"backbone.{stage}.", depth) for stage, depth, _ in stages)
    widths = tuple(read_size(shapes, f"backbone.{stage}.0.conv1.weight", 0, width) for stage, _, width in stages)
    layers = _RESNET_LAYERS.get((depths, kind))
    if widths == _RESNET_WIDTHS and layers is None:
        raise ValueError(f"stages of {depths} blocks, which no published ResNet has")
    config = ResNetConfig(
        embedding_size=read_size(shapes, "backbone.0.weight", 0, 64),
        hidden_sizes=[width * (4 if kind == "bottleneck" else 1) for width in widths],
        depths=list(depths),
        layer_type=kind,
    )
    return ResNetModel(config), f"ResNet-{layers}" if layers else "ResNet"


def make_convnext(shapes: Shapes) -> ConvNextModel:
    """Make an empty ConvNeXt without its classifier, ConvNeXt-B if the shapes do not say."""
    stages = list(enumerate(zip(*_CONVNEXT_BASE, strict=True)))
    widths = tuple(read_size(shapes, f"model.stages.{i}.blocks.0.gamma", 0, width) for i, (_, width) in stages)
    depths = tuple(count_numbers(shapes, f"model.stages.{i}.blocks.", depth) for i, (depth, _) in stages)
    if widths == _CONVNEXT_BASE[1]:
        depths = _CONVNEXT_BASE[0]  # A file that lacks a block of them is not taken for a shorter model.
    # The last norm has the epsilon of all others; transformers' default for it is 1e-12.
    return ConvNextModel(ConvNextConfig(hidden_sizes=list(widths), depths=list(depths), layer_norm_eps=1e-6))
