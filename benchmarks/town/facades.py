"""Building fronts. A few styles repeat over the town; each building varies its style."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from town.render import LIT
from town.textures import SCALE, Color, wall

SHOPS = (
    "BAKERY",
    "BOOKS",
    "CAFE",
    "PHARMACY",
    "FLOWERS",
    "BARBER",
    "GROCER",
    "HOTEL",
    "TAILOR",
    "RADIO",
    "BANK",
    "TOYS",
)


@dataclass(frozen=True, kw_only=True)
class Style:
    """Common properties of buildings of one kind; lengths in meters."""

    wall: str
    colors: tuple[Color, ...]
    storeys: tuple[int, int]
    storey: float = 3.0
    bay: float = 2.4
    window: tuple[float, float] = (1.1, 1.6)
    frame: Color = (236, 234, 226)
    arched: bool = False
    shutters: Color | None = None
    balconies: float = 0.0
    bands: bool = False
    timbered: bool = False
    ground: str = "door"
    roof: str = "gable"


STYLES: dict[str, Style] = {
    "terrace": Style(
        wall="brick", colors=((150, 82, 62), (164, 98, 72), (128, 72, 60)), storeys=(2, 3),
        frame=(240, 240, 234), bands=True,
    ),
    "cottage": Style(
        wall="plaster", colors=((226, 214, 190), (214, 196, 160), (206, 208, 204)), storeys=(2, 2), storey=2.7,
        window=(1.2, 1.2), shutters=(70, 98, 84),
    ),
    "palazzo": Style(
        wall="plaster", colors=((214, 160, 104), (202, 138, 108), (222, 188, 128)), storeys=(3, 4), storey=3.3,
        window=(1.1, 1.9), shutters=(86, 70, 52), arched=True, bands=True, roof="flat",
    ),
    "block": Style(
        wall="panel", colors=((186, 186, 180), (170, 178, 186), (196, 182, 164)), storeys=(4, 5), storey=2.8, bay=3.0,
        window=(1.9, 1.4), frame=(90, 94, 98), balconies=0.5, roof="flat",
    ),
    "shop": Style(
        wall="stone", colors=((196, 182, 152), (178, 170, 158), (206, 196, 176)), storeys=(3, 4), storey=3.1, bay=2.2,
        window=(1.1, 1.8), bands=True, ground="shop", roof="flat",
    ),
    "corner": Style(
        wall="brick", colors=((120, 62, 52), (172, 120, 84), (96, 84, 80)), storeys=(3, 4), window=(1.3, 1.7),
        arched=True, ground="shop", frame=(60, 66, 62),
    ),
    "modern": Style(
        wall="plaster", colors=((232, 230, 226), (120, 126, 130), (206, 120, 92)), storeys=(3, 4), bay=3.4,
        window=(2.4, 1.7), frame=(44, 46, 50), balconies=0.35, ground="garage", roof="flat",
    ),
    "timber": Style(
        wall="plaster", colors=((232, 222, 198), (224, 206, 168)), storeys=(2, 3), storey=2.6, bay=1.9,
        window=(0.9, 1.2), frame=(92, 60, 40), shutters=(120, 52, 44), timbered=True, ground="shop",
    ),
}  # fmt: skip


class Sheet:
    """An image drawn in meters, with the origin at the foot of the wall's left edge."""

    def __init__(self, image: Image.Image) -> None:
        self.image, self.pen = image, ImageDraw.Draw(image)
        self.width, self.height = image.width / SCALE, image.height / SCALE

    def pixels(self, x0: float, z0: float, x1: float, z1: float) -> tuple[int, int, int, int]:
        bottom = self.image.height
        return round(x0 * SCALE), bottom - round(z1 * SCALE), round(x1 * SCALE) - 1, bottom - round(z0 * SCALE) - 1

    def box(self, x0: float, z0: float, x1: float, z1: float, color: Color, alpha: int = 255) -> None:
        left, top, right, bottom = self.pixels(x0, z0, x1, z1)
        if right >= left and bottom >= top:
            self.pen.rectangle((left, top, right, bottom), fill=(*color, alpha))

    def arch(self, x0: float, z: float, x1: float, rise: float, color: Color, alpha: int = 255) -> None:
        left, top, right, bottom = self.pixels(x0, z - rise, x1, z + rise)
        self.pen.pieslice((left, top, right, bottom), 180, 360, fill=(*color, alpha))


