"""From photo to pixels: kernel, antialiasing and rounding of each system, against sums over source pixels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image

from tests.benchmarks.heads.trained.plain_layers import cubic
from tests.fakes import random_image
from tfa_bench.heads.trained.checkpoints import get_architecture
from tfa_bench.heads.trained.models import Resizing, group_by_size
from tfa_bench.heads.trained.systems import SYSTEMS

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
PUBLISHED = {
    "salad": (322, "pil", "bilinear", True),
    "cliquemining": (322, "pil", "bilinear", True),
    "megaloc": (322, "float", "bilinear", True),
    "boq": (322, "float", "bicubic", True),
    "selavpr++-b": (322, "float", "bilinear", False),
    "selavpr++-l": (322, "float", "bilinear", False),
    "sample4geo": (384, "rounded", "bilinear", False),
    "cosplace": (0, "native", "bilinear", False),
    "eigenplaces": (0, "native", "bilinear", False),
}


def test_every_system_reads_photos_as_published():
    for name, system in SYSTEMS.items():
        own = get_architecture(system).resizing
        assert (own.size, own.kind, own.kernel, own.antialias) == PUBLISHED[name]


def triangle(t: float) -> float:
    return max(1 - abs(t), 0.0)


def taps(before: int, after: int, kernel: str, antialias: bool) -> np.ndarray:
    """`after before`: what each source pixel gives to each new one."""
    reach = 2 if kernel == "bicubic" else 1
    scale = before / after
    wide = max(scale, 1.0) if antialias else 1.0
    shape = triangle if kernel == "bilinear" else lambda t: cubic(t, -0.5 if antialias else -0.75)
    found = np.zeros((after, before))
    for i in range(after):
        centre = (i + 0.5) * scale - 0.5
        for j in range(math.floor(centre - reach * wide), math.ceil(centre + reach * wide) + 1):
            if antialias and not 0 <= j < before:
                continue  # antialiased kernels are cut at the border, others repeat it
            found[i, min(max(j, 0), before - 1)] += shape((j - centre) / wide)
        found[i] /= found[i].sum()
    return found


def plainly(image: Image.Image, size: int, kernel: str, antialias: bool) -> np.ndarray:
    levels = np.asarray(image, np.float64)
    down, right = (taps(side, size, kernel, antialias) for side in levels.shape[:2])
    return np.einsum("ri,cj,ijk->krc", down, right, levels)


def normalised(levels: np.ndarray) -> np.ndarray:
    return (levels / 255 - np.array(MEAN)[:, None, None]) / np.array(STD)[:, None, None]


@pytest.mark.parametrize("size", [(50, 31), (31, 50), (12, 12)])
@pytest.mark.parametrize(("kernel", "antialias"), [("bilinear", True), ("bilinear", False), ("bicubic", True)])
def test_floats_are_resized_by_the_kernel_and_neither_rounded_nor_clamped(size, kernel, antialias):
    image = random_image(1, size)
    found = Resizing(size=20, kernel=kernel, antialias=antialias).pixels(image)
    np.testing.assert_allclose(found.numpy(), normalised(plainly(image, 20, kernel, antialias)), atol=2e-4)


def test_cubic_overshoot_survives():
    edge = Image.fromarray(np.repeat(np.array([[0] * 20 + [255] * 20], np.uint8), 40, 0)).convert("RGB")
    found = Resizing(size=30, kernel="bicubic").pixels(edge) * torch.tensor(STD)[:, None, None]
    levels = found + torch.tensor(MEAN)[:, None, None]
    assert float(levels.min()) < -0.004
    assert float(levels.max()) > 1.004


def test_rounded_pixels_are_whole_levels_without_antialiasing():
    image = random_image(2, (50, 31))
    resizing = Resizing(size=20, kind="rounded", antialias=False)
    levels = np.asarray(resizing.prepare(image), np.float64).transpose(2, 0, 1)
    exact = plainly(image, 20, "bilinear", False)
    assert np.abs(levels - exact).max() <= 0.5 + 1e-3
    np.testing.assert_allclose(resizing.pixels(image).numpy(), normalised(levels), atol=1e-6)
    np.testing.assert_array_equal(resizing.pixels(resizing.prepare(image)), resizing.pixels(image))


def test_pillow_resizes_where_the_system_did():
    image = random_image(3, (50, 31))
    wanted = np.asarray(image.resize((20, 20), Image.Resampling.BILINEAR), np.float64).transpose(2, 0, 1)
    np.testing.assert_allclose(Resizing(size=20, kind="pil").pixels(image).numpy(), normalised(wanted), atol=1e-6)


def test_a_photo_at_its_own_size_keeps_it():
    found = Resizing(size=0, kind="native").pixels(random_image(4, (50, 31)))
    assert tuple(found.shape) == (3, 31, 50)


def test_pictures_of_one_size_are_one_batch():
    sizes = [(3, 2, 4), (3, 4, 2), (3, 2, 4)]
    assert group_by_size([torch.zeros(size) for size in sizes]) == [[0, 2], [1]]
