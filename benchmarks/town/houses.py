"""Houses of the demo town: their positions and quads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from PIL import Image, ImageDraw

from town.facades import STYLES, draw_facade, height_of, shaded
from town.render import Quad, Texture
from town.route import Street, on_street
from town.textures import Color, plain, roof_tiles, wall

# Styles by kind of street: every style appears in more than one place.
LINED_BY = {
    "terraces": ("terrace", "terrace", "terrace", "cottage", "corner"),
    "shops": ("shop", "corner", "palazzo", "timber", "shop"),
    "blocks": ("block", "modern", "block", "terrace"),
    "old": ("timber", "palazzo", "cottage", "corner"),
    "park": ("palazzo", "modern", "terrace"),
    "villas": ("cottage", "cottage", "timber", "modern"),
}
ROOFS: tuple[Color, ...] = ((142, 74, 54), (112, 62, 50), (84, 86, 92), (104, 96, 88))


@dataclass(frozen=True)
class House:
    """A box: `corner` is the front's left end as seen from the street, `along` runs right, `back` runs inward."""

    number: int
    style: str
    corner: np.ndarray
    along: np.ndarray
    back: np.ndarray
    width: float
    depth: float
    storeys: int

    @property
    def eaves(self) -> float:
        return height_of(STYLES[self.style], self.storeys)

    @property
    def ridge(self) -> float:
        """Height of the roof's top."""
        return self.eaves + (self.depth * 0.42 if STYLES[self.style].roof == "gable" else 0.0)

    def footprint(self) -> np.ndarray:
        c, a, b = self.corner, self.along * self.width, self.back * self.depth
        return np.array([c, c + a, c + a + b, c + b])

    @cached_property
    def samples(self) -> np.ndarray:
        """Return a grid of points over the footprint, for clearance tests."""
        a, b = np.meshgrid(np.linspace(0, self.width, 6), np.linspace(0, self.depth, 5))
        return self.corner + a.reshape(-1, 1) * self.along + b.reshape(-1, 1) * self.back

    def holds(self, points: np.ndarray, margin: float) -> bool:
        """True if any point is in the footprint grown by `margin`."""
        a, b = (points - self.corner) @ self.along, (points - self.corner) @ self.back
        inside = (a > -margin) & (a < self.width + margin) & (b > -margin) & (b < self.depth + margin)
        return bool(inside.any())


def plan_houses(streets: list[Street], seed: int) -> list[House]:
    """Plan rows along both sides of every street and a second row behind, without overlaps."""
    rng = np.random.default_rng([seed, 2])
    houses: list[House] = []
    for setback, spacing in ((0.0, 0.0), (19.0, 5.0)):
        for street in streets:
            for side in (1, -1):
                if street.kind == "park" and side == 1 and setback == 0:
                    continue
                houses.extend(_row(street, side, setback, spacing, streets, houses, rng))
    return houses


def _row(
    street: Street, side: int, setback: float, spacing: float, streets: list[Street], others: list[House],
    rng: np.random.Generator,
) -> list[House]:  # fmt: skip
    placed: list[House] = []
    at = -14.0
    while at < street.length + 14:
        width, depth = float(rng.uniform(6.5, 13.0)), float(rng.uniform(8, 11))
        garden = 3.0 if street.kind == "villas" else float(rng.choice([0.0, 0.0, 0.5]))
        lateral = street.half + street.pavement + garden + setback
        # Facing the houses on the left of a street, the street runs to the right; facing the others, to the left.
        corner = street.at(at + (width if side == -1 else 0), side * lateral)
        styles = LINED_BY[street.kind]
        style = styles[rng.integers(len(styles))]
        low, high = STYLES[style].storeys
        number = len(others) + len(placed)
        house = House(
            number,
            style,
            corner,
            side * street.along,
            side * street.left,
            width,
            depth,
            int(rng.integers(low, high + 1)),
        )
        if _fits(house, streets, others + placed):
            placed.append(house)
            gap = spacing or float(rng.choice([0.02, 0.02, 0.02, 1.6, 4.5], p=[0.3, 0.3, 0.18, 0.12, 0.1]))
            at += width + gap + (4.0 if street.kind == "villas" else 0.0)
        else:
            at += 1.5
    return placed


def _fits(house: House, streets: list[Street], others: list[House]) -> bool:
    points = house.samples
    if on_street(points, streets):
        return False
    x, y = house.corner
    near = [o for o in others if abs(o.corner[0] - x) < 30 and abs(o.corner[1] - y) < 30]
    return not any(o.holds(points, -0.01) or house.holds(o.samples, -0.01) for o in near)