def shaded(color: Color, factor: float) -> Color:
    red, green, blue = (int(min(max(c * factor, 0), 255)) for c in color)
    return red, green, blue


def height_of(style: Style, storeys: int) -> float:
    """Return meters from the ground to the eaves."""
    return 3.6 + style.storey * (storeys - 1) + 0.5


def draw_facade(style: Style, width: float, storeys: int, seed: list[int]) -> Image.Image:
    """Draw the front of one building; `seed` fixes its color, windows, door, shop and lit rooms."""
    rng = np.random.default_rng(seed)
    height = height_of(style, storeys)
    color = shaded(style.colors[rng.integers(len(style.colors))], float(rng.uniform(0.9, 1.08)))
    size = (round(width * SCALE), round(height * SCALE))
    sheet = Sheet(wall(rng, size, style.wall, color))
    trim = shaded(color, 1.22) if sum(color) < 480 else shaded(color, 0.8)
    bays = max(2, int((width - 0.6) / style.bay))
    pitch = width / bays
    balcony = rng.random(bays) < style.balconies
    for floor in range(1, storeys):
        sill = 3.6 + style.storey * (floor - 1) + 0.8
        if style.bands:
            sheet.box(0, sill - 0.95, width, sill - 0.8, trim)
        for bay in range(bays):
            _window(sheet, style, (bay + 0.5) * pitch, sill, rng, bool(balcony[bay]))
    _ground_floor(sheet, style, bays, pitch, color, rng)
    _edges(sheet, color, trim)
    if style.timbered:
        _beams(sheet, storeys, style)
    return sheet.image


def _pane(rng: np.random.Generator) -> tuple[Color, int]:
    """Return color and alpha of a pane of glass: about a third of the rooms are lit."""
    tone = float(rng.uniform(0.7, 1.3))
    return shaded((62, 74, 88), tone), LIT if rng.random() < 0.36 else 255


def _window(sheet: Sheet, style: Style, x: float, z: float, rng: np.random.Generator, balcony: bool) -> None:
    half, tall = style.window[0] / 2, style.window[1]
    glass, alpha = _pane(rng)
    sheet.box(x - half - 0.12, z - 0.14, x + half + 0.12, z, shaded(style.frame, 0.85))
    sheet.box(x - half - 0.08, z, x + half + 0.08, z + tall + 0.08, style.frame)
    if style.arched:
        sheet.arch(x - half - 0.08, z + tall, x + half + 0.08, 0.45, style.frame)
        sheet.arch(x - half, z + tall, x + half, 0.38, glass, alpha)
    sheet.box(x - half, z, x + half, z + tall, glass, alpha)
    sheet.box(x - half, z + tall - 0.16, x + half, z + tall, shaded(glass, 0.6), alpha)  # the reveal's shadow
    if rng.random() < 0.4:  # curtains
        cloth = shaded((214, 206, 192), float(rng.uniform(0.6, 1.0)))
        sheet.box(x - half, z, x - half * 0.55, z + tall, cloth)
        sheet.box(x + half * 0.55, z, x + half, z + tall, cloth)
    sheet.box(x - 0.04, z, x + 0.04, z + tall, style.frame)
    sheet.box(x - half, z + tall * 0.62, x + half, z + tall * 0.62 + 0.07, style.frame)
    if style.shutters:
        for side in (-1, 1):
            edge = x + side * (half + 0.08)
            sheet.box(min(edge, edge + side * 0.5), z, max(edge, edge + side * 0.5), z + tall, style.shutters)
    if balcony:
        sheet.box(x - half - 0.4, z - 0.75, x + half + 0.4, z - 0.55, (150, 150, 150))
        for bar in np.arange(x - half - 0.4, x + half + 0.4, 0.18):
            sheet.box(bar, z - 0.55, bar + 0.06, z + 0.4, (52, 54, 58))
        sheet.box(x - half - 0.4, z + 0.36, x + half + 0.4, z + 0.44, (52, 54, 58))


