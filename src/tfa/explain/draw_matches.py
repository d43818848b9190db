"""Draw two photos side by side with lines between matching patches, and each patch's contribution to the score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from tfa.core.files import write_atomically
from tfa.errors import BadImage, TfaError
from tfa.explain.draw_montage import FAINT, GRAY, INK, PAPER, elide, font, picture_options
from tfa.photos.images import as_rgb
from tfa.verification.matching import Matches

_Grid = tuple[int, int]  # rows, columns
_Color = tuple[int, int, int, int]

MATCH_WIDTH, TALLEST = 1080, 1080  # width of the image and maximum height of a photo, in pixels
MATCH_GAP, MATCH_EDGE = 24, 16
MATCH_CAPTION, _NAME = 34, 24  # font sizes: a phone shows the image at about a third of its size
_NAMES = _NAME + 20  # height of the line of names below the photos
_LINE, _DOT, FAINT_DOT = 2, 3, 2  # line width and dot radii in pixels, small enough to keep the photos visible
LINES_SEEN_THROUGH = 40  # number of lines above which lines are thin and translucent
FINER = 2  # oversampling factor: Pillow does not antialias lines
USUAL_SHAPE = 4 / 3  # aspect ratio if both photos are missing
ADDS, TAKES = (255, 128, 0), (0, 104, 255)  # orange and blue, which color-blind readers can distinguish
DIM = 0.6  # brightness of the photo, shown in gray so that colors only show contributions
STRONGEST = 0.85  # opacity of the largest contribution
OUTLIERS = 99.0  # percentile of contributions with full color, so that one patch does not fade all others
HEAT_CAPTION_TOP = 8  # pixels below the photos
HEAT_CAPTION = "orange patches raised the score, blue patches lowered it"
LINEARIZED_CAPTION = "orange patches raise the score, blue ones lower it (linearized)"


def draw_matches(
    query: Path | Image.Image,
    answer: Path | Image.Image,
    matches: Matches,
    grid: _Grid,
    other: _Grid,
    path: Path | None = None,
    heats: Sequence[np.ndarray] | None = None,
    linearized: bool = False,
) -> Image.Image:
    """Draw the query on the left and the map image on the right, with a line per inlier and dots for other matches.

    `grid` and `other` are the patch grids of the query and the map image. `heats` are the contributions of both photos'
    patches to the score, drawn over a second row; `linearized` ones are drawn relative to an even share. `path` is a
    PNG or JPEG file to write.
    """
    options = None if path is None else picture_options(Path(path), "matches")
    _check(matches, grid, other)
    panels = _panels([query, answer])
    height = panels[0].size[1]
    bottom = MATCH_EDGE + height + _NAMES + MATCH_CAPTION + MATCH_EDGE
    heat_row = 0 if heats is None else height + HEAT_CAPTION_TOP + MATCH_CAPTION + MATCH_EDGE
    sheet = Image.new("RGB", (MATCH_WIDTH, bottom + heat_row), PAPER)
    for panel in panels:
        panel.paste(sheet, MATCH_EDGE)
    starts = cell_centers(matches.ours, grid, (panels[0].left, MATCH_EDGE), panels[0].size)
    ends = cell_centers(matches.theirs, other, (panels[1].left, MATCH_EDGE), panels[1].size)
    colors = [ramp(float(place)) for place in matches.ours // grid[1] / max(grid[0] - 1, 1)]
    overlay = _overlay((MATCH_WIDTH, bottom), starts, ends, matches.consistent, colors)
    sheet.paste(overlay, mask=overlay)
    for panel in panels:
        panel.write_name(sheet)
    _write_caption(sheet, bottom - MATCH_EDGE - MATCH_CAPTION, format_caption(matches))
    if heats is not None:
        heats = [heat - heat.mean() for heat in heats] if linearized else heats
        full = choose_color(heats)
        for panel, heat in zip(panels, heats, strict=True):
            panel.paste(sheet, bottom, heat, full)
        _write_caption(sheet, bottom + height + HEAT_CAPTION_TOP, LINEARIZED_CAPTION if linearized else HEAT_CAPTION)
    if path is not None and options is not None:
        write_atomically(Path(path), lambda temporary: sheet.save(temporary, **options))
    return sheet


@dataclass(frozen=True)
class _Panel:
    """A photo and its place on the sheet."""

    photo: Image.Image | None  # resized; None if missing or broken
    name: str
    left: int
    size: tuple[int, int]

    def paste(self, sheet: Image.Image, top: int, heat: np.ndarray | None = None, full: float = 1.0) -> None:
        picture = self.photo if self.photo is None or heat is None else overlay_heat(self.photo, self.size, heat, full)
        sheet.paste(picture or GRAY, (self.left, top, self.left + self.size[0], top + self.size[1]))

    def write_name(self, sheet: Image.Image) -> None:
        """Write the name below the photo, or in the box of a missing photo."""
        pen, letters = ImageDraw.Draw(sheet), font(_NAME)
        middle, name = self.left + self.size[0] / 2, elide(self.name, self.size[0] - 24, _NAME)
        below = "cannot be read" if self.photo is None else name
        pen.text((middle, MATCH_EDGE + self.size[1] + 8), below, font=letters, fill=FAINT, anchor="ma")
        if self.photo is None:
            center = (middle, MATCH_EDGE + self.size[1] / 2)
            room = pen.textbbox(center, name, font=letters, anchor="mm")
            pen.rectangle((room[0] - 8, room[1] - 6, room[2] + 8, room[3] + 6), fill=GRAY)
            pen.text(center, name, font=letters, fill=INK, anchor="mm")


def _panels(sources: Sequence[Path | Image.Image]) -> list[_Panel]:
    """Return the photos upright and equally high; a missing photo gets the width of the other."""
    photos: list[Image.Image | None] = []
    for one in sources:
        try:
            photos.append(as_rgb(one))
        except BadImage:
            photos.append(None)  # draw the matches without it
    usual = next((photo.width / photo.height for photo in photos if photo is not None), USUAL_SHAPE)
    shapes = [usual if photo is None else photo.width / photo.height for photo in photos]
    height = max(min(round((MATCH_WIDTH - 2 * MATCH_EDGE - MATCH_GAP) / sum(shapes)), TALLEST), 1)
    widths = [max(math.floor(height * shape), 1) for shape in shapes]
    left, panels = (MATCH_WIDTH - sum(widths) - MATCH_GAP) // 2, []
    for one, photo, width in zip(sources, photos, widths, strict=True):
        name, size = one.name if isinstance(one, Path) else "", (width, height)
        panels.append(_Panel(photo and photo.resize(size, Image.Resampling.LANCZOS), name, left, size))
        left += width + MATCH_GAP
    return panels


def _write_caption(sheet: Image.Image, top: int, text: str) -> None:
    shown = elide(text, MATCH_WIDTH - 2 * MATCH_EDGE, MATCH_CAPTION)
    ImageDraw.Draw(sheet).text((MATCH_WIDTH / 2, top), shown, font=font(MATCH_CAPTION), fill=INK, anchor="ma")


def format_caption(matches: Matches) -> str:
    if not len(matches.ours):
        return "no matching patches"
    return f"{matches.count} inlier{'' if matches.count == 1 else 's'} among {len(matches.ours)} matching patches"


def cell_centers(patches: np.ndarray, grid: _Grid, corner: tuple[float, float], size: tuple[int, int]) -> np.ndarray:
    """Return pixel positions (n, 2) of patches of a photo drawn at `corner` in `size`; the grid covers the photo."""
    rows, columns = np.divmod(patches, grid[1])
    across, down = (columns + 0.5) / grid[1], (rows + 0.5) / grid[0]
    return np.stack([corner[0] + across * size[0], corner[1] + down * size[1]], axis=-1)


def ramp(place: float) -> tuple[int, int, int]:
    """Return a color from yellow (0, the top row) over red to violet (1), with evenly decreasing lightness.

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
    linear = linear.clip(0, 1)  # clip to sRGB
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    red, green, blue = np.rint(255 * encoded).astype(int).tolist()
    return red, green, blue


