"""Tiny cards of every family and random weights for them under each naming there is."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from tfa.encoders.catalogue import CATALOGUE, Card
from tfa.encoders.packaged_weights import expected_shapes

TINY = {
    "tiny-v2": dataclasses.replace(CATALOGUE["dinov2-s14"], name="tiny-v2", positions=3),
    "tiny-v2-swiglu": dataclasses.replace(CATALOGUE["dinov2-g14"], name="tiny-v2-swiglu", positions=3),
    "tiny-v2-reg": dataclasses.replace(CATALOGUE["dinov2-s14-reg"], name="tiny-v2-reg", positions=3),
    "tiny-v3": dataclasses.replace(CATALOGUE["dinov3-s16"], name="tiny-v3"),
}
TINY = {name: dataclasses.replace(card, width=24, depth=3, heads=2, size=4 * card.patch) for name, card in TINY.items()}
NAMINGS = ("modules", "transformers4", "facebookresearch")


def random_weights(card: Card, seed: int = 0) -> dict[str, torch.Tensor]:
    """In the names of transformers' modules."""
    generator = torch.Generator().manual_seed(seed)
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in expected_shapes(card).items()}


def as_arrays(weights: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in weights.items()}


def renamed(weights: dict[str, torch.Tensor], card: Card, naming: str) -> dict[str, torch.Tensor]:
    """Written out by hand, one naming after the other: the tests' own account of what files look like."""
    if naming == "modules":
        return dict(weights)
    return _transformers4(weights, card) if naming == "transformers4" else _facebookresearch(weights, card)


def _transformers4(weights: dict[str, torch.Tensor], card: Card) -> dict[str, torch.Tensor]:
    if card.family == "dinov3":
        return {name.replace("model.layer.", "layer."): tensor for name, tensor in weights.items()}
    out = {"embeddings.mask_token": torch.zeros(1, card.width)}
    for name, tensor in weights.items():
        for new, old in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")):
            name = name.replace(f"attention.{new}", f"attention.attention.{old}")
        out[name.replace("attention.o_proj", "attention.output.dense")] = tensor
    if card.mlp == "swiglu":
        for i in range(card.depth):
            mlp = f"encoder.layer.{i}.mlp"
            for kind in ("weight", "bias"):
                halves = [out.pop(f"{mlp}.gate_proj.{kind}"), out.pop(f"{mlp}.up_proj.{kind}")]
                out[f"{mlp}.weights_in.{kind}"] = torch.cat(halves)
                out[f"{mlp}.weights_out.{kind}"] = out.pop(f"{mlp}.down_proj.{kind}")
    return out


def _facebookresearch(weights: dict[str, torch.Tensor], card: Card) -> dict[str, torch.Tensor]:
    v3 = card.family == "dinov3"
    stem = "embeddings.patch_embeddings" if v3 else "embeddings.patch_embeddings.projection"
    final = "norm" if v3 else "layernorm"
    out = {
        "cls_token": weights["embeddings.cls_token"],
        "mask_token": torch.zeros(1, card.width),
        "patch_embed.proj.weight": weights[f"{stem}.weight"],
        "patch_embed.proj.bias": weights[f"{stem}.bias"],
        "norm.weight": weights[f"{final}.weight"],
        "norm.bias": weights[f"{final}.bias"],
    }
    if v3:
        out["rope_embed.periods"] = torch.ones(card.width // card.heads // 4)
        out["storage_tokens"] = weights["embeddings.register_tokens"]
    else:
        out["pos_embed"] = weights["embeddings.position_embeddings"]
        if card.registers:
            out["register_tokens"] = weights["embeddings.register_tokens"]
    for i in range(card.depth):
        block = f"{'model' if v3 else 'encoder'}.layer.{i}"
        theirs = f"blocks.{i}"
        for kind in ("weight", "bias"):
            parts = [weights.get(f"{block}.attention.{p}_proj.{kind}") for p in "qkv"]
            # DINOv3's files carry a key bias that a mask switches off; it may be anything.
            parts = [torch.full((card.width,), float("nan")) if part is None else part for part in parts]
            out[f"{theirs}.attn.qkv.{kind}"] = torch.cat(parts)
            out[f"{theirs}.attn.proj.{kind}"] = weights[f"{block}.attention.o_proj.{kind}"]
            for norm in ("norm1", "norm2"):
                out[f"{theirs}.{norm}.{kind}"] = weights[f"{block}.{norm}.{kind}"]
            if card.mlp == "swiglu":
                halves = [weights[f"{block}.mlp.{half}_proj.{kind}"] for half in ("gate", "up")]
                out[f"{theirs}.mlp.w12.{kind}"] = torch.cat(halves)
                out[f"{theirs}.mlp.w3.{kind}"] = weights[f"{block}.mlp.down_proj.{kind}"]
            else:
                for fc, proj in (("fc1", "up_proj"), ("fc2", "down_proj")):
                    out[f"{theirs}.mlp.{fc}.{kind}"] = weights[f"{block}.mlp.{proj if v3 else fc}.{kind}"]
        out[f"{theirs}.ls1.gamma"] = weights[f"{block}.layer_scale1.lambda1"]
        out[f"{theirs}.ls2.gamma"] = weights[f"{block}.layer_scale2.lambda1"]
        if v3:
            out[f"{theirs}.attn.qkv.bias_mask"] = torch.ones(3 * card.width)
    return out
