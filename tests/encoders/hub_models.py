"""Small random models of every kind of architecture, saved by transformers itself, and one in timm's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from tests.encoders.tiny import TINY, random_weights, renamed
from tfa.encoders.catalogue import Card

_VIT = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 48}
_SQUARE = {**_VIT, "image_size": 64, "patch_size": 16}
_DINOV2 = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 42, "patch_size": 14}
_STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}
_TEXT = {**_VIT, "vocab_size": 99, "bos_token_id": 0, "eos_token_id": 1}

# Configuration, tokens before the patches, and pixels per patch of the block at two thirds of the depth.
MODELS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "dinov2": ("Dinov2", _DINOV2, 1, 14),
    "dinov2-registers": ("Dinov2WithRegisters", {**_DINOV2, "num_register_tokens": 4}, 5, 14),
    "dinov3": ("DINOv3ViT", {**_SQUARE, "num_register_tokens": 2}, 3, 16),
    "dinov3-convnext": ("DINOv3ConvNext", _STAGES, 0, 16),
    "siglip": ("SiglipVision", _SQUARE, 0, 16),
    "siglip2": ("Siglip2Vision", {**_VIT, "patch_size": 16, "num_patches": 16}, 0, 16),
    "clip-vision": ("CLIPVision", _SQUARE, 1, 16),
    "clip": ("CLIP", {"vision_config": _SQUARE, "text_config": _TEXT, "projection_dim": 24}, 1, 16),
    "vit": ("ViT", _SQUARE, 1, 16),
    "convnext": ("ConvNext", _STAGES, 0, 16),
    "resnet": ("ResNet", {**_STAGES, "embedding_size": 8}, 0, 16),
    "swin": ("Swin", {"embed_dim": 8, "depths": [1, 1, 2, 1], "num_heads": [1, 1, 2, 2], "window_size": 2}, 0, 16),
    "mobilenet": ("MobileNetV2", {"depth_multiplier": 0.25}, 0, 16),
}
SIDE = 112  # a multiple of 14 and 16
PREPROCESSING = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "size": {"height": SIDE, "width": SIDE}}


def save_model(kind: str, folder: Path, seed: int = 0) -> str:
    """Save a model of `MODELS` or `LAYOUTS` with random weights; return its encoder name."""
    if kind in LAYOUTS:
        return save_layout(TINY[LAYOUTS[kind]], folder, seed)
    name, options, _, _ = MODELS[kind]
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**options))
    for parameter in model.parameters():  # larger than the initialization, so that photos differ in every token
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({**PREPROCESSING, "resample": 3}))
    return f"hf:{folder}"


LAYOUTS = {
    "timm dinov2": "tiny-v2",
    "timm giant": "tiny-v2-swiglu",
    "timm reg": "tiny-v2-reg",
    "timm dinov3": "tiny-v3",
}


def save_layout(card: Card, folder: Path, seed: int = 0) -> str:
    """Save random weights of a card in timm's layout."""
    folder.mkdir(parents=True)
    weights = renamed(random_weights(card, seed), card, "facebookresearch")
    save_file(as_timm(weights, card), folder / "model.safetensors")
    facts = {
        "input_size": [3, card.size, card.size],
        "mean": card.mean,
        "std": card.std,
        "interpolation": card.resample,
    }
    config = {"architecture": f"vit_{card.name}", "model_args": {"num_heads": card.heads}, "pretrained_cfg": facts}
    (folder / "config.json").write_text(json.dumps(config))
    return f"hf:{folder}"


def as_timm(weights: dict[str, torch.Tensor], card: Card) -> dict[str, torch.Tensor]:
    """Rename facebookresearch's weights as timm does, written out by hand."""
    out = {"head.weight": torch.zeros(5, card.width)}
    for name, tensor in weights.items():
        if name in ("mask_token", "rope_embed.periods") or name.endswith("bias_mask"):
            continue
        name = name.replace("register_tokens", "reg_token").replace("storage_tokens", "reg_token")
        name = name.replace("mlp.w12", "mlp.fc1").replace("mlp.w3", "mlp.fc2")
        if card.family == "dinov3":
            name = name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2")
            if name.endswith("attn.qkv.bias"):
                query, _, value = tensor.chunk(3)
                stem = name.removesuffix("qkv.bias")
                out |= {f"{stem}q_bias": query.clone(), f"{stem}v_bias": value.clone()}
                continue
        if name == "pos_embed" and card.registers:  # timm adds the position of CLS to CLS
            out["cls_token"] = out["cls_token"] + tensor[:, :1]
            tensor = tensor[:, 1:].clone()
        out[name] = tensor
    return out
