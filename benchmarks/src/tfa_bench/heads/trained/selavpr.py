"""SelaVPR++: a side stream of small adapters beside a frozen DINOv2, pooled to a vector and, in files that can
rerank, to a code of bits by adapters of its own.

    y ← h_s;  for each block i ≥ s:  y ← y + A(y + h_{i+1})        h_k: the backbone's state after k blocks
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfa_bench.heads.trained.dinov2_backbone import BackboneSizes, VisionTransformer, patch_map
from tfa_bench.heads.trained.image_model import (
    Architecture,
    ImageModel,
    Shapes,
    backbone_sizes,
    numbered,
    size_of,
)
from tfa_bench.heads.trained.pooling import GeneralisedMean
from tfa_bench.heads.trained.resizing import Resizing

BATCH_NORM_EPS = 1e-3
ADAPTERS = {768: 12, 1024: 16}  # of the published models by their width


@dataclass(frozen=True, kw_only=True)
class SideSizes:
    adapters: int = 12
    hidden: int = 384  # of an adapter
    output: int = 2048
    bits: int = 0  # of the code; 0 where the file has one branch


class SelaVpr(ImageModel):
    """The class token of the side stream reaches no patch and is not pooled, so it is left out."""

    def __init__(self, backbone: BackboneSizes, side: SideSizes) -> None:
        super().__init__()
        width = backbone.width
        self.backbone = _AdaptedTransformer(backbone, side)
        self.aggregation = nn.Sequential(nn.Identity(), GeneralisedMean())
        self.linear1, self.linear2 = nn.Linear(width, width), nn.Linear(width, side.output)
        self.output, self.about = side.output, "one branch"
        if side.bits:
            self.aggregation_hashing = nn.Sequential(nn.Identity(), GeneralisedMean())
            self.linear3, self.linear4 = nn.Linear(width, width), nn.Linear(width, side.bits)
            self.code, self.about = side.bits, f"two stages, {side.bits} bits"

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        states = [state[:, 1:] for state in self.backbone.states(pixels)]
        vector = self.linear2(self.aggregation(self._map(states, self.backbone.adapters, self.linear1)))
        vector = functional.normalize(vector, dim=1)
        if self.code is None:
            return vector, None
        code = self.linear4(self.aggregation_hashing(self._map(states, self.backbone.adapters_hashing, self.linear3)))
        return vector, torch.where(code >= 0, 1.0, -1.0)  # zero counts as one

    def _map(self, states: Sequence[Tensor], adapters: nn.ModuleList, linear: nn.Linear) -> Tensor:
        """What is pooled: the side stream after the backbone's final norm and a linear layer, `b d g g`."""
        return patch_map(linear(self.backbone.norm(side_stream(states, adapters))))


class _AdaptedTransformer(VisionTransformer):
    """The frozen backbone, and the adapters whose names begin with its own."""

    def __init__(self, sizes: BackboneSizes, side: SideSizes) -> None:
        super().__init__(sizes)
        self.adapters = _adapters(sizes.width, side)
        self.adapters_hashing = _adapters(sizes.width, side if side.bits else replace(side, adapters=0))


def side_stream(states: Sequence[Tensor], adapters: nn.ModuleList) -> Tensor:
    """From the states of a backbone before its first block and after each."""
    skipped = len(states) - 1 - len(adapters)
    stream = states[skipped]
    for adapter, state in zip(adapters, states[skipped + 1 :], strict=True):
        stream = stream + adapter(stream + state)
    return stream


class Adapter(nn.Module):
    """Patches `b n d` → `b n d`: down, three convolutions side by side and a way around them, up."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.D_fc1, self.D_fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        half, quarter, narrow = hidden // 2, hidden // 4, hidden // 16
        self.branch1 = _Convolution(hidden, half, 1)
        self.branch2 = nn.Sequential(_Convolution(hidden, narrow, 1), _Convolution(narrow, quarter, 3))
        self.branch3 = nn.Sequential(_Convolution(hidden, narrow, 1), _Convolution(narrow, quarter, 5))

    def forward(self, patches: Tensor) -> Tensor:
        down = functional.relu(self.D_fc1(patches))
        square = patch_map(down)
        mixed = torch.cat([self.branch1(square), self.branch2(square), self.branch3(square)], dim=1)
        return self.D_fc2(mixed.flatten(2).transpose(1, 2) + down)


class _Convolution(nn.Module):
    def __init__(self, before: int, after: int, side: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, side, padding=side // 2)
        self.bn = nn.BatchNorm2d(after, eps=BATCH_NORM_EPS)

    def forward(self, state: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(state)))


def _adapters(width: int, side: SideSizes) -> nn.ModuleList:
    return nn.ModuleList(Adapter(width, side.hidden) for _ in range(side.adapters))


def _build(shapes: Shapes, backbone: BackboneSizes, side: SideSizes) -> SelaVpr:
    two_branches = any(name.startswith("backbone.adapters_hashing.") for name in shapes)
    frozen = backbone_sizes(shapes, backbone)
    found = SideSizes(
        adapters=ADAPTERS.get(frozen.width) or numbered(shapes, "backbone.adapters.", side.adapters),
        hidden=size_of(shapes, "backbone.adapters.0.D_fc1.weight", 0, side.hidden),
        output=size_of(shapes, "linear2.weight", 0, side.output),
        bits=size_of(shapes, "linear4.weight", 0, 512) if two_branches else 0,
    )
    if found.adapters > frozen.blocks:
        raise ValueError(f"{found.adapters} adapters beside {frozen.blocks} blocks")
    return SelaVpr(frozen, found)


# The published figures were most likely made without antialiasing: the default of the torchvision of their time.
_RESIZING = Resizing(size=322, kind="float", antialias=False)
BASE = Architecture(resizing=_RESIZING, build=lambda shapes: _build(shapes, BackboneSizes(), SideSizes()))
LARGE = Architecture(
    resizing=_RESIZING,
    build=lambda shapes: _build(
        shapes,
        BackboneSizes(width=1024, blocks=24, hidden=4096),
        SideSizes(adapters=16, hidden=512, output=4096),
    ),
)
