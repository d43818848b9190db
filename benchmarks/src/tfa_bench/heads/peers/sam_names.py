"""The names of SAM's weights as its authors publish them → those of transformers' modules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")
TINY = "image_encoder.patch_embed.seq."  # only TinyViT's names, so MobileSAM's, begin like this
PUBLISHED = "image_encoder."
# One tensor under two names; files hold it under either or both.
TIED = ("shared_image_embedding.positional_embedding", "prompt_encoder.shared_embedding.positional_embedding")

_VISION = (
    (r"^image_encoder\.patch_embed\.proj\.", "vision_encoder.patch_embed.projection."),
    (r"^image_encoder\.blocks\.(\d+)\.norm(\d)\.", r"vision_encoder.layers.\1.layer_norm\2."),
    (r"^image_encoder\.blocks\.", "vision_encoder.layers."),
    (r"^image_encoder\.neck\.0\.", "vision_encoder.neck.conv1."),
    (r"^image_encoder\.neck\.1\.", "vision_encoder.neck.layer_norm1."),
    (r"^image_encoder\.neck\.2\.", "vision_encoder.neck.conv2."),
    (r"^image_encoder\.neck\.3\.", "vision_encoder.neck.layer_norm2."),
)
_REST = (
    (r"^image_encoder\.", "vision_encoder."),
    (r"^prompt_encoder\.pe_layer\.positional_encoding_gaussian_matrix$", TIED[1]),
    (r"^prompt_encoder\.point_embeddings\.", "prompt_encoder.point_embed."),
    (r"^prompt_encoder\.mask_downscaling\.0\.", "prompt_encoder.mask_embed.conv1."),
    (r"^prompt_encoder\.mask_downscaling\.1\.", "prompt_encoder.mask_embed.layer_norm1."),
    (r"^prompt_encoder\.mask_downscaling\.3\.", "prompt_encoder.mask_embed.conv2."),
    (r"^prompt_encoder\.mask_downscaling\.4\.", "prompt_encoder.mask_embed.layer_norm2."),
    (r"^prompt_encoder\.mask_downscaling\.6\.", "prompt_encoder.mask_embed.conv3."),
    (r"^(mask_decoder\.transformer\.layers\.\d+)\.norm(\d)\.", r"\1.layer_norm\2."),
    (r"^mask_decoder\.transformer\.norm_final_attn\.", "mask_decoder.transformer.layer_norm_final_attn."),
    (r"^mask_decoder\.output_upscaling\.0\.", "mask_decoder.upscale_conv1."),
    (r"^mask_decoder\.output_upscaling\.1\.", "mask_decoder.upscale_layer_norm."),
    (r"^mask_decoder\.output_upscaling\.3\.", "mask_decoder.upscale_conv2."),
    (r"^(mask_decoder\.(?:output_hypernetworks_mlps\.\d+|iou_prediction_head))\.layers\.0\.", r"\1.proj_in."),
    (r"^(mask_decoder\.(?:output_hypernetworks_mlps\.\d+|iou_prediction_head))\.layers\.1\.", r"\1.layers.0."),
    (r"^(mask_decoder\.(?:output_hypernetworks_mlps\.\d+|iou_prediction_head))\.layers\.2\.", r"\1.proj_out."),
)


def is_mobile(names: Mapping[str, object]) -> bool:
    """Whether the weights are MobileSAM's, whose image encoder is a TinyViT."""
    return any(name.startswith(TINY) for name in names)


def to_transformers_names(tensors: Mapping[str, T]) -> dict[str, T]:
    """Each tensor under the name of transformers' module; TinyViT's part keeps its names. The tied one has both."""
    named = dict(tensors)
    if any(name.startswith(PUBLISHED) for name in tensors):
        rules = _REST if is_mobile(tensors) else (*_VISION, *_REST)
        named = {_renamed(name, rules): tensor for name, tensor in tensors.items()}
    held = next((named[name] for name in TIED if name in named), None)
    return named if held is None else {**dict.fromkeys(TIED, held), **named}


def _renamed(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    """By the first rule that fits."""
    for pattern, after in rules:
        found, count = re.subn(pattern, after, name)
        if count:
            return found
    return name
