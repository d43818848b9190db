"""Backbones against models that others wrote: transformers' DINOv2 and ConvNeXt, with the same weights."""

from __future__ import annotations

import re

import torch
import transformers

from tests.benchmarks.heads.trained.tiny import model_of, tensors_of
from tfa.encoders.catalogue import Card
from tfa.encoders.vit import build_model
from tfa.encoders.weight_names import to_module_names

GRID = 4  # of the small tables of positions: at their own grid, no rule of resampling has a say
CONVNEXT = [
    (r"^model\.head\.norm\.", "layernorm."),
    (r"^model\.stem\.0\.", "embeddings.patch_embeddings."),
    (r"^model\.stem\.1\.", "embeddings.layernorm."),
    (r"^model\.stages\.", "encoder.stages."),
    (r"\.downsample\.", ".downsampling_layer."),
    (r"\.blocks\.", ".layers."),
    (r"\.conv_dw\.", ".dwconv."),
    (r"\.norm\.", ".layernorm."),
    (r"\.mlp\.fc([12])\.", r".pwconv\1."),
    (r"\.gamma$", ".layer_scale_parameter"),
]


def test_the_vision_transformer_is_dinov2():
    tensors = tensors_of("salad")
    own = model_of("salad", tensors, size=14 * GRID).backbone
    card = Card(
        name="tiny", family="dinov2", hub=None, patch=14, width=128, depth=2, heads=2, positions=GRID, size=14 * GRID,
        licence="", about="",
    )  # fmt: skip
    prefix = "backbone.model."
    plain = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    theirs = build_model(card, 2, to_module_names(plain, card))
    pixels = torch.randn(2, 3, 14 * GRID, 14 * GRID, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        wanted = theirs(pixels).last_hidden_state
        torch.testing.assert_close(own.norm(own(pixels)), wanted, atol=1e-5, rtol=1e-4)
        assert torch.equal(own.states(pixels)[-1], own(pixels))


def test_the_convolutional_network_is_convnext():
    tensors = tensors_of("sample4geo")
    config = transformers.ConvNextConfig(hidden_sizes=[4, 6, 8, 10], depths=[1, 1, 2, 1], layer_norm_eps=1e-6)
    theirs = transformers.ConvNextModel(config).eval()
    renamed = {}
    for name, tensor in tensors.items():
        if name != "logit_scale":
            for pattern, replacement in CONVNEXT:
                name = re.sub(pattern, replacement, name)
            renamed[name] = tensor
    theirs.load_state_dict(renamed, strict=True)
    pixels = torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        wanted = theirs(pixels).pooler_output
        torch.testing.assert_close(model_of("sample4geo", tensors).model(pixels), wanted, atol=1e-5, rtol=1e-4)
