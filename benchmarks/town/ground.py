"""The town's ground: lawn, pavements, kerbs and carriageways as flat layers, and road markings.

Layers are a centimeter apart, so the carriageways of two streets join at a corner by covering both pavements.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from PIL import Image, ImageDraw

from town.render import Quad, Texture
from town.route import Street
from town.textures import Color, asphalt, dashes, grass, paving, plain

LAWN, FOOTWAY, KERB, ROAD, PAINT = -0.03, 0.0, 0.01, 0.02, 0.035  # heights of the layers, meters


def ground_quads(streets: list[Street], seed: int, lawn: Color) -> list[Quad]:
    rng = np.random.default_rng([seed, 10])
    turf = Texture(partial(grass, np.random.default_rng([seed, 11]), lawn))
    slabs = [Texture(partial(paving, np.random.default_rng([seed, 12, i]), c)) for i, c in enumerate(_SLABS)]
    roads = [Texture(partial(asphalt, np.random.default_rng([seed, 13, i]), c)) for i, c in enumerate(_ROADS)]
    stone = Texture(partial(plain, (172, 168, 160)))
    quads = [_flat(np.array([-300.0, -300.0]), np.array([800.0, 0]), np.array([0, 800.0]), LAWN, turf, 8)]
    for number, street in enumerate(streets):
        outer = street.half + street.pavement
        lift = 0.0004 * number  # two carriageways at the same height would flicker where they cross
        quads.append(_strip(street, outer, outer, FOOTWAY + lift, slabs[rng.integers(len(slabs))], 4))
        quads.append(_strip(street, street.half + 0.18, street.half + 0.18, KERB + lift, stone, 4))
        quads.append(_strip(street, street.half, street.half, ROAD + lift, roads[rng.integers(len(roads))], 8))
        quads += _paint(street, rng)
    return quads


_SLABS: tuple[Color, ...] = ((158, 152, 144), (146, 138, 132), (166, 150, 138))
_ROADS: tuple[Color, ...] = ((86, 86, 88), (98, 95, 92), (74, 76, 80))


def _flat(corner: np.ndarray, u: np.ndarray, down: np.ndarray, height: float, texture: Texture, tile: float) -> Quad:
    """Return a ground rectangle from its corner nearest to the viewer; one texture copy is `tile` meters."""
    top = corner + down
    repeat = (float(np.linalg.norm(u)) / tile, float(np.linalg.norm(down)) / tile)
    return Quad((top[0], top[1], height), (u[0], u[1], 0.0), (-down[0], -down[1], 0.0), texture, repeat)


def _strip(street: Street, half: float, beyond: float, height: float, texture: Texture, tile: float) -> Quad:
    """Return a band along the street's center line, reaching `beyond` meters past both corners."""
    corner = street.at(-beyond, -half)
    return _flat(corner, street.along * (street.length + 2 * beyond), street.left * (2 * half), height, texture, tile)


def _patch(
    street: Street, at: float, lateral: float, size: tuple[float, float], texture: Texture, height: float = PAINT
) -> Quad:
    """Return one copy of an image on the street, its width along the street."""
    along, across = size
    corner = street.at(at - along / 2, lateral - across / 2)
    quad = _flat(corner, street.along * along, street.left * across, height, texture, 1)
    return Quad(quad.origin, quad.u, quad.v, texture)


def _paint(street: Street, rng: np.random.Generator) -> list[Quad]:
    """Return center lines, parking bays, a zebra crossing, manholes and repaired asphalt."""
    clear = street.half + 7.0  # paint stops short of the corners
    run = street.length - 2 * clear
    long, gap = [(3.0, 3.0), (1.5, 4.5), (6.0, 0.0)][rng.integers(3)]
    line = Texture(partial(dashes, long, gap))
    center = _flat(street.at(clear, -0.07), street.along * run, street.left * 0.14, PAINT, line, 1)
    quads = [Quad(center.origin, center.u, center.v, line, (run / (long + gap), 1.0))]
    bays = Texture(partial(dashes, 0.12, 5.4))
    for side in (-1, 1):
        bay = _flat(
            street.at(clear, side * (street.half - 1.1) - 1.0), street.along * run, street.left * 2.0, PAINT, bays, 1
        )
        quads.append(Quad(bay.origin, bay.u, bay.v, bays, (run / 5.52, 1.0)))
    zebra, cover = Texture(_zebra), Texture(_manhole)
    for at in rng.uniform(clear, street.length - clear, int(rng.integers(1, 3))):
        quads.append(_patch(street, float(at), 0.0, (3.6, 2 * street.half), zebra, PAINT + 0.01))
    for at in rng.uniform(clear, street.length - clear, int(street.length / 14)):
        quads.append(_patch(street, float(at), float(rng.uniform(-3, 3)), (0.8, 0.8), cover))
    for at in rng.uniform(clear, street.length - clear, int(street.length / 12)):
        tone = int(rng.integers(52, 82))
        size = (float(rng.uniform(1, 7)), float(rng.uniform(0.8, 2.6)))
        dark = Texture(partial(plain, (tone, tone, tone + 2)))
        quads.append(_patch(street, float(at), float(rng.uniform(-3, 3)), size, dark, PAINT - 0.008))
    return quads


def _zebra() -> Image.Image:
    image = Image.new("RGBA", (36, 100), (226, 226, 216, 0))
    pen = ImageDraw.Draw(image)
    for top in range(4, 100, 12):
        pen.rectangle((0, top, 35, top + 5), fill=(226, 226, 216, 255))
    return image


def _manhole() -> Image.Image:
    image = Image.new("RGBA", (24, 24), (60, 58, 56, 0))
    pen = ImageDraw.Draw(image)
    pen.ellipse((0, 0, 23, 23), fill=(60, 58, 56, 255))
    for x in range(4, 22, 4):
        pen.line([(x, 6), (x, 18)], fill=(92, 88, 84, 255), width=1)
    return image
