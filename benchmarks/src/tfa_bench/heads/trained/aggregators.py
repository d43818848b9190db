"""Layers of published systems after their backbone, under the names of their checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfa_bench.heads.trained.backbones import HEAD_WIDTH, to_map

_LEAST = 1e-6  # Values below are raised to it: a negative number has no power p.
_SINKHORN_ROUNDS = 3
_ADAPTER_NORM_EPS = 1e-3


class GeneralizedMean(nn.Module):
    """CosPlace's, EigenPlaces' and SelaVPR++'s pooling of a map `b c h w` → `b c`.

    Unit vectors at each location, then the mean of p-th powers, then the p-th root.
    """

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.empty(1))

    def forward(self, state: Tensor) -> Tensor:
        unit = functional.normalize(state, dim=1)
        return unit.clamp(min=_LEAST).pow(self.p).mean(dim=(2, 3)).pow(1 / self.p)


class OptimalTransport(nn.Module):
    """SALAD's and MegaLoc's aggregation: normalized tokens `b 1+n d` → unit vectors `b token + features·clusters`."""

    def __init__(self, *, width: int, hidden: int, clusters: int, features: int, token: int) -> None:
        super().__init__()
        self.token_features = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, token))
        self.cluster_features = _make_pointwise(width, hidden, features)
        self.score = _make_pointwise(width, hidden, clusters)
        self.dust_bin = nn.Parameter(torch.empty(()))
        self.output = token + features * clusters

    def forward(self, tokens: Tensor) -> Tensor:
        patches = to_map(tokens[:, 1:])
        features = self.cluster_features(patches).flatten(2)  # b l n
        shares = transport(self.score(patches).flatten(2), self.dust_bin)  # b m n
        clusters = functional.normalize(torch.einsum("bln,bmn->blm", features, shares), dim=1)
        token = functional.normalize(self.token_features(tokens[:, 0]), dim=1)
        # The token comes first. Of the rest the feature channel is the major index, the cluster the minor one.
        return functional.normalize(torch.cat([token, clusters.flatten(1)], dim=1), dim=1)


def transport(scores: Tensor, dust_bin: Tensor) -> Tensor:
    """Share patches out to clusters and a dustbin: scores `b m n` → shares `b m n` without the dustbin's; n > m.

    The dustbin is one row of scores more, a learned scalar; it has no column. Three rounds of Sinkhorn in the logarithm
    fit the columns last, so that the shares of a patch, with the dustbin's, sum to one.
    """
    batch, clusters, patches = scores.shape
    bin_row = dust_bin.to(scores).expand(batch, 1, patches)
    scores = torch.cat([scores, bin_row], dim=1)
    level = -math.log(patches + clusters)
    rows = scores.new_full((clusters + 1, 1), level)
    rows[-1] += math.log(patches - clusters)  # the rest of the mass
    v = scores.new_zeros(batch, 1, patches)
    for _ in range(_SINKHORN_ROUNDS):
        u = rows - torch.logsumexp(scores + v, dim=2, keepdim=True)
        v = level - torch.logsumexp(scores + u, dim=1, keepdim=True)
    return (scores + u + v - level).exp()[:, :-1]


def _make_pointwise(width: int, hidden: int, out: int) -> nn.Sequential:
    # The dropout does nothing at inference, but checkpoints count it: convolutions are 0 and 3.
    return nn.Sequential(nn.Conv2d(width, hidden, 1), nn.Dropout(0.3), nn.ReLU(), nn.Conv2d(hidden, out, 1))


class ProjectedTransport(nn.Module):
    """MegaLoc's aggregation: as SALAD's, then a linear layer with bias, then unit length again."""

    def __init__(self, transport: OptimalTransport, output: int) -> None:
        super().__init__()
        self.agg = transport
        self.linear = nn.Linear(transport.output, output)

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.normalize(self.linear(self.agg(tokens)), dim=1)


class QueryAggregator(nn.Module):
    """BoQ's aggregation: a patch map `b d g g` → unit vectors `b channels·rows`, by learned queries."""

    def __init__(self, *, width: int, channels: int, queries: int, blocks: int, hidden: int, rows: int) -> None:
        super().__init__()
        self.proj_c = nn.Conv2d(width, channels, 3, padding=1)
        self.norm_input = nn.LayerNorm(channels)
        self.boqs = nn.ModuleList(_QueryBlock(channels, queries, hidden) for _ in range(blocks))
        self.fc = nn.Linear(blocks * queries, rows)

    def forward(self, patches: Tensor) -> Tensor:
        state = self.norm_input(self.proj_c(patches).flatten(2).transpose(1, 2))  # b n c
        answers = []
        for block in self.boqs:
            state, answer = block(state)
            answers.append(answer)
        # The channel is the major index, the row the minor one.
        combined = self.fc(torch.cat(answers, dim=1).transpose(1, 2))  # b c rows
        return functional.normalize(combined.flatten(1), dim=1)


class _QueryBlock(nn.Module):
    """Patches attend to each other; queries attend to each other, then to the patches, without a residual."""

    def __init__(self, channels: int, queries: int, hidden: int) -> None:
        super().__init__()
        heads = max(channels // HEAD_WIDTH, 1)
        self.encoder = nn.TransformerEncoderLayer(channels, heads, hidden, dropout=0.0, batch_first=True)
        self.queries = nn.Parameter(torch.empty(1, queries, channels))
        self.self_attn = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.norm_q = nn.LayerNorm(channels)
        self.cross_attn = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.norm_out = nn.LayerNorm(channels)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        state, queries = self.encoder(state), self.queries
        queries = self.norm_q(queries + self.self_attn(queries, queries, queries, need_weights=False)[0])
        queries = queries.expand(len(state), -1, -1)
        return state, self.norm_out(self.cross_attn(queries, state, state, need_weights=False)[0])


class Adapter(nn.Module):
    """SelaVPR++'s adapter of patches `b n d`: down, three convolutions in parallel with a residual, up."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.D_fc1, self.D_fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        half, quarter, narrow = hidden // 2, hidden // 4, hidden // 16
        self.branch1 = _Convolution(hidden, half, 1)
        self.branch2 = nn.Sequential(_Convolution(hidden, narrow, 1), _Convolution(narrow, quarter, 3))
        self.branch3 = nn.Sequential(_Convolution(hidden, narrow, 1), _Convolution(narrow, quarter, 5))

    def forward(self, patches: Tensor) -> Tensor:
        down = functional.relu(self.D_fc1(patches))
        square = to_map(down)
        mixed = torch.cat([self.branch1(square), self.branch2(square), self.branch3(square)], dim=1)
        return self.D_fc2(mixed.flatten(2).transpose(1, 2) + down)


class _Convolution(nn.Module):
    def __init__(self, before: int, after: int, side: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, side, padding=side // 2)
        self.bn = nn.BatchNorm2d(after, eps=_ADAPTER_NORM_EPS)

    def forward(self, state: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(state)))


def adapt(states: Sequence[Tensor], adapters: nn.ModuleList) -> Tensor:
    """Run SelaVPR++'s side stream along the backbone's states h, before its first block and after each.

    y ← h_s;  for each block i ≥ s:  y ← y + A(y + h_{i+1})
    """
    skipped = len(states) - 1 - len(adapters)
    stream = states[skipped]
    for adapter, state in zip(adapters, states[skipped + 1 :], strict=True):
        stream = stream + adapter(stream + state)
    return stream
