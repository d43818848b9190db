"""Objects in the streets: trees, lamps, hedges, signs and parked cars."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from PIL import Image, ImageDraw

from town.render import Quad, Texture
from town.route import Street
from town.textures import Color, leaves, plain, smooth_noise, tinted

PAINTS: tuple[Color, ...] = (
    (186, 188, 190), (48, 50, 54), (150, 34, 32), (38, 62, 112), (222, 222, 218),
    (92, 98, 104), (62, 88, 74), (196, 166, 92),
)  # fmt: skip
# Outline of a car seen from its left side, nose first: meters from the nose and above the ground.
OUTLINES = {
    "saloon": ((0.05, 0.3), (0.0, 0.65), (0.25, 0.8), (1.25, 0.95), (1.95, 1.42),
               (3.2, 1.44), (3.75, 1.0), (4.3, 0.95), (4.4, 0.3)),
    "hatch": ((0.05, 0.3), (0.0, 0.7), (0.2, 0.82), (1.0, 0.98), (1.65, 1.5), (3.1, 1.52), (3.7, 1.0), (3.85, 0.3)),
    "van": ((0.05, 0.35), (0.0, 0.85), (0.2, 1.05), (0.6, 1.2), (1.1, 1.95), (1.4, 2.05), (4.6, 2.05), (4.75, 0.35)),
}  # fmt: skip


@dataclass(frozen=True)
class Tree:
    """A tree with a fixed position; its image follows the season."""

    x: float
    y: float
    height: float
    shape: str
    look: int


def plan_trees(streets: list[Street], seed: int) -> list[Tree]:
    """Plan rows in the pavements of leafy streets, and a grove in the park."""
    rng = np.random.default_rng([seed, 20])
    trees: list[Tree] = []
    spacing = {"terraces": 26.0, "shops": 34.0, "blocks": 15.0, "old": 60.0, "park": 10.0, "villas": 13.0}
    for street in streets:
        for side in (-1, 1):
            shape = ("round", "wide", "poplar")[rng.integers(3)]
            at = street.half + float(rng.uniform(6, 12))
            while at < street.length - street.half - 5:
                point = street.at(at, side * (street.half + 0.7))
                trees.append(Tree(point[0], point[1], float(rng.uniform(5.5, 9.0)), shape, int(rng.integers(4))))
                at += spacing[street.kind] * float(rng.uniform(0.7, 1.4))
        if street.kind == "park":
            for _ in range(40):
                point = street.at(float(rng.uniform(5, street.length - 8)), float(rng.uniform(11, 42)))
                shape = ("round", "wide", "poplar", "bush")[rng.integers(4)]
                trees.append(Tree(point[0], point[1], float(rng.uniform(5, 11)), shape, int(rng.integers(4))))
    return trees


def tree_quads(trees: list[Tree], seed: int, tints: tuple[Color, ...]) -> list[Quad]:
    """Return billboards; `tints` are the season's leaf colors."""
    looks: dict[tuple[str, int], Texture] = {}
    quads = []
    for tree in trees:
        key = (tree.shape, tree.look)
        if key not in looks:
            rng = np.random.default_rng([seed, 21, *tree.shape.encode(), tree.look])
            looks[key] = Texture(partial(leaves, rng, tree.shape, tints[tree.look % len(tints)], (84, 68, 54)))
        width = tree.height * 160 / 240
        origin = (tree.x, tree.y, tree.height)
        quads.append(Quad(origin, (width, 0.0, 0.0), (0.0, 0.0, -tree.height), looks[key], billboard=True))
    return quads


