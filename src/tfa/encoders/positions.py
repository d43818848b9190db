"""A learned position table at another grid than the one it was learned on, as DINOv2's authors published it.

Bicubic, by the scale factor (g + 0.1)/side and not by the target size g: the factor also fixes where the table is
sampled, at (i + 0.5) side/(g + 0.1) − 0.5. transformers resamples by the size, at (i + 0.5) side/g − 0.5.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

SCALE_OFFSET = 0.1


def resample_positions(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """`1 1+p² d` → `1 1+rows·columns d` in float32; the row of CLS is never touched."""
    side = math.isqrt(table.shape[1] - 1)
    if grid == (side, side):
        return table
    square = table[:, 1:].float().reshape(1, side, side, -1).permute(0, 3, 1, 2)
    rows, columns = ((patches + SCALE_OFFSET) / side for patches in grid)
    square = functional.interpolate(
        square, scale_factor=(rows, columns), mode="bicubic", align_corners=False, antialias=False
    )
    return torch.cat([table[:, :1].float(), square.flatten(2).transpose(1, 2)], dim=1)
