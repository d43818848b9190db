"""BoQ (bag of queries): learned queries attend to DINOv2-B's patches, which are taken before the final norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfa_bench.heads.trained.dinov2_backbone import HEAD_WIDTH, BackboneSizes, VisionTransformer, patch_map
from tfa_bench.heads.trained.image_model import (
    Architecture,
    ImageModel,
    Shapes,
    backbone_sizes,
    numbered,
    size_of,
)
from tfa_bench.heads.trained.resizing import Resizing


@dataclass(frozen=True, kw_only=True)
class QuerySizes:
    channels: int = 384
    queries: int = 64  # of each block
    blocks: int = 2
    hidden: int = 1536
    rows: int = 32  # what the queries of all blocks are combined to


class BagOfQueries(ImageModel):
    """The file also holds the backbone's final norm; nothing passes through it."""

    def __init__(self, backbone: BackboneSizes, head: QuerySizes) -> None:
        super().__init__()
        self.backbone = VisionTransformer(backbone)
        self.aggregator = _Aggregator(backbone.width, head)
        self.output = head.channels * head.rows

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.aggregator(patch_map(self.backbone(pixels)[:, 1:])), None


class _Aggregator(nn.Module):
    def __init__(self, width: int, sizes: QuerySizes) -> None:
        super().__init__()
        self.proj_c = nn.Conv2d(width, sizes.channels, 3, padding=1)
        self.norm_input = nn.LayerNorm(sizes.channels)
        self.boqs = nn.ModuleList(_QueryBlock(sizes) for _ in range(sizes.blocks))
        self.fc = nn.Linear(sizes.blocks * sizes.queries, sizes.rows)

    def forward(self, patches: Tensor) -> Tensor:
        state = self.norm_input(self.proj_c(patches).flatten(2).transpose(1, 2))  # b n c
        answers = []
        for block in self.boqs:
            state, answer = block(state)
            answers.append(answer)
        # Channel major, row minor.
        combined = self.fc(torch.cat(answers, dim=1).transpose(1, 2))  # b c rows
        return functional.normalize(combined.flatten(1), dim=1)


class _QueryBlock(nn.Module):
    """Patches attend to each other; queries attend to each other, then to the patches, without a way around."""

    def __init__(self, sizes: QuerySizes) -> None:
        super().__init__()
        channels, heads = sizes.channels, max(sizes.channels // HEAD_WIDTH, 1)
        self.encoder = nn.TransformerEncoderLayer(channels, heads, sizes.hidden, dropout=0.0, batch_first=True)
        self.queries = nn.Parameter(torch.empty(1, sizes.queries, channels))
        self.self_attn = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.norm_q = nn.LayerNorm(channels)
        self.cross_attn = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.norm_out = nn.LayerNorm(channels)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.encoder(state)
        own = self.queries
        own = self.norm_q(own + self.self_attn(own, own, own, need_weights=False)[0]).expand(len(state), -1, -1)
        return state, self.norm_out(self.cross_attn(own, state, state, need_weights=False)[0])


def _build(shapes: Shapes) -> BagOfQueries:
    published = QuerySizes()
    head = QuerySizes(
        channels=size_of(shapes, "aggregator.norm_input.weight", 0, published.channels),
        queries=size_of(shapes, "aggregator.boqs.0.queries", 1, published.queries),
        blocks=numbered(shapes, "aggregator.boqs.", published.blocks),
        hidden=size_of(shapes, "aggregator.boqs.0.encoder.linear1.weight", 0, published.hidden),
        rows=size_of(shapes, "aggregator.fc.weight", 0, published.rows),
    )
    return BagOfQueries(backbone_sizes(shapes, BackboneSizes()), head)


ARCHITECTURE = Architecture(
    resizing=Resizing(size=322, kind="float", kernel="bicubic"),
    build=_build,
    renamed={"backbone.dino.": "backbone."},
)
