"""Two photos side by side and lines between their matching patches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tfa.base.files import write_atomically
from tfa.errors import BadImage, TfaError
from tfa.explain.draw_heat import full_colour, heated
from tfa.explain.draw_montage import FAINT, GREY, INK, PAPER, elide, picture_options
from tfa.photos.images import as_rgb
from tfa.verification.matching import Matches

Grid = tuple[int, int]  # rows, columns
Corner = tuple[float, float]
Colour = tuple[int, int, int, int]

WIDTH, TALLEST = 1080, 1080  # of the whole picture; of a photo in it
GAP, EDGE = 24, 16
CAPTION, NAME = 34, 24  # letter heights: a phone shows the picture at about a third of its size
NAMES = NAME + 20  # the line of names below the photos
LINE, DOT, FAINT_DOT = 2, 5, 3  # width of a line, radii of dots
LINES_SEEN_THROUGH = 40  # from so many lines on they fade, or the photos would be hidden
FINER = 2  # lines are drawn so many times larger, then reduced: Pillow's own have steps
USUAL_SHAPE = 4 / 3  # of a photo that is not there, if the other is not there either
HEAT_CAPTION = "orange patches added to the score, blue ones took off it"


def draw_matches(
    query: Path | Image.Image,
    answer: Path | Image.Image,
    matches: Matches,
    grid: Grid,
    other: Grid,
    path: Path | None = None,
    heats: Sequence[np.ndarray] | None = None,
) -> Image.Image:
    """The query left, the map's photo right; a line for each match that moves alike, a faint dot for the others.

    `grid` and `other` are the patch grids of the two photos. `heats`, what each patch of either contributed to the
    score, are laid over a second row of the photos. Written to `path` (PNG or JPEG) if there is one.
    """
    options = None if path is None else picture_options(Path(path), "matches")
    _check(matches, grid, other)
    photos = [_photo(query), _photo(answer)]
    sizes = _sizes([None if photo is None else photo.width / photo.height for photo in photos])
    sheet = Image.new("RGB", (WIDTH, EDGE + sizes[0][1] + NAMES + CAPTION + EDGE), PAPER)
    left = (WIDTH - sizes[0][0] - GAP - sizes[1][0]) // 2
    corners = [(left, EDGE), (left + sizes[0][0] + GAP, EDGE)]
    for photo, size, corner in zip(photos, sizes, corners, strict=True):
        box = (*corner, corner[0] + size[0], corner[1] + size[1])
        sheet.paste(GREY if photo is None else photo.resize(size, Image.Resampling.LANCZOS), box)
    starts = cell_centres(matches.ours, grid, corners[0], sizes[0])
    ends = cell_centres(matches.theirs, other, corners[1], sizes[1])
    colours = [ramp(float(place)) for place in matches.ours // grid[1] / max(grid[0] - 1, 1)]
    overlay = _overlay(sheet.size, starts, ends, matches.consistent, colours)
    sheet.paste(overlay, mask=overlay)
    _write_words(sheet, [query, answer], photos, corners, sizes, caption_of(matches))
    if heats is not None:
        sheet = _with_heats(sheet, photos, corners, sizes, heats)
    if path is not None and options is not None:
        write_atomically(Path(path), lambda temporary: sheet.save(temporary, **options))
    return sheet


def _with_heats(
    sheet: Image.Image,
    photos: list[Image.Image | None],
    corners: list[tuple[int, int]],
    sizes: list[tuple[int, int]],
    heats: Sequence[np.ndarray],
) -> Image.Image:
    """The sheet with a row below it: the photos again, under the contributions of their patches."""
    top, row = sheet.height, sizes[0][1] + 8 + CAPTION + EDGE
    taller = Image.new("RGB", (WIDTH, top + row), PAPER)
    taller.paste(sheet, (0, 0))
    full = full_colour(heats)
    for photo, size, (left, _), heat in zip(photos, sizes, corners, heats, strict=True):
        box = (left, top, left + size[0], top + size[1])
        taller.paste(GREY if photo is None else heated(photo, size, heat, full), box)
    at = (WIDTH / 2, top + sizes[0][1] + 8)
    ImageDraw.Draw(taller).text(at, HEAT_CAPTION, font=_font(CAPTION), fill=INK, anchor="ma")
    return taller


def caption_of(matches: Matches) -> str:
    if not len(matches.ours):
        return "no mutual match"
    return f"{matches.count} of {len(matches.ours)} mutual matches move alike"


def cell_centres(patches: np.ndarray, grid: Grid, corner: Corner, size: tuple[int, int]) -> np.ndarray:
    """Pixels (x, y) of patches `n` of a photo drawn at `corner` in `size`: the grid covers all of it, however wide."""
    rows, columns = np.divmod(patches, grid[1])
    across, down = (columns + 0.5) / grid[1], (rows + 0.5) / grid[0]
    return np.stack([corner[0] + across * size[0], corner[1] + down * size[1]], axis=-1)


def ramp(place: float) -> tuple[int, int, int]:
    """From yellow (0, the top row) over red to violet (1): lightness falls evenly, for eyes that see no hue too.

    A path through OKLab, where equal steps look equal: L = 0.92 − 0.34 t, chroma 0.19, hue 105° − 165° t.
    """
    lightness, hue = 0.92 - 0.34 * place, math.radians(105 - 165 * place)
    a, b = 0.19 * math.cos(hue), 0.19 * math.sin(hue)
    cones = np.array([
        lightness + 0.3963377774 * a + 0.2158037573 * b,
        lightness - 0.1055613458 * a - 0.0638541728 * b,
        lightness - 0.0894841775 * a - 1.2914855480 * b,
    ]) ** 3  # fmt: skip
    linear = np.array([
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]) @ cones  # fmt: skip
    linear = linear.clip(0, 1)  # colours outside sRGB go to its edge
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    red, green, blue = np.rint(255 * encoded).astype(int).tolist()
    return red, green, blue


def _check(matches: Matches, grid: Grid, other: Grid) -> None:
    for whose, patches, (rows, columns) in (("query", matches.ours, grid), ("answer", matches.theirs, other)):
        highest = int(patches.max(initial=-1))
        if rows < 1 or columns < 1 or highest >= rows * columns:
            raise TfaError(
                f"patch {highest} of the {whose} is not in a grid of {rows} × {columns}; "
                "give the grids that the matches were made with"
            )


def _photo(given: Path | Image.Image) -> Image.Image | None:
    """Upright and in RGB, as the encoder saw it; None if the file is missing or broken."""
    try:
        return as_rgb(given)
    except (BadImage, OSError):
        return None  # the matches are worth showing without it


def _sizes(shapes: list[float | None]) -> list[tuple[int, int]]:
    """Sizes of the two photos, equally high, from their width / height; one that is not there takes the other's."""
    known = [shape for shape in shapes if shape is not None]
    usual = known[0] if known else USUAL_SHAPE
    wide = [usual if shape is None else shape for shape in shapes]
    height = max(min(round((WIDTH - 2 * EDGE - GAP) / sum(wide)), TALLEST), 1)
    return [(max(math.floor(height * shape), 1), height) for shape in wide]


