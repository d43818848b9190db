"""DINOv2's vision transformer under the names its authors' checkpoints use, without registers.

Tokens are [CLS, patches row by row]. The position table of a checkpoint (37 × 37 for 518 pixels) is resampled once,
when the weights are in, by the published rule (`tfa.encoders.positions`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfa.encoders.positions import resampled_positions

PATCH = 14
HEAD_WIDTH = 64  # of every published size, so the number of heads follows from the width
NORM_EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class BackboneSizes:
    """What the shapes of a checkpoint say of its backbone."""

    width: int = 768
    blocks: int = 12
    hidden: int = 3072
    positions: int = 1370  # rows of the position table: CLS, then a square
    mask_token: bool = True  # kept by most checkpoints, read by none


class VisionTransformer(nn.Module):
    """Pixels `b 3 h w` → token states `b 1+n d` after every block."""

    positions: Tensor

    def __init__(self, sizes: BackboneSizes) -> None:
        super().__init__()
        width = sizes.width
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        if sizes.mask_token:
            self.mask_token = nn.Parameter(torch.empty(1, width))
        self.pos_embed = nn.Parameter(torch.empty(1, sizes.positions, width))
        self.patch_embed = _PatchEmbedding(width)
        self.blocks = nn.ModuleList(_Block(width, sizes.hidden) for _ in range(sizes.blocks))
        self.norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.register_buffer("positions", torch.empty(0), persistent=False)

    def resample_positions(self, grid: int) -> None:
        """Fit the position table to square inputs of `grid × grid` patches. Call it once the weights are in."""
        self.positions = resampled_positions(self.pos_embed.detach(), (grid, grid))

    def embed(self, pixels: Tensor) -> Tensor:
        """Patches and CLS with their positions: the state before the first block."""
        patches = self.patch_embed(pixels)
        cls = self.cls_token.expand(len(patches), -1, -1)
        return torch.cat([cls, patches], dim=1) + self.positions

    def states(self, pixels: Tensor) -> list[Tensor]:
        """The state before the first block and after each, without the final norm."""
        found = [self.embed(pixels)]
        for block in self.blocks:
            found.append(block(found[-1]))
        return found

    def forward(self, pixels: Tensor) -> Tensor:
        """The last state, without the final norm: whether that is applied depends on the system."""
        state = self.embed(pixels)
        for block in self.blocks:
            state = block(state)
        return state


def patch_map(patches: Tensor) -> Tensor:
    """Patch tokens `b g² d` of a square grid → `b d g g`."""
    side = math.isqrt(patches.shape[1])
    return patches.transpose(1, 2).unflatten(2, (side, side))


class _PatchEmbedding(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, PATCH, stride=PATCH)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.proj(pixels).flatten(2).transpose(1, 2)


class _Block(nn.Module):
    """x ← x + γ₁ ⊙ Attn(LN x), then x ← x + γ₂ ⊙ MLP(LN x)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=NORM_EPS)
        self.attn = _Attention(width)
        self.ls1 = _LayerScale(width)
        self.norm2 = nn.LayerNorm(width, eps=NORM_EPS)
        self.mlp = Mlp(width, hidden)
        self.ls2 = _LayerScale(width)

    def forward(self, state: Tensor) -> Tensor:
        state = state + self.ls1.gamma * self.attn(self.norm1(state))
        return state + self.ls2.gamma * self.mlp(self.norm2(state))


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, state: Tensor) -> Tensor:
        # Rows of qkv: all queries, all keys, all values; within each, head by head.
        query, key, value = self.qkv(state).unflatten(2, (3, -1, HEAD_WIDTH)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """Two layers with the exact GELU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, state: Tensor) -> Tensor:
        return self.fc2(functional.gelu(self.fc1(state)))


class _LayerScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(width))
