"""Procedural textures of the demo town: walls, roofs, asphalt, leaves."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

Color = tuple[int, int, int]
SCALE = 28  # texels a meter of a façade


def smooth_noise(
    rng: np.random.Generator, shape: tuple[int, int], cells: tuple[int, int], octaves: int = 3
) -> np.ndarray:
    """Return fractal noise in about [-1, 1] that repeats seamlessly in both directions."""
    total, weight = np.zeros(shape, np.float32), 1.0
    for octave in range(octaves):
        rows, columns = (min(c << octave, s) for c, s in zip(cells, shape, strict=True))
        grid = rng.standard_normal((rows, columns)).astype(np.float32)
        # Two wrapped rows and columns on each side make the bicubic blend join at the rim.
        padded = Image.fromarray(np.pad(grid, 2, mode="wrap"))
        scale = (shape[1] / columns, shape[0] / rows)
        box = (2, 2, columns + 2, rows + 2)
        total += weight * np.asarray(padded.resize((shape[1], shape[0]), Image.Resampling.BICUBIC, box=box))
        weight *= 0.5
        if min(scale) <= 1:
            break
    return total / max(float(np.abs(total).max()), 1e-6)


def tinted(color: Color, tone: np.ndarray) -> Image.Image:
    """Return an opaque image of one color whose brightness follows `tone` `(h, w)`, 1 being the color itself."""
    pixels = np.clip(np.array(color, np.float32) * tone[..., None], 0, 255).astype(np.uint8)
    return Image.fromarray(pixels).convert("RGBA")


def grain(rng: np.random.Generator, shape: tuple[int, int], amount: float) -> np.ndarray:
    return rng.standard_normal(shape, np.float32) * np.float32(amount)


def plaster(rng: np.random.Generator, size: tuple[int, int], color: Color) -> Image.Image:
    shape = (size[1], size[0])
    stains = smooth_noise(rng, shape, (3, 4)) * 0.07
    dirt = np.linspace(0.04, -0.10, shape[0], dtype=np.float32)[:, None]  # splashed street dirt low down
    return tinted(color, 1 + stains + dirt + grain(rng, shape, 0.02))


def blocks(rng: np.random.Generator, size: tuple[int, int], color: Color, block: tuple[int, int]) -> Image.Image:
    """Draw courses of bricks or stones with varying tones, every second course shifted by half."""
    width, height = block
    rows, columns = np.arange(size[1])[:, None], np.arange(size[0])[None, :]
    course = rows // height
    shifted = columns + (course % 2) * (width // 2)
    tones = 1 + rng.standard_normal((size[1] // height + 1, size[0] // width + 2)).astype(np.float32) * 0.09
    tone = tones[np.broadcast_to(course, shifted.shape), shifted // width]
    mortar = (rows % height == 0) | (shifted % width == 0)
    tone = np.where(mortar, 1.14, tone) + smooth_noise(rng, (size[1], size[0]), (3, 3)) * 0.06
    return tinted(color, tone)


def wall(rng: np.random.Generator, size: tuple[int, int], kind: str, color: Color) -> Image.Image:
    if kind == "brick":
        return blocks(rng, size, color, (9, 4))
    if kind == "stone":
        return blocks(rng, size, color, (26, 13))
    if kind == "panel":
        return blocks(rng, size, color, (84, 84))
    return plaster(rng, size, color)


def roof_tiles(rng: np.random.Generator, color: Color) -> Image.Image:
    """Draw four meters square of tiles."""
    rows, columns = np.mgrid[:96, :96]
    wave = 0.10 * np.sin(columns * (2 * np.pi / 6)) - 0.22 * (rows % 8 == 0)
    tone = 1 + wave + smooth_noise(rng, (96, 96), (4, 4)) * 0.16 + grain(rng, (96, 96), 0.03)
    return tinted(color, tone.astype(np.float32))


def asphalt(rng: np.random.Generator, color: Color, spots: float = 0.07) -> Image.Image:
    """Draw eight meters square of road with worn stains and a crack or two."""
    shape = (256, 256)
    tone = 1 + smooth_noise(rng, shape, (3, 3)) * 0.12 + grain(rng, shape, spots)
    image = tinted(color, tone)
    pen = ImageDraw.Draw(image)
    dark = (int(color[0] * 0.7), int(color[1] * 0.7), int(color[2] * 0.7), 255)
    for _ in range(3):
        steps = np.cumsum(rng.normal(0, 7, (9, 2)), 0) + rng.uniform(40, 216, 2)
        pen.line([(float(x), float(y)) for x, y in steps], fill=dark, width=1)
    return image


def paving(rng: np.random.Generator, color: Color) -> Image.Image:
    """Draw four meters square of slabs."""
    return blocks(rng, (128, 128), color, (16, 16))


def grass(rng: np.random.Generator, color: Color) -> Image.Image:
    shape = (256, 256)
    return tinted(color, 1 + smooth_noise(rng, shape, (5, 5), 5) * 0.35 + grain(rng, shape, 0.12))


def dashes(length: float, gap: float, color: Color = (226, 226, 216)) -> Image.Image:
    """Draw one painted dash and the gap after it, along the image's width; the gap is a hole."""
    image = Image.new("RGBA", (64, 4), (*color, 0))
    ImageDraw.Draw(image).rectangle((0, 0, int(64 * length / (length + gap)) - 1, 3), fill=(*color, 255))
    return image


