"""TinyViT against itself written plainly, in loops and float64."""

from __future__ import annotations

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch

from tests.benchmarks.heads.sam import tiny
from tests.benchmarks.heads.trained.plain_layers import (
    Array,
    Weights,
    batch_norm,
    convolution,
    gelu,
    linear,
    norm,
    softmax,
)
from tests.benchmarks.heads.trained.tiny import arrays
from tfa_bench.heads.peers.mobile_sam import TinyViT, WindowAttention

EPS = 1e-5


def conv(x: Array, w: Weights, at: str, stride: int = 1) -> Array:
    kernel = w[f"{at}.c.weight"]
    return batch_norm(convolution(x, kernel, stride=stride, pad=kernel.shape[2] // 2), w, f"{at}.bn", EPS)


def active(x: Array) -> Array:
    return gelu(x.ravel()).reshape(x.shape)


def each_cell(x: Array, f) -> Array:
    """A function of one cell's channels, on all cells of `c h w`."""
    out = np.empty_like(x)
    for row in range(x.shape[1]):
        for column in range(x.shape[2]):
            out[:, row, column] = f(x[:, row, column])
    return out


def attended(x: Array, w: Weights, at: str, heads: int, side: int) -> Array:
    """Each cell looks at all cells of its window; cells outside of the map are zeros before the norm."""
    channels, height, width = x.shape
    each = channels // heads
    out = np.zeros_like(x)
    mixed = {}
    for row in range(-(-height // side) * side):
        for column in range(-(-width // side) * side):
            inside = row < height and column < width
            cell = x[:, row, column] if inside else np.zeros(channels)
            mixed[row, column] = linear(norm(cell, w, f"{at}.norm", EPS), w, f"{at}.qkv")
    for (row, column), own in mixed.items():
        if row >= height or column >= width:
            continue
        others = [cell for cell in mixed if (cell[0] // side, cell[1] // side) == (row // side, column // side)]
        found = np.zeros(channels)
        for head in range(heads):
            at_q, at_k, at_v = (slice((3 * head + part) * each, (3 * head + part + 1) * each) for part in range(3))
            scores = [
                own[at_q] @ mixed[cell][at_k] / math.sqrt(each)
                + w[f"{at}.attention_biases"][head, abs(row - cell[0]) * side + abs(column - cell[1])]
                for cell in others
            ]
            for share, cell in zip(softmax(np.array(scores)), others, strict=True):
                found[head * each : (head + 1) * each] += share * mixed[cell][at_v]
        out[:, row, column] = linear(found, w, f"{at}.proj")
    return out


def mlp(cell: Array, w: Weights, at: str) -> Array:
    return linear(gelu(linear(norm(cell, w, f"{at}.norm", EPS), w, f"{at}.fc1")), w, f"{at}.fc2")


def plain(x: Array, w: Weights) -> Array:
    sizes = tiny.SIZES
    x = conv(active(conv(x, w, "patch_embed.seq.0", 2)), w, "patch_embed.seq.2", 2)
    for stage, count in enumerate(sizes.blocks):
        for block in range(count):
            at = f"layers.{stage}.blocks.{block}"
            if stage == 0:
                inner = active(conv(active(conv(x, w, f"{at}.conv1")), w, f"{at}.conv2"))
                x = active(x + conv(inner, w, f"{at}.conv3"))
                continue
            x = x + attended(x, w, f"{at}.attn", sizes.heads[stage], sizes.windows[stage])
            x = conv(x, w, f"{at}.local_conv")
            x = x + each_cell(x, partial(mlp, w=w, at=f"{at}.mlp"))
        if stage < 3:
            at, stride = f"layers.{stage}.downsample", 1 if stage == 2 else 2
            inner = active(conv(active(conv(x, w, f"{at}.conv1")), w, f"{at}.conv2", stride))
            x = conv(inner, w, f"{at}.conv3")
    x = convolution(x, w["neck.0.weight"])
    x = each_cell(x, lambda c: norm(c, w, "neck.1", 1e-6))
    x = convolution(x, w["neck.2.weight"], pad=1)
    return each_cell(x, lambda c: norm(c, w, "neck.3", 1e-6))


@pytest.fixture(scope="module")
def named() -> dict[str, torch.Tensor]:
    found = tiny.weights()
    return {name.removeprefix("image_encoder."): found[name] for name in found if name.startswith("image_encoder.")}


@pytest.fixture(scope="module")
def model(named) -> TinyViT:
    model = TinyViT(tiny.SIZES)
    model.load_state_dict(named)
    return model.eval().requires_grad_(False)


def test_it_agrees_with_the_plain_writing(model, named):
    pixels = np.random.default_rng(1).standard_normal((3, tiny.SIDE, tiny.SIDE))
    wanted = plain(pixels, arrays(named))
    (found,) = copy.deepcopy(model).double()(torch.from_numpy(pixels)[None])
    assert found.shape == (1, 16, 4, 4)
    assert np.abs(found[0].numpy() - wanted).max() < 1e-9
    assert np.abs(wanted).max() > 0.5  # weights that kill the signal would agree with anything


def test_images_of_a_batch_do_not_mix(model):
    pixels = torch.randn(2, 3, tiny.SIDE, tiny.SIDE, generator=torch.Generator().manual_seed(0))
    together = model(pixels)[0]
    assert torch.allclose(together[1:], model(pixels[1:])[0], atol=1e-5)
    assert not torch.allclose(together[:1], together[1:], atol=1e-2)


def test_biases_are_indexed_by_row_then_column():
    places = WindowAttention(2, 1, 3).places
    assert places[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert places[4].tolist() == [4, 3, 4, 1, 0, 1, 4, 3, 4]
