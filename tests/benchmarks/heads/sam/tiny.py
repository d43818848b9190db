"""A small MobileSAM under the published names, with random weights."""

from __future__ import annotations

import torch
from transformers import SamConfig

from tests.benchmarks.heads.sam import layouts
from tests.benchmarks.heads.trained.tiny import random_weights
from tfa_bench.heads.peers.mobile_sam import TinyViTSizes

# Stages of 16, 8, 4 and 4 cells a side: windows of 3 do not divide the second and the last, those of 2 the third.
SIZES = TinyViTSizes(
    widths=(4, 4, 6, 6),
    blocks=(1, 2, 1, 1),
    heads=(1, 2, 3, 2),
    windows=(1, 3, 2, 3),
    expansion=2,
    output=16,
    classes=3,
)
ENCODER = layouts.tiny_vit(
    SIZES.widths, SIZES.blocks, SIZES.heads, SIZES.windows, SIZES.expansion, SIZES.output, SIZES.classes
)
LAYOUT = layouts.mobile_sam(ENCODER, layouts.rest(C=16, F=24, G=8, I=12, L=2))
SIDE = 64


def config(layers: int = 2) -> SamConfig:
    return SamConfig(
        vision_config={
            "hidden_size": 16,
            "output_channels": 16,
            "image_size": SIDE,
            "patch_size": 16,
            "num_pos_feats": 8,
        },
        prompt_encoder_config={"hidden_size": 16, "image_size": SIDE, "patch_size": 16, "mask_input_channels": 8},
        mask_decoder_config={
            "hidden_size": 16,
            "mlp_dim": 24,
            "num_hidden_layers": layers,
            "num_attention_heads": 2,
            "iou_head_hidden_dim": 12,
            "layer_norm_eps": 1e-5,
        },
    )


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    return random_weights(LAYOUT, seed)