def furniture_quads(streets: list[Street], seed: int) -> list[Quad]:
    """Return lamps, bins, traffic signs and the park's hedge."""
    rng = np.random.default_rng([seed, 22])
    lamp, bin_, hedge = Texture(_lamp), Texture(_bin), Texture(partial(_hedge, [seed, 23]))
    quads = []
    for street in streets:
        for at in np.arange(street.half + 6, street.length - street.half - 3, 23.0):
            side = 1 if rng.random() < 0.5 else -1
            quads.append(
                _standing(street.at(float(at + rng.uniform(-3, 3)), side * (street.half + 0.5)), 0.9, 5.6, lamp)
            )
        for at in rng.uniform(8, street.length - 8, int(street.length / 18)):
            side = 1 if rng.random() < 0.5 else -1
            point = street.at(float(at), side * (street.half + 0.45))
            sign = Texture(partial(_sign, int(rng.integers(4))))
            quads.append(_standing(point, 0.6, 2.5, sign) if rng.random() < 0.6 else _standing(point, 0.5, 1.0, bin_))
        if street.kind == "park":
            lateral, margin = street.half + street.pavement + 0.4, street.half + 6
            start, run = street.at(street.length - margin, lateral), -street.along * (street.length - 2 * margin)
            quads.append(Quad((*start, 1.15), (*run, 0.0), (0.0, 0.0, -1.15), hedge, (street.length / 4, 1.0)))
            top = start + street.left * 0.8
            quads.append(Quad((*top, 1.15), (*run, 0.0), (*(-street.left * 0.8), 0.0), hedge, (street.length / 4, 1.0)))
    return quads


def _standing(point: np.ndarray, width: float, height: float, texture: Texture) -> Quad:
    return Quad((*point, height), (width, 0.0, 0.0), (0.0, 0.0, -height), texture, billboard=True)


def _lamp() -> Image.Image:
    image = Image.new("RGBA", (36, 224), (54, 60, 58, 0))
    pen = ImageDraw.Draw(image)
    pen.rectangle((16, 26, 19, 223), fill=(54, 60, 58, 255))
    pen.rectangle((13, 200, 22, 223), fill=(48, 54, 52, 255))
    pen.polygon([(8, 22), (27, 22), (31, 4), (4, 4)], fill=(236, 224, 180, 255))
    pen.polygon([(2, 4), (33, 4), (18, 0)], fill=(48, 54, 52, 255))
    return image


def _bin() -> Image.Image:
    image = Image.new("RGBA", (16, 32), (46, 72, 58, 255))
    ImageDraw.Draw(image).rectangle((0, 4, 15, 7), fill=(30, 44, 38, 255))
    return image


def _sign(kind: int) -> Image.Image:
    image = Image.new("RGBA", (30, 125), (130, 132, 134, 0))
    pen = ImageDraw.Draw(image)
    pen.rectangle((14, 20, 16, 124), fill=(130, 132, 134, 255))
    if kind == 0:
        pen.ellipse((1, 1, 28, 28), fill=(196, 40, 40, 255))
        pen.ellipse((6, 6, 23, 23), fill=(236, 234, 230, 255))
    elif kind == 1:
        pen.rectangle((2, 2, 27, 27), fill=(36, 84, 160, 255))
        pen.rectangle((9, 6, 12, 23), fill=(236, 236, 236, 255))
        pen.ellipse((9, 6, 20, 16), outline=(236, 236, 236, 255), width=3)
    elif kind == 2:
        pen.polygon([(1, 2), (28, 2), (15, 27)], fill=(236, 234, 230, 255), outline=(196, 40, 40, 255), width=3)
    else:
        pen.rectangle((0, 6, 29, 20), fill=(232, 196, 60, 255))
    return image


def _hedge(seed: list[int]) -> Image.Image:
    rng = np.random.default_rng(seed)
    return tinted((58, 84, 44), 1 + 0.5 * smooth_noise(rng, (32, 112), (8, 28)))


