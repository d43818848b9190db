"""Aggregation by optimal transport: patches are shared out to clusters and a dustbin, as SALAD and MegaLoc do.

The dustbin is one row of scores more (a learned scalar); there is no column for it. Three rounds of Sinkhorn in the
logarithm; columns are fitted last, so that the shares of a patch, dustbin included, sum to one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

SINKHORN_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class TransportSizes:
    """What the shapes of a checkpoint say of its head."""

    width: int = 768
    hidden: int = 512
    clusters: int = 64
    features: int = 128  # of each cluster
    token: int = 256  # of the global part

    @property
    def output(self) -> int:
        return self.token + self.features * self.clusters


class OptimalTransport(nn.Module):
    """Normalised patch map `b d h w` and CLS `b d` → unit vectors `b q + l·m`."""

    def __init__(self, sizes: TransportSizes) -> None:
        super().__init__()
        width, hidden = sizes.width, sizes.hidden
        self.token_features = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, sizes.token))
        self.cluster_features = _pointwise(width, hidden, sizes.features)
        self.score = _pointwise(width, hidden, sizes.clusters)
        self.dust_bin = nn.Parameter(torch.empty(()))

    def forward(self, patches: Tensor, cls: Tensor) -> Tensor:
        features = self.cluster_features(patches).flatten(2)  # b l n
        shares = transport(self.score(patches).flatten(2), self.dust_bin)  # b m n
        clusters = functional.normalize(torch.einsum("bln,bmn->blm", features, shares), dim=1)
        token = functional.normalize(self.token_features(cls), dim=1)
        # The token comes first; of the rest the feature channel is the major index and the cluster the minor one.
        return functional.normalize(torch.cat([token, clusters.flatten(1)], dim=1), dim=1)


def transport(scores: Tensor, dust_bin: Tensor) -> Tensor:
    """Scores `b m n` of clusters for patches → shares `b m n`, without those of the dustbin. Needs n > m."""
    batch, clusters, patches = scores.shape
    bin_row = dust_bin.to(scores).expand(batch, 1, patches)
    scores = torch.cat([scores, bin_row], dim=1)
    level = -math.log(patches + clusters)
    rows = scores.new_full((clusters + 1, 1), level)
    rows[-1] += math.log(patches - clusters)  # what the clusters do not take
    v = scores.new_zeros(batch, 1, patches)
    for _ in range(SINKHORN_ROUNDS):
        u = rows - torch.logsumexp(scores + v, dim=2, keepdim=True)
        v = level - torch.logsumexp(scores + u, dim=1, keepdim=True)
    return (scores + u + v - level).exp()[:, :-1]


def _pointwise(width: int, hidden: int, out: int) -> nn.Sequential:
    # The dropout does nothing at inference; it is there because checkpoints count it: convolutions are 0 and 3.
    return nn.Sequential(nn.Conv2d(width, hidden, 1), nn.Dropout(0.3), nn.ReLU(), nn.Conv2d(hidden, out, 1))
