"""Tensor names and shapes of published checkpoints.

A line is a name and its sides. `{L}` in a name stands for the numbers 0 to L − 1, `{0-2}` for those, `{a,b}` for these
words. Sides are numbers or products of the sizes below.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping

Layout = dict[str, tuple[int, ...]]

DINOV2 = """
cls_token 1 1 D
mask_token 1 D
pos_embed 1 P D
patch_embed.proj.weight D 3 14 14
patch_embed.proj.bias D
blocks.{L}.{norm1,norm2}.{weight,bias} D
blocks.{L}.attn.qkv.weight 3*D D
blocks.{L}.attn.qkv.bias 3*D
blocks.{L}.attn.proj.weight D D
blocks.{L}.attn.proj.bias D
blocks.{L}.{ls1,ls2}.gamma D
blocks.{L}.mlp.fc1.weight 4*D D
blocks.{L}.mlp.fc1.bias 4*D
blocks.{L}.mlp.fc2.weight D 4*D
blocks.{L}.mlp.fc2.bias D
norm.{weight,bias} D
"""
TRANSPORT = """
token_features.0.weight H D
token_features.0.bias H
token_features.2.weight Q H
token_features.2.bias Q
{cluster_features,score}.0.weight H D 1 1
{cluster_features,score}.0.bias H
cluster_features.3.weight F H 1 1
cluster_features.3.bias F
score.3.weight M H 1 1
score.3.bias M
dust_bin
"""
QUERIES = """
proj_c.weight C D 3 3
proj_c.bias C
norm_input.{weight,bias} C
boqs.{K}.encoder.self_attn.in_proj_weight 3*C C
boqs.{K}.encoder.self_attn.in_proj_bias 3*C
boqs.{K}.encoder.self_attn.out_proj.weight C C
boqs.{K}.encoder.self_attn.out_proj.bias C
boqs.{K}.encoder.linear1.weight 4*C C
boqs.{K}.encoder.linear1.bias 4*C
boqs.{K}.encoder.linear2.weight C 4*C
boqs.{K}.encoder.linear2.bias C
boqs.{K}.encoder.{norm1,norm2}.{weight,bias} C
boqs.{K}.queries 1 N C
boqs.{K}.{self_attn,cross_attn}.in_proj_weight 3*C C
boqs.{K}.{self_attn,cross_attn}.in_proj_bias 3*C
boqs.{K}.{self_attn,cross_attn}.out_proj.weight C C
boqs.{K}.{self_attn,cross_attn}.out_proj.bias C
boqs.{K}.{norm_q,norm_out}.{weight,bias} C
fc.weight R K*N
fc.bias R
"""
ADAPTERS = """
{A}.D_fc1.weight C D
{A}.D_fc1.bias C
{A}.D_fc2.weight D C
{A}.D_fc2.bias D
{A}.branch1.conv.weight C//2 C 1 1
{A}.branch1.{conv.bias,bn.weight,bn.bias,bn.running_mean,bn.running_var} C//2
{A}.{branch2,branch3}.0.conv.weight C//16 C 1 1
{A}.{branch2,branch3}.0.{conv.bias,bn.weight,bn.bias,bn.running_mean,bn.running_var} C//16
{A}.branch2.1.conv.weight C//4 C//16 3 3
{A}.branch3.1.conv.weight C//4 C//16 5 5
{A}.{branch2,branch3}.1.{conv.bias,bn.weight,bn.bias,bn.running_mean,bn.running_var} C//4
{A}.{branch1,branch2.0,branch2.1,branch3.0,branch3.1}.bn.num_batches_tracked
"""
FLOAT_BRANCH = """
aggregation.1.p 1
linear1.weight D D
linear1.bias D
linear2.weight U D
linear2.bias U
"""
HASH_BRANCH = """
aggregation_hashing.1.p 1
linear3.weight D D
linear3.bias D
linear4.weight B D
linear4.bias B
"""
CONVNEXT_STAGE = """
blocks.{J}.conv_dw.weight W 1 7 7
blocks.{J}.{conv_dw.bias,norm.weight,norm.bias,mlp.fc2.bias,gamma} W
blocks.{J}.mlp.fc1.weight 4*W W
blocks.{J}.mlp.fc1.bias 4*W
blocks.{J}.mlp.fc2.weight W 4*W
"""
CONVNEXT_HALVING = """
downsample.0.{weight,bias} V
downsample.1.weight W V 2 2
downsample.1.bias W
"""


def expanded(text: str, prefix: str = "", **sizes: int) -> Layout:
    """The names and shapes that lines stand for."""
    found: Layout = {}
    for line in text.split("\n"):
        if not line.strip():
            continue
        name, *sides = line.split()
        pieces = [_choices(piece, sizes) for piece in re.split(r"(\{[^}]*\})", name)]
        for chosen in itertools.product(*pieces):
            found[prefix + "".join(chosen)] = tuple(int(eval(side, {}, dict(sizes))) for side in sides)
    return found


def _choices(piece: str, sizes: Mapping[str, int]) -> list[str]:
    if not piece.startswith("{"):
        return [piece]
    inside = piece[1:-1]
    return [str(i) for i in range(sizes[inside])] if inside in sizes else inside.split(",")


def parameters(layout: Layout) -> int:
    """Numbers that are learned: running statistics are not."""
    kept = ("running_mean", "running_var", "num_batches_tracked")
    return sum(math.prod(shape) for name, shape in layout.items() if not name.endswith(kept))


def salad(*, D: int = 768, L: int = 12, P: int = 1370, H: int = 512, M: int = 64, F: int = 128, Q: int = 256) -> Layout:
    head = expanded(TRANSPORT, "aggregator.", D=D, H=H, M=M, F=F, Q=Q)
    return expanded(DINOV2, "backbone.model.", D=D, L=L, P=P) | head


def megaloc(
    *, old: bool = False, D: int = 768, L: int = 12, P: int = 1370, H: int = 512, M: int = 64, F: int = 256,
    Q: int = 256, U: int = 8448,
) -> Layout:  # fmt: skip
    head = expanded(TRANSPORT, "aggregator.agg.", D=D, H=H, M=M, F=F, Q=Q)
    last = {"aggregator.linear.weight": (U, Q + M * F), "aggregator.linear.bias": (U,)}
    backbone = expanded(DINOV2, "backbone.model." if old else "backbone.", D=D, L=L, P=P)
    if not old:
        del backbone["backbone.mask_token"]
    return backbone | head | last


def boq(*, D: int = 768, L: int = 12, P: int = 1370, C: int = 384, K: int = 2, N: int = 64, R: int = 32) -> Layout:
    head = expanded(QUERIES, "aggregator.", D=D, C=C, K=K, N=N, R=R)
    return expanded(DINOV2, "backbone.dino.", D=D, L=L, P=P) | head


def selavpr(
    *, two: bool, D: int = 768, L: int = 12, P: int = 1370, A: int = 12, C: int = 384, U: int = 2048, B: int = 512
) -> Layout:
    found = expanded(DINOV2, "backbone.", D=D, L=L, P=P) | expanded(ADAPTERS, "backbone.adapters.", A=A, C=C, D=D)
    found |= expanded(FLOAT_BRANCH, D=D, U=U)
    if two:
        found |= expanded(ADAPTERS, "backbone.adapters_hashing.", A=A, C=C, D=D) | expanded(HASH_BRANCH, D=D, B=B)
    return {f"module.{name}": shape for name, shape in found.items()}


LARGE = {"D": 1024, "L": 24, "A": 16, "C": 512, "U": 4096}


def sample4geo(depths: tuple[int, ...] = (3, 3, 27, 3), widths: tuple[int, ...] = (128, 256, 512, 1024)) -> Layout:
    found: Layout = {"logit_scale": ()}
    found |= expanded("stem.0.weight W 3 4 4\nstem.{0.bias,1.weight,1.bias} W", "model.", W=widths[0])
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        found |= expanded(CONVNEXT_STAGE, f"model.stages.{stage}.", J=depth, W=width)
        if stage:
            found |= expanded(CONVNEXT_HALVING, f"model.stages.{stage}.", V=widths[stage - 1], W=width)
    return found | expanded("head.norm.{weight,bias} W", "model.", W=widths[-1])


def cosplace(
    *, three: bool, depths: tuple[int, ...], output: int, S: int = 64, widths: tuple[int, ...] = (64, 128, 256, 512)
) -> Layout:
    found = {"backbone.0.weight": (S, 3, 7, 7)} | _norm("backbone.1", S)
    before, times = S, 4 if three else 1
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        for block in range(depth):
            at = f"backbone.{4 + stage}.{block}"
            first = (width, before, 1, 1) if three else (width, before, 3, 3)
            found |= {f"{at}.conv1.weight": first, f"{at}.conv2.weight": (width, width, 3, 3)}
            found |= _norm(f"{at}.bn1", width) | _norm(f"{at}.bn2", width)
            if three:
                found |= {f"{at}.conv3.weight": (4 * width, width, 1, 1)} | _norm(f"{at}.bn3", 4 * width)
            if block == 0 and (stage or before != times * width):
                found |= {f"{at}.downsample.0.weight": (times * width, before, 1, 1)}
                found |= _norm(f"{at}.downsample.1", times * width)
            before = times * width
    return found | {"aggregation.1.p": (1,), "aggregation.3.weight": (output, before), "aggregation.3.bias": (output,)}


def _norm(at: str, width: int) -> Layout:
    return expanded("{weight,bias,running_mean,running_var} W\nnum_batches_tracked", f"{at}.", W=width)