def plain(color: Color) -> Image.Image:
    return Image.new("RGBA", (2, 2), (*color, 255))


def leaves(rng: np.random.Generator, shape: str, leaf: Color, bark: Color) -> Image.Image:
    """Draw a tree on a transparent ground: trunk, branches, and foliage as lumps of lit and shaded leaves."""
    width, height = 160, 240
    image = Image.new("RGBA", (width, height), (*leaf, 0))
    pen = ImageDraw.Draw(image)
    if shape != "bush":
        pen.polygon([(75, 240), (77, 120), (83, 120), (86, 240)], fill=(*bark, 255))
    if shape in ("round", "wide"):
        for side in (-1, 1):
            pen.line([(80, 165), (80 + side * 28, 105)], fill=(*bark, 255), width=4)
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    tone: np.ndarray = np.full((height, width), -1.0, np.float32)
    for x, y, radius in _lumps(rng, shape):
        distance = ((columns - x) ** 2 + (rows - y) ** 2) / radius**2
        # Each lump is brighter at its upper left, as if the sky lit it.
        light = 0.85 - 0.32 * ((columns - x) * 0.3 + (rows - y)) / radius
        tone = np.where(distance < 1, np.maximum(light, tone * 0.7), tone)
    rough = smooth_noise(rng, (height, width), (30, 20), 3)
    speckle = smooth_noise(rng, (height, width), (80, 53), 2)
    tone = np.where(rough > -0.36, tone, -1) * (1 + 0.4 * rough + 0.5 * speckle)
    pixels = np.array(image)
    crown = tone > 0
    pixels[crown, :3] = np.clip(np.array(leaf) * tone[crown, None], 0, 255)
    pixels[crown, 3] = 255
    return Image.fromarray(pixels)


def _lumps(rng: np.random.Generator, shape: str) -> list[tuple[float, float, float]]:
    if shape == "poplar":
        return [
            (80 + rng.normal(0, 6), y, 16 + 16 * np.sin(np.pi * y / 215) + rng.normal(0, 2)) for y in range(24, 190, 8)
        ]
    if shape == "bush":
        return [(rng.uniform(35, 125), rng.uniform(170, 225), rng.uniform(20, 34)) for _ in range(16)]
    spread = 26 if shape == "round" else 34
    return [
        (
            float(np.clip(rng.normal(80, spread), 34, 126)),
            float(np.clip(rng.normal(85, 30), 32, 150)),
            rng.uniform(18, 34),
        )
        for _ in range(26)
    ]