def house_quads(house: House, seed: int) -> list[Quad]:
    """Return front, back, gable ends, roof, chimney and, over a shop, an awning."""
    style = STYLES[house.style]
    rng = np.random.default_rng([seed, 3, house.number])
    corners = house.footprint()
    front = Texture(partial(draw_facade, style, house.width, house.storeys, [seed, 4, house.number]))
    tint = shaded(style.colors[rng.integers(len(style.colors))], 0.92)
    end = Texture(partial(_gable_end, house, tint, [seed, 5, house.number]))
    plain_wall = Texture(partial(_blank_wall, house, tint, [seed, 6, house.number]))
    quads = [
        _upright(corners[0], corners[1], house.eaves, front),
        _upright(corners[1], corners[2], house.ridge, end),
        _upright(corners[2], corners[3], house.eaves, plain_wall),
        _upright(corners[3], corners[0], house.ridge, end),
    ]
    roof: Color = ROOFS[rng.integers(len(ROOFS))]
    if style.roof == "gable":
        quads += _gable_roof(house, Texture(partial(roof_tiles, np.random.default_rng([seed, 7, house.number]), roof)))
    quads += _chimney(house, float(rng.uniform(0.1, 0.8)), Texture(partial(plain, (118, 74, 60))))
    if style.ground == "shop" and rng.random() < 0.6:
        quads.append(_awning(house, Texture(partial(_stripes, int(rng.integers(4))))))
    return quads


def _upright(left: np.ndarray, right: np.ndarray, height: float, texture: Texture) -> Quad:
    """Return a wall from `left` to `right` as seen from outside."""
    u = right - left
    return Quad((left[0], left[1], height), (u[0], u[1], 0.0), (0.0, 0.0, -height), texture, one_sided=True)


def _gable_end(house: House, tint: Color, seed: list[int]) -> Image.Image:
    """Draw the side wall, with holes above the slopes of the roof and a small window."""
    rng = np.random.default_rng(seed)
    width, height = round(house.depth * 16), round(house.ridge * 16)
    image = wall(rng, (width, height), STYLES[house.style].wall, tint)
    pen = ImageDraw.Draw(image)
    rise = round((house.ridge - house.eaves) * 16)
    for x0 in (0, width):
        pen.polygon([(x0, 0), (width / 2, 0), (x0, rise)], fill=(*tint, 0))
    for floor in range(1, house.storeys):
        if rng.random() < 0.6:
            x, z = int(width * rng.uniform(0.25, 0.65)), height - round((3.2 + 3 * (floor - 1) + 0.9) * 16)
            pen.rectangle((x - 2, z - 24, x + 16, z + 2), fill=(226, 224, 216, 255))
            pen.rectangle((x, z - 22, x + 14, z), fill=(56, 66, 78, 255))
    return image


def _blank_wall(house: House, tint: Color, seed: list[int]) -> Image.Image:
    size = (round(house.width * 8), round(house.eaves * 8))
    return wall(np.random.default_rng(seed), size, STYLES[house.style].wall, tint)


def _gable_roof(house: House, tiles: Texture) -> list[Quad]:
    """Return two slopes from a little outside the eaves up to the ridge."""
    quads = []
    rise, half = house.ridge - house.eaves, house.depth / 2
    over = 0.35  # the eaves project along the slope
    for left, right, inward in ((0, 1, house.back), (2, 3, -house.back)):
        corners = house.footprint()
        u = corners[right] - corners[left]
        top = corners[left] + inward * half
        down = -inward * (half + over)
        v = (down[0], down[1], -rise * (half + over) / half)
        repeat = (house.width / 4, float(np.hypot(half, rise)) / 4)
        quads.append(Quad((top[0], top[1], house.ridge), (u[0], u[1], 0.0), v, tiles, repeat))
    return quads


def _chimney(house: House, share: float, brick: Texture) -> list[Quad]:
    at = house.corner + house.along * house.width * share + house.back * house.depth * 0.5
    a, b = house.along * 0.9, house.back * 0.6
    ring = [at, at + a, at + a + b, at + b]
    top = house.ridge + 1.1
    return [
        Quad((p[0], p[1], top), (*(q - p), 0.0), (0.0, 0.0, -2.0), brick, one_sided=True)
        for p, q in zip(ring, ring[1:] + ring[:1], strict=True)
    ]


def _awning(house: House, cloth: Texture) -> Quad:
    left = house.corner + house.along * 0.4
    u, out = house.along * (house.width - 0.8), -house.back * 1.3
    return Quad((left[0], left[1], 2.85), (u[0], u[1], 0.0), (out[0], out[1], -0.55), cloth, (house.width / 2, 1.0))


def _stripes(choice: int) -> Image.Image:
    color: Color = ((176, 52, 44), (46, 96, 74), (52, 80, 130), (196, 150, 60))[choice]
    image = Image.new("RGBA", (32, 8), (236, 230, 216, 255))
    ImageDraw.Draw(image).rectangle((0, 0, 15, 7), fill=(*color, 255))
    return image
