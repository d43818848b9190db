"""Generalised-mean pooling of unit vectors, as CosPlace, EigenPlaces and SelaVPR++ pool a map."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

LEAST = 1e-6  # values below are raised to it: a power of a negative number is none


class GeneralisedMean(nn.Module):
    """Map `b c h w` → `b c`: unit at each location, then the mean of p-th powers, then the p-th root."""

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.empty(1))

    def forward(self, state: Tensor) -> Tensor:
        unit = functional.normalize(state, dim=1)
        return unit.clamp(min=LEAST).pow(self.p).mean(dim=(2, 3)).pow(1 / self.p)
