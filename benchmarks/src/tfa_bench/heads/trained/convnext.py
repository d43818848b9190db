"""ConvNeXt under timm's names, without a classifier: pixels → the pooled, normalised vector."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tfa_bench.heads.trained.dinov2_backbone import Mlp

NORM_EPS = 1e-6  # of every norm, the last one too


@dataclass(frozen=True, kw_only=True)
class ConvNextSizes:
    depths: tuple[int, ...] = (3, 3, 27, 3)
    widths: tuple[int, ...] = (128, 256, 512, 1024)


class ConvNext(nn.Module):
    """Pixels `b 3 h w` → `b d`: average over the last map first, norm second."""

    def __init__(self, sizes: ConvNextSizes) -> None:
        super().__init__()
        widths = sizes.widths
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 4, stride=4), _ChannelNorm(widths[0]))
        before = (None, *widths[:-1])
        self.stages = nn.Sequential(
            *(_Stage(*one) for one in zip(before, widths, sizes.depths, strict=True)),
        )
        self.head = _Head(widths[-1])

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(pixels)))


class _Head(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=NORM_EPS)

    def forward(self, state: Tensor) -> Tensor:
        return self.norm(state.mean(dim=(2, 3)))


class _ChannelNorm(nn.LayerNorm):
    """Over the channels of a map `b c h w`."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=NORM_EPS)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _Stage(nn.Module):
    def __init__(self, before: int | None, width: int, depth: int) -> None:
        super().__init__()
        halve = [] if before is None else [_ChannelNorm(before), nn.Conv2d(before, width, 2, stride=2)]
        self.downsample = nn.Sequential(*halve)
        self.blocks = nn.Sequential(*(_Block(width) for _ in range(depth)))

    def forward(self, state: Tensor) -> Tensor:
        return self.blocks(self.downsample(state))


class _Block(nn.Module):
    """x + γ ⊙ MLP(LN(depthwise 7 × 7 (x)))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv_dw = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.mlp = Mlp(width, 4 * width)
        self.gamma = nn.Parameter(torch.empty(width))

    def forward(self, state: Tensor) -> Tensor:
        inner = self.gamma * self.mlp(self.norm(self.conv_dw(state).permute(0, 2, 3, 1)))
        return state + inner.permute(0, 3, 1, 2)