def _overlay(
    size: tuple[int, int],
    starts: np.ndarray,
    ends: np.ndarray,
    consistent: np.ndarray,
    colours: list[tuple[int, int, int]],
) -> Image.Image:
    """Lines and dots on nothing."""
    large = Image.new("RGBA", (FINER * size[0], FINER * size[1]), (0, 0, 0, 0))
    pen = ImageDraw.Draw(large)
    for index in np.flatnonzero(~consistent):
        for spot in (starts[index], ends[index]):
            _dot(pen, spot, FAINT_DOT, (255, 255, 255, 110), (20, 20, 20, 90))
    opacity = round(200 * min(max(LINES_SEEN_THROUGH / max(int(consistent.sum()), 1), 0.5), 1.0))
    for index in np.flatnonzero(consistent):
        line = [tuple(FINER * starts[index]), tuple(FINER * ends[index])]
        pen.line(line, fill=(*colours[index], opacity), width=FINER * LINE)
    for index in np.flatnonzero(consistent):  # dots over all lines
        for spot in (starts[index], ends[index]):
            _dot(pen, spot, DOT, (*colours[index], 255), (20, 20, 20, 220))
    return large.resize(size, Image.Resampling.BOX)


def _dot(pen: ImageDraw.ImageDraw, spot: np.ndarray, radius: int, fill: Colour, edge: Colour) -> None:
    x, y = (FINER * spot).tolist()
    reach = FINER * radius
    pen.ellipse((x - reach, y - reach, x + reach, y + reach), fill=fill, outline=edge, width=FINER)


def _write_words(
    sheet: Image.Image,
    given: list[Path | Image.Image],
    photos: list[Image.Image | None],
    corners: list[tuple[int, int]],
    sizes: list[tuple[int, int]],
    caption: str,
) -> None:
    """The name of each photo, in the box of one that is missing; below both the caption."""
    pen = ImageDraw.Draw(sheet)
    for what, photo, (x, y), (width, height) in zip(given, photos, corners, sizes, strict=True):
        middle = x + width / 2
        name = elide(what.name, width - 24, NAME) if isinstance(what, Path) else ""
        if photo is not None:
            pen.text((middle, y + height + 8), name, font=_font(NAME), fill=FAINT, anchor="ma")
            continue
        pen.text((middle, y + height + 8), "cannot be read", font=_font(NAME), fill=FAINT, anchor="ma")
        room = pen.textbbox((middle, y + height / 2), name, font=_font(NAME), anchor="mm")
        pen.rectangle((room[0] - 8, room[1] - 6, room[2] + 8, room[3] + 6), fill=GREY)
        pen.text((middle, y + height / 2), name, font=_font(NAME), fill=INK, anchor="mm")
    at = (WIDTH / 2, sheet.height - EDGE - CAPTION)
    pen.text(at, elide(caption, WIDTH - 2 * EDGE, CAPTION), font=_font(CAPTION), fill=INK, anchor="ma")


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size)
