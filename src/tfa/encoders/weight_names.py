"""One naming for weights: that of the modules of transformers, whatever a file calls them.

Files come in facebookresearch's names (`blocks.3.attn.qkv.weight`), in those of transformers 4
(`encoder.layer.3.attention.attention.query.weight`), or in those of the modules of transformers 5
(`encoder.layer.3.attention.q_proj.weight`). Each is renamed by the rules below; what no rule knows keeps its
name and is then reported as an extra key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tfa.encoders.catalogue import Card
from tfa.errors import BadWeights

# Read by nobody at inference. mask_token: training only. rope periods: computed from the card. bias_mask:
# zeroes the key bias of DINOv3, which transformers does not have in the first place.
HARMLESS = re.compile(r"(^|\.)(mask_token|rope_embed\.periods|rope_embeddings\.inv_freq|attn\.qkv\.bias_mask)$")

_LISTED = 8  # keys named in an error, of each kind

_BLOCK_RULES = [
    (r"\.attn\.proj\.", ".attention.o_proj."),
    (r"\.attention\.attention\.query\.", ".attention.q_proj."),
    (r"\.attention\.attention\.key\.", ".attention.k_proj."),
    (r"\.attention\.attention\.value\.", ".attention.v_proj."),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
    (r"\.ls([12])\.gamma$", r".layer_scale\1.lambda1"),
    (r"\.mlp\.(w3|weights_out)\.", ".mlp.down_proj."),
]
_STEM_RULES = [
    (r"^cls_token$", "embeddings.cls_token"),
    (r"^pos_embed$", "embeddings.position_embeddings"),
    (r"^(register_tokens|storage_tokens)$", "embeddings.register_tokens"),
]
_RULES = {
    "dinov2": [
        *_STEM_RULES,
        (r"^patch_embed\.proj\.", "embeddings.patch_embeddings.projection."),
        (r"^blocks\.", "encoder.layer."),
        (r"^norm\.", "layernorm."),
        *_BLOCK_RULES,
    ],
    "dinov3": [
        *_STEM_RULES,
        (r"^patch_embed\.proj\.", "embeddings.patch_embeddings."),
        (r"^(blocks|layer)\.", "model.layer."),
        *_BLOCK_RULES,
        (r"\.mlp\.fc1\.", ".mlp.up_proj."),
        (r"\.mlp\.fc2\.", ".mlp.down_proj."),
    ],
}
_RULES["dinov2-reg"] = _RULES["dinov2"]

# Matrices stored as one and their parts, in the order of their rows.
_FUSED = [
    (re.compile(r"\.attn\.qkv\."), (".attention.q_proj.", ".attention.k_proj.", ".attention.v_proj.")),
    (re.compile(r"\.mlp\.(w12|weights_in)\."), (".mlp.gate_proj.", ".mlp.up_proj.")),
]


def block_name(card: Card, layer: int) -> str:
    """Module path of a block."""
    return f"{'model' if card.family == 'dinov3' else 'encoder'}.layer.{layer}"


def expected_shapes(card: Card) -> dict[str, tuple[int, ...]]:
    """Names and shapes of every weight of the full-depth model."""
    d, hidden = card.width, card.mlp_width
    v3 = card.family == "dinov3"
    stem = "embeddings.patch_embeddings" if v3 else "embeddings.patch_embeddings.projection"
    shapes: dict[str, tuple[int, ...]] = {"embeddings.cls_token": (1, 1, d)}
    if card.positions:
        shapes["embeddings.position_embeddings"] = (1, card.positions**2 + 1, d)
    if card.registers:
        shapes["embeddings.register_tokens"] = (1, card.registers, d)
    shapes |= {f"{stem}.weight": (d, 3, card.patch, card.patch), f"{stem}.bias": (d,)}
    if card.mlp == "swiglu":
        mlp = {"gate_proj": (hidden, d), "up_proj": (hidden, d), "down_proj": (d, hidden)}
    else:
        up, down = ("up_proj", "down_proj") if v3 else ("fc1", "fc2")
        mlp = {up: (hidden, d), down: (d, hidden)}
    for layer in range(card.depth):
        block = block_name(card, layer)
        linear = {f"attention.{p}_proj": (d, d) for p in "qkvo"} | {f"mlp.{name}": shape for name, shape in mlp.items()}
        for name, shape in linear.items():
            shapes[f"{block}.{name}.weight"] = shape
            if not (v3 and name == "attention.k_proj"):  # DINOv3's keys have no bias
                shapes[f"{block}.{name}.bias"] = shape[:1]
        for name in ("norm1", "norm2"):
            shapes |= {f"{block}.{name}.weight": (d,), f"{block}.{name}.bias": (d,)}
        shapes |= {f"{block}.layer_scale1.lambda1": (d,), f"{block}.layer_scale2.lambda1": (d,)}
    norm = "norm" if v3 else "layernorm"
    return shapes | {f"{norm}.weight": (d,), f"{norm}.bias": (d,)}


def to_module_names(tensors: Mapping[str, Any], card: Card) -> dict[str, Any]:
    """Rename and split weights of any known naming; harmless buffers are left out, unknown keys stay."""
    named: dict[str, Any] = {}
    for key, tensor in tensors.items():
        if HARMLESS.search(key):
            continue
        renamed = key
        for pattern, replacement in _RULES[card.family]:
            renamed = re.sub(pattern, replacement, renamed)
        for new, part in _split(renamed, tensor, card):
            if new in named:
                raise BadWeights(f"the weights name {new} twice, the second time as {key}; give a file of one model")
            named[new] = part
    return named


def _split(key: str, tensor: Any, card: Card) -> list[tuple[str, Any]]:
    for pattern, parts in _FUSED:
        if pattern.search(key) and tensor.ndim:  # what has no rows stays one, and is an extra key
            names = [pattern.sub(part, key) for part in parts]
            pieces = list(zip(names, tensor.chunk(len(parts)), strict=False))
            # The file keeps a key bias only to multiply it by a zero mask.
            return [p for p in pieces if not (card.family == "dinov3" and p[0].endswith("k_proj.bias"))]
    return [(key, tensor)]


def check_weights(shapes: Mapping[str, tuple[int, ...]], card: Card, where: str) -> None:
    """Refuse weights (given as their names and shapes) that are not exactly those of the card."""
    expected = expected_shapes(card)
    problems = {
        "missing": [key for key in expected if key not in shapes],
        "extra": [key for key in shapes if key not in expected],
        "of another shape": [
            f"{key} {shapes[key]} instead of {shape}"
            for key, shape in expected.items()
            if key in shapes and shapes[key] != shape
        ],
    }
    lines = [f"{len(keys)} {kind}: {_some(keys)}" for kind, keys in problems.items() if keys]
    if lines:
        raise BadWeights(
            f"{where} does not hold the weights of {card.name} ({card.about}):",
            more=[
                *(f"  {line}" for line in lines),
                "give the file of this very model, or name the encoder the file belongs to",
            ],
        )


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:_LISTED]) + (", …" if len(keys) > _LISTED else "")
