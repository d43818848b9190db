"""Photos of another place (fields, hills, fences and woods): queries that a map does not contain."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from tfa.core.files import write_atomically
from tfa.errors import BadSpec
from town.props import Tree, tree_quads
from town.render import Camera, Quad, Scene, Texture, draw_scene
from town.textures import Color, asphalt, grass, plain
from town.weather import CLEAR_DAY, WET_DUSK, Weather, develop, fill_sky, light_table, paint_sky, save_options

CROPS: tuple[Color, ...] = ((178, 156, 84), (112, 138, 62), (136, 104, 70), (150, 164, 78), (92, 118, 56))
OVERSAMPLE = 2


def outside_photos(folder: Path, count: int = 8, size: tuple[int, int] = (480, 360), seed: int = 0) -> list[Path]:
    """Write `count` country photos, `outside_000.jpg` and on, each of another landscape; return their paths."""
    if count < 1 or min(size) < 32:
        raise BadSpec(
            f"{count} photos of {size[0]}×{size[1]} pixels cannot be drawn; at least 1 of 32 pixels a side is needed"
        )
    paths = []
    for number in range(count):
        # Alternate clear and dull days: the light must not distinguish country from town.
        weather = CLEAR_DAY if number % 2 == 0 else replace(WET_DUSK, wet=0.0)
        path = folder / f"outside_{number:03d}.jpg"
        photo = draw_landscape(size, weather, [seed, 50, number])
        write_atomically(path, partial(photo.save, **save_options(weather)))
        paths.append(path)
    return paths


def draw_landscape(size: tuple[int, int], weather: Weather, seed: list[int]) -> Image.Image:
    rng = np.random.default_rng(seed)
    scene = Scene(_fields(rng, weather) + _fences(rng) + _woods(rng, weather, seed) + _bales(rng))
    camera = Camera(0.0, 0.0, 1.7, float(rng.uniform(-0.25, 0.25)))
    fine = (size[0] * OVERSAMPLE, size[1] * OVERSAMPLE)
    frame = draw_scene(scene, camera, fine, light_table(scene, camera, weather), np.zeros(3, np.float32), reach=420.0)
    relief = float(rng.uniform(0.06, 0.16))
    fill_sky(frame, camera, paint_sky(weather, rng, np.random.default_rng([*seed, 1]), relief))
    return develop(frame, camera, weather, None, OVERSAMPLE, rng)


def _fields(rng: np.random.Generator, weather: Weather) -> list[Quad]:
    """Return a lawn to the horizon, fields of several crops on it, and sometimes a track."""
    turf = Texture(partial(grass, np.random.default_rng(rng.integers(2**32)), weather.lawn))
    quads = [Quad((-100.0, 500.0, 0.0), (900.0, 0.0, 0.0), (0.0, -1000.0, 0.0), turf, (90.0, 100.0))]
    for number in range(int(rng.integers(3, 7))):
        crop = Texture(partial(grass, np.random.default_rng(rng.integers(2**32)), CROPS[rng.integers(len(CROPS))]))
        x, y = float(rng.uniform(12, 120)), float(rng.uniform(-90, 60))
        wide, deep, slant = float(rng.uniform(25, 90)), float(rng.uniform(20, 70)), float(rng.uniform(-20, 20))
        repeat = (wide / 8, deep / 8)
        quads.append(Quad((x, y + deep, 0.01 + 0.01 * number), (wide, slant, 0.0), (slant, -deep, 0.0), crop, repeat))
    if rng.random() < 0.6:
        dirt = Texture(partial(asphalt, np.random.default_rng(rng.integers(2**32)), (158, 136, 104)))
        y, slant = float(rng.uniform(-3, 3)), float(rng.uniform(-40, 40))
        quads.append(Quad((-5.0, y + 1.3, 0.1), (250.0, slant, 0.0), (0.0, -2.6, 0.0), dirt, (31.0, 0.4)))
    return quads


def _fences(rng: np.random.Generator) -> list[Quad]:
    wood = Texture(_fence)
    quads = []
    for _ in range(int(rng.integers(1, 4))):
        x, y = float(rng.uniform(2, 20)), float(rng.uniform(3, 14)) * float(rng.choice([-1, 1]))
        run = np.array([float(rng.uniform(30, 90)), float(rng.uniform(-25, 25))])
        quads.append(Quad((x, y, 1.2), (*run, 0.0), (0.0, 0.0, -1.2), wood, (float(np.hypot(*run)) / 2.4, 1.0)))
    return quads


def _fence() -> Image.Image:
    """Draw one post and the two rails to the next."""
    brown: Color = (116, 94, 70)
    image = Image.new("RGBA", (72, 36), (*brown, 0))
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 0, 4, 35), fill=(*brown, 255))
    for top in (6, 19):
        pen.rectangle((0, top, 71, top + 4), fill=(134, 110, 84, 255))
    return image


def _woods(rng: np.random.Generator, weather: Weather, seed: list[int]) -> list[Quad]:
    """Return the edge of a distant wood, a nearer copse, and single trees."""
    trees = []
    edge = float(rng.uniform(60, 140))
    side = float(rng.choice([-1, 1]))
    for _ in range(140):
        y = float(rng.uniform(-20, 130)) * side
        trees.append((edge + abs(y) * 0.2 + float(rng.uniform(0, 16)), y, float(rng.uniform(9, 15))))
    copse = (float(rng.uniform(25, 60)), float(rng.uniform(-35, 35)))
    for _ in range(int(rng.integers(4, 18))):
        trees.append(
            (copse[0] + float(rng.normal(0, 6)), copse[1] + float(rng.normal(0, 7)), float(rng.uniform(5, 10)))
        )
    for _ in range(int(rng.integers(1, 5))):
        trees.append((float(rng.uniform(10, 70)), float(rng.uniform(-30, 30)), float(rng.uniform(5, 9))))
    shapes = ("round", "wide", "poplar", "bush")
    planted = [Tree(x, y, h, shapes[rng.integers(4)], int(rng.integers(2))) for x, y, h in trees]
    return tree_quads(planted, seed[0] + 7919 * (1 + seed[-1]), weather.leaves)


def _bales(rng: np.random.Generator) -> list[Quad]:
    """Return a few hay bales: boxes of straw."""
    straw = [Texture(partial(plain, c)) for c in ((196, 168, 96), (176, 148, 82))]
    quads = []
    for _ in range(int(rng.integers(0, 6))):
        x, y = float(rng.uniform(10, 60)), float(rng.uniform(-25, 25))
        quads.append(Quad((x, y + 1.2, 1.2), (0.0, -2.4, 0.0), (0.0, 0.0, -1.2), straw[0]))
        for edge in (-1.2, 1.2):
            quads.append(Quad((x, y + edge, 1.2), (1.3, 0.0, 0.0), (0.0, 0.0, -1.2), straw[1]))
        quads.append(Quad((x + 1.3, y + 1.2, 1.2), (0.0, -2.4, 0.0), (-1.3, 0.0, 0.0), straw[0]))
    return quads