def _ground_floor(sheet: Sheet, style: Style, bays: int, pitch: float, color: Color, rng: np.random.Generator) -> None:
    paint = ((110, 40, 36), (40, 70, 96), (46, 84, 60), (70, 52, 40), (34, 36, 40), (150, 110, 50))[rng.integers(6)]
    door = int(rng.integers(bays))
    if style.ground == "shop":
        sheet.box(0.2, 0, sheet.width - 0.2, 3.35, paint)
        sheet.box(0.2, 2.75, sheet.width - 0.2, 3.3, shaded(paint, 0.72))
        _sign(sheet, SHOPS[rng.integers(len(SHOPS))], paint)
    else:
        sheet.box(0, 0, sheet.width, 0.55, shaded(color, 0.66))
    for bay in range(bays):
        x = (bay + 0.5) * pitch
        if bay == door:
            sheet.box(x - 0.65, 0, x + 0.65, 2.6, shaded(style.frame, 0.9))
            sheet.box(x - 0.5, 0, x + 0.5, 2.1, paint if style.ground != "shop" else shaded(paint, 1.7))
            sheet.box(x - 0.5, 2.18, x + 0.5, 2.52, (200, 180, 130), LIT)
        elif style.ground == "shop":
            sheet.box(x - pitch * 0.44, 0.5, x + pitch * 0.44, 2.65, (70, 76, 80), LIT)
            for _ in range(5):  # goods in the window
                at, tall = x + pitch * rng.uniform(-0.4, 0.3), float(rng.uniform(0.2, 0.9))
                goods = shaded((190, 150, 110), float(rng.uniform(0.5, 1.3)))
                sheet.box(at, 0.55, at + 0.25, 0.55 + tall, goods)
        elif style.ground == "garage" and bay % 2 == 0:
            sheet.box(x - pitch * 0.42, 0, x + pitch * 0.42, 2.4, shaded((150, 152, 154), float(rng.uniform(0.6, 1.1))))
            for z in np.arange(0.3, 2.4, 0.35):
                sheet.box(x - pitch * 0.42, z, x + pitch * 0.42, z + 0.05, (84, 86, 90))
        else:
            _window(sheet, style, x, 1.0, rng, False)


def _sign(sheet: Sheet, name: str, paint: Color) -> None:
    font = ImageFont.load_default(size=0.46 * SCALE)
    center = (sheet.image.width / 2, sheet.image.height - 3.02 * SCALE)
    sheet.pen.text(center, name, font=font, fill=(240, 226, 180, 255), anchor="mm")


def _edges(sheet: Sheet, color: Color, trim: Color) -> None:
    """Draw the cornice with its shadow, and darker joints to the neighbors."""
    sheet.box(0, sheet.height - 0.32, sheet.width, sheet.height, trim)
    sheet.box(0, sheet.height - 0.46, sheet.width, sheet.height - 0.32, shaded(color, 0.55))
    for x in (0.0, sheet.width - 0.08):
        sheet.box(x, 0, x + 0.08, sheet.height, shaded(color, 0.7))


def _beams(sheet: Sheet, storeys: int, style: Style) -> None:
    """Draw dark timbers between the storeys and down the bays."""
    for floor in range(storeys):
        z = 3.4 + style.storey * floor
        sheet.box(0, z, sheet.width, z + 0.2, style.frame)
    for x in np.arange(0, sheet.width, style.bay):
        sheet.box(x, 3.4, x + 0.18, sheet.height, style.frame)