def _check(matches: Matches, grid: _Grid, other: _Grid) -> None:
    for whose, patches, (rows, columns) in (("query", matches.ours, grid), ("answer", matches.theirs, other)):
        highest = int(patches.max(initial=-1))
        if rows < 1 or columns < 1 or highest >= rows * columns:
            raise TfaError(
                f"patch {highest} of the {whose} is outside a grid of {rows} × {columns}; "
                "pass the grids that the matches were computed with"
            )


def _overlay(
    size: tuple[int, int],
    starts: np.ndarray,
    ends: np.ndarray,
    consistent: np.ndarray,
    colors: list[tuple[int, int, int]],
) -> Image.Image:
    """Draw lines and dots on a transparent background."""
    large = Image.new("RGBA", (FINER * size[0], FINER * size[1]), (0, 0, 0, 0))
    pen = ImageDraw.Draw(large)
    for index in np.flatnonzero(~consistent):
        for spot in (starts[index], ends[index]):
            _dot(pen, spot, FAINT_DOT, (255, 255, 255, 110), (20, 20, 20, 90))
    opacity = round(200 * min(max(LINES_SEEN_THROUGH / max(int(consistent.sum()), 1), 0.4), 1.0))
    width = FINER * _LINE if consistent.sum() <= LINES_SEEN_THROUGH else FINER
    for index in np.flatnonzero(consistent):
        line = [tuple(FINER * starts[index]), tuple(FINER * ends[index])]
        pen.line(line, fill=(*colors[index], opacity), width=width)
    for index in np.flatnonzero(consistent):  # dots over all lines
        for spot in (starts[index], ends[index]):
            _dot(pen, spot, _DOT, (*colors[index], 255), (20, 20, 20, 220))
    return large.resize(size, Image.Resampling.BOX)


def _dot(pen: ImageDraw.ImageDraw, spot: np.ndarray, radius: int, fill: _Color, edge: _Color) -> None:
    x, y = (FINER * spot).tolist()
    reach = FINER * radius
    pen.ellipse((x - reach, y - reach, x + reach, y + reach), fill=fill, outline=edge, width=FINER)


def choose_color(heats: Sequence[np.ndarray]) -> float:
    """Return the contribution that gets the full color, shared by all photos of a drawing."""
    sizes = np.abs(np.concatenate([np.ravel(heat) for heat in heats])) if heats else np.zeros(1)
    return float(np.percentile(sizes, OUTLIERS)) or float(sizes.max()) or 1.0


def overlay_heat(photo: Image.Image, size: tuple[int, int], heat: np.ndarray, full: float) -> Image.Image:
    """Return the photo at `size`, in gray, under the contributions (rows, columns) of its patches."""
    gray = photo.resize(size, Image.Resampling.LANCZOS).convert("L").point(lambda level: int(level * DIM))
    opacity = np.rint(255 * STRONGEST * np.minimum(np.abs(heat) / full, 1.0)).astype(np.uint8)
    color = np.where((heat >= 0)[..., None], np.array(ADDS, np.uint8), np.array(TAKES, np.uint8))
    # Nearest resampling keeps the edges of patches where the encoder had them.
    colors, mask = (Image.fromarray(layer).resize(size, Image.Resampling.NEAREST) for layer in (color, opacity))
    return Image.composite(colors, gray.convert("RGB"), mask)
