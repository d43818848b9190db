"""SAM's masks drawn from its decoder's answers: only those asked for, a few rows of cells at a time.

A cell becomes 2 × 2 pixels of 64 channels and each of those 2 × 2 of 32; the logit of a mask is their product with what
its token asks for. Bilinear enlargement reads few neighbours of each pixel, so its matrix is applied block by block.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, interpolate, layer_norm

from tfa_bench.heads.peers.point_decoder import Changed, PointDecoder

CELLS_AT_ONCE = 512  # so many lie in the processor's caches
PIXELS_AT_ONCE = 32  # of an enlarged axis


class MaskDrawing:
    """One image's decoder, ready to draw the first `rows` of cells: what lies below is of no use, if it is padding."""

    def __init__(self, sam: Any, decoder: PointDecoder, rows: int | None = None) -> None:
        self.rows, self.columns = rows or decoder.grid[0], decoder.grid[1]
        self._norm = sam.mask_decoder.upscale_layer_norm
        # A transposed convolution of side and stride 2 is a linear layer to four pixels.
        first, second = sam.mask_decoder.upscale_conv1, sam.mask_decoder.upscale_conv2
        self._to_pixels = first.weight.permute(0, 2, 3, 1).flatten(1)
        self._image = decoder.shared.image[: self.rows * self.columns] @ self._to_pixels
        self._last = decoder.shared.beta @ self._to_pixels + first.bias.repeat(4)
        self._second = second.weight.permute(2, 3, 1, 0).flatten(0, 2).contiguous()
        self._bias = second.bias.repeat(4)[:, None]
        # Fresh memory would cost more than some of what is computed in it.
        self._pixels = self._image.new_empty(CELLS_AT_ONCE, self._image.shape[1])

    def logits(self, image: Changed, wanted: Tensor) -> Tensor:
        """Of the masks that `s c/8` asks for, `s 4·rows 4·columns`."""
        count, cells = len(wanted), self.rows * self.columns
        # The row of ones after those in use carries what all cells share.
        mixes = torch.cat([image.mixes @ self._to_pixels, self._last[None]])
        rows = image.rows[: len(mixes)]
        found = wanted.new_empty(2, 2, count, cells, 2, 2)
        for start in range(0, cells, CELLS_AT_ONCE):
            some = slice(start, min(start + CELLS_AT_ONCE, cells))
            here = some.stop - start
            pixels = torch.mul(self._image[some], image.scale[some, None], out=self._pixels[:here])
            pixels = pixels.addmm_(rows[:, some].T, mixes).view(-1, self._second.shape[1])
            norm = self._norm
            pixels = gelu(layer_norm(pixels, norm.weight.shape, norm.weight, norm.bias, norm.eps))
            channels = gelu(torch.addmm(self._bias, self._second, pixels.T))
            drawn = torch.bmm(wanted.expand(4, -1, -1), channels.unflatten(0, (4, -1)))
            found[:, :, :, some] = drawn.view(2, 2, count, -1, 2, 2)
        logits = wanted.new_empty(count, self.rows, 2, 2, self.columns, 2, 2)
        nested = found.unflatten(3, (self.rows, self.columns))
        # Sixteen copies of long rows are quicker than one of pairs.
        for a, b, c, d in product((0, 1), repeat=4):
            logits[:, :, a, b, :, c, d] = nested[b, d, :, :, :, a, c]
        return logits.view(count, 4 * self.rows, 4 * self.columns)


class Enlarging:
    """Along one axis, from the padded square's logits to the pixels of the image itself.

    Published: bilinear to the padded square of `side` pixels, cut to the image `inside` it, bilinear to its own size.
    """

    def __init__(self, logits: int, side: int, inside: int, size: int, device: str = "cpu") -> None:
        square = interpolate(torch.eye(logits)[None], side, mode="linear", align_corners=False)
        matrix = interpolate(square[..., :inside], size, mode="linear", align_corners=False)[0].T
        self.size, self.read = size, int(matrix.any(dim=0).nonzero().max()) + 1
        self._blocks = []
        for start in range(0, size, PIXELS_AT_ONCE):
            some = slice(start, start + PIXELS_AT_ONCE)
            near = matrix[some].any(dim=0).nonzero()
            span = slice(int(near.min()), int(near.max()) + 1)
            self._blocks.append((some, span, matrix[some, span].contiguous().to(device)))

    def columns(self, logits: Tensor) -> Tensor:
        """`s h w` → `s h size`."""
        found = logits.new_empty(*logits.shape[:2], self.size)
        for some, span, matrix in self._blocks:
            found[..., some] = logits[..., span] @ matrix.T
        return found

    def lines(self, logits: Tensor) -> Tensor:
        """`s h w` → `s size w`."""
        found = logits.new_empty(len(logits), self.size, logits.shape[2])
        for some, span, matrix in self._blocks:
            found[:, some] = matrix @ logits[:, span]
        return found