def parked_cars(streets: list[Street], rng: np.random.Generator, occupied: float) -> list[Quad]:
    """Return cars in a share of the parking bays of both kerbs."""
    quads: list[Quad] = []
    sides: dict[tuple[str, int], Texture] = {}
    for street in streets:
        for side in (-1, 1):
            for at in np.arange(street.half + 8, street.length - street.half - 10, 5.52):
                if rng.random() > occupied:
                    continue
                kind = str(rng.choice(list(OUTLINES), p=[0.45, 0.42, 0.13]))
                paint = int(rng.integers(len(PAINTS)))
                picture = sides.setdefault((kind, paint), Texture(partial(_car_side, kind, PAINTS[paint])))
                # Cars point in the direction of traffic, which keeps to the right.
                ahead = -street.along * side
                nose = street.at(
                    float(at + rng.uniform(0.2, 0.9)), side * (street.half - 1.05 + float(rng.uniform(-0.15, 0.15)))
                )
                nose = nose + ahead * (OUTLINES[kind][-1][0] if side < 0 else 0)
                quads += _car(nose, ahead, kind, PAINTS[paint], picture)
    return quads


def _car(nose: np.ndarray, ahead: np.ndarray, kind: str, paint: Color, picture: Texture) -> list[Quad]:
    """Return both flanks with the outline, and one strip of bodywork or glass for each of its edges."""
    outline = OUTLINES[kind]
    length, height = outline[-1][0], max(z for _, z in outline)
    left = np.array([-ahead[1], ahead[0]]) * 0.86
    body, glass, shadow = (Texture(partial(plain, c)) for c in (paint, (44, 52, 60), (26, 26, 28)))
    tail = nose - ahead * length
    quads = [
        Quad((*(nose + side), height), (*(tail - nose), 0.0), (0.0, 0.0, -height), picture) for side in (left, -left)
    ]  # fmt: skip
    for (x0, z0), (x1, z1) in pairwise(outline):
        start, step = nose - ahead * x0 - left, -ahead * (x1 - x0)
        sloped = z0 > 0.8 and z1 > 0.8 and abs(z1 - z0) > 0.35  # windscreen and rear window
        quads.append(Quad((*start, z0), (*(2 * left), 0.0), (*step, z1 - z0), glass if sloped else body))
    under = nose - ahead * (length + 0.1) - left * 1.1
    quads.append(Quad((*under, 0.05), (*(ahead * (length + 0.2)), 0.0), (*(2.2 * left), 0.0), shadow))
    return quads


def _car_side(kind: str, paint: Color) -> Image.Image:
    outline = OUTLINES[kind]
    length, height = outline[-1][0], max(z for _, z in outline)
    scale = 32
    image = Image.new("RGBA", (round(length * scale), round(height * scale)), (*paint, 0))
    pen = ImageDraw.Draw(image)
    pen.polygon([(x * scale, (height - z) * scale) for x, z in outline], fill=(*paint, 255))
    top = [(x, z) for x, z in outline if z > 0.9]
    center = (sum(x for x, _ in top) / len(top), sum(z for _, z in top) / len(top))
    glass = [(center[0] + (x - center[0]) * 0.84, center[1] + (z - center[1]) * 0.72 + 0.02) for x, z in top]
    if kind != "van":
        pen.polygon([(x * scale, (height - z) * scale) for x, z in glass], fill=(44, 52, 60, 255))
        middle = round(center[0] * scale)
        pen.rectangle((middle - 1, 0, middle + 2, image.height * 0.7), fill=(*paint, 255))
    else:
        pen.polygon(
            [(x * scale, (height - z) * scale) for x, z in ((0.75, 1.2), (1.15, 1.85), (1.7, 1.85), (1.7, 1.2))],
            fill=(44, 52, 60, 255),
        )
    pen.line(
        [(0.2 * scale, (height - 0.5) * scale), (length * scale, (height - 0.5) * scale)],
        fill=(30, 30, 32, 255),
        width=1,
    )
    for x in (0.85, length - 0.85):
        for radius, color in ((0.33, (22, 22, 24)), (0.19, (150, 152, 154))):
            box = [
                (x - radius) * scale,
                (height - 0.33 - radius) * scale,
                (x + radius) * scale,
                (height - 0.33 + radius) * scale,
            ]
            pen.ellipse(box, fill=(*color, 255))
    return image
