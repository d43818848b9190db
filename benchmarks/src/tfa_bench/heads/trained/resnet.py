"""A residual network up to its last stage, as numbered children of a sequence: 0 convolution, 1 norm, 4–7 stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

# Of published networks by the blocks of their stages, and whether these are bottlenecks.
LAYERS: Mapping[tuple[tuple[int, ...], bool], int] = {
    ((2, 2, 2, 2), False): 18,
    ((3, 4, 6, 3), False): 34,
    ((3, 4, 6, 3), True): 50,
    ((3, 4, 23, 3), True): 101,
    ((3, 8, 36, 3), True): 152,
}
STAGES = (4, 5, 6, 7)  # children 2 and 3 are the ReLU and the pooling, which have no weights


@dataclass(frozen=True, kw_only=True)
class ResNetSizes:
    stem: int = 64
    depths: tuple[int, ...] = (3, 4, 6, 3)
    widths: tuple[int, ...] = (64, 128, 256, 512)  # inside the blocks of each stage
    bottleneck: bool = True  # three convolutions a block and four times the width outside; else two

    @property
    def output(self) -> int:
        return self.widths[-1] * (4 if self.bottleneck else 1)

    @property
    def is_known(self) -> bool:
        return (self.depths, self.bottleneck) in LAYERS

    @property
    def name(self) -> str:
        return f"ResNet-{LAYERS[self.depths, self.bottleneck]}" if self.is_known else "ResNet"


def resnet(sizes: ResNetSizes) -> nn.Sequential:
    """Pixels `b 3 h w` of any size → map `b c h/32 w/32`."""
    stem = [nn.Conv2d(3, sizes.stem, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(sizes.stem)]
    stages, before = [], sizes.stem
    for number, (depth, width) in enumerate(zip(sizes.depths, sizes.widths, strict=True)):
        out = width * (4 if sizes.bottleneck else 1)
        kind = _Bottleneck if sizes.bottleneck else _Basic
        first = kind(before, width, out, stride=1 if number == 0 else 2)
        stages.append(nn.Sequential(first, *(kind(out, width, out, stride=1) for _ in range(depth - 1))))
        before = out
    return nn.Sequential(*stem, nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1), *stages)


class _Residual(nn.Module):
    """What both kinds of block share: the way around, by a 1 × 1 convolution where shapes differ."""

    def __init__(self, before: int, out: int, stride: int) -> None:
        super().__init__()
        self.downsample: nn.Module | None = None
        if stride != 1 or before != out:
            self.downsample = nn.Sequential(nn.Conv2d(before, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))

    def around(self, state: Tensor) -> Tensor:
        return state if self.downsample is None else self.downsample(state)


class _Basic(_Residual):
    def __init__(self, before: int, width: int, out: int, stride: int) -> None:
        super().__init__(before, out, stride)
        self.conv1, self.bn1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)

    def forward(self, state: Tensor) -> Tensor:
        inner = functional.relu(self.bn1(self.conv1(state)))
        return functional.relu(self.bn2(self.conv2(inner)) + self.around(state))


class _Bottleneck(_Residual):
    def __init__(self, before: int, width: int, out: int, stride: int) -> None:
        super().__init__(before, out, stride)
        self.conv1, self.bn1 = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)

    def forward(self, state: Tensor) -> Tensor:
        inner = functional.relu(self.bn1(self.conv1(state)))
        inner = functional.relu(self.bn2(self.conv2(inner)))
        return functional.relu(self.bn3(self.conv3(inner)) + self.around(state))
