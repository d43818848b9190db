"""Draw many answers in one image: a row per query, with its hits to the right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from PIL import Image, ImageDraw, ImageFont, ImageOps

from tfa.core.files import write_atomically
from tfa.core.text import make_printable
from tfa.errors import BadImage, TfaError
from tfa.photos.images import as_rgb
from tfa.types import Hit

Mark = Literal["good", "bad", "none"]

_FORMATS: dict[str, dict[str, Any]] = {
    ".png": {"format": "PNG"},
    ".jpg": {"format": "JPEG", "quality": 88},
    ".jpeg": {"format": "JPEG", "quality": 88},
}
FRAMES: dict[str, str] = {"good": "#2e9e5b", "bad": "#d1453b", "none": "#9aa1a9"}
PAPER, INK, FAINT, GRAY = "#ffffff", "#1c2126", "#5a636c", "#c9ced3"

TILE = (240, 180)
GAP, EDGE, FRAME = 12, 18, 4
TITLE, _CAPTION = 15, 13  # font sizes in pixels
MONTAGE_LINE = 17


@dataclass(frozen=True)
class MontageTile:
    """One hit. A gray tile replaces an image that is missing or unknown (None)."""

    image: Path | None
    caption_lines: list[str] = field(default_factory=list)
    mark: Mark = "none"


@dataclass(frozen=True)
class MontageRow:
    """One query and its hits, best first."""

    query: Path
    title: str
    tiles: list[MontageTile]


def draw_montage(answers: Sequence[MontageRow], path: Path, legend: str = "") -> None:
    """Draw answers to a PNG or JPEG file."""
    path = Path(path)
    options = picture_options(path, "a montage")
    if not answers:
        raise TfaError(f"there are no answers to draw in {path.name}; query at least one photo")
    image = compose(answers, legend)
    write_atomically(path, lambda temporary: image.save(temporary, **options))


def format_matches(count: int | None) -> list[str]:
    """Format the number of inliers as a caption line; no line for a hit that was not reranked."""
    return [] if count is None else [f"{count} inlier{'' if count == 1 else 's'}"]


def make_tile(hit: Hit, mark: Mark) -> MontageTile:
    """Return the tile of a hit, with its name, confidence, inliers and position as caption."""
    position = [] if hit.position is None else [str(hit.position)]
    lines = [Path(hit.image).name, f"confidence {hit.confidence:.2f}", *format_matches(hit.inliers), *position]
    return MontageTile(Path(hit.image), lines, mark)


def picture_options(path: Path, what: str) -> dict[str, Any]:
    """Return Pillow's options to save `what` to `path`."""
    options = _FORMATS.get(path.suffix.lower())
    if options is None:
        raise TfaError(f"{what} cannot be written to {path.name}: the name must end in {', '.join(_FORMATS)}")
    return options


def compose(answers: Sequence[MontageRow], legend: str = "") -> Image.Image:
    """Compose the montage."""
    most = max(len(row.tiles) for row in answers)
    captions = [max([1, *(len(tile.caption_lines) for tile in row.tiles)]) for row in answers]
    heights = [MONTAGE_LINE + 8 + TILE[1] + 6 + MONTAGE_LINE * n for n in captions]
    above = MONTAGE_LINE + 2 * GAP if legend else 0
    # A wider gap separates the query from its hits.
    width = 2 * EDGE + TILE[0] + (GAP + most * (TILE[0] + GAP) if most else 0)
    sheet = Image.new("RGB", (width, 2 * EDGE + above + sum(heights) + 2 * GAP * (len(answers) - 1)), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((EDGE, EDGE), elide(legend, width - 2 * EDGE, TITLE), font=font(TITLE), fill=FAINT)
    top = EDGE + above
    for row, height in zip(answers, heights, strict=True):
        _draw_row(sheet, pen, row, top, width)
        top += height + 2 * GAP
        if top < sheet.height:
            pen.line([(EDGE, top - GAP), (width - EDGE, top - GAP)], fill="#e3e6e9", width=1)
    return sheet


def _draw_row(sheet: Image.Image, pen: ImageDraw.ImageDraw, row: MontageRow, top: int, width: int) -> None:
    pen.text((EDGE, top), elide(row.title, width - 2 * EDGE, TITLE), font=font(TITLE), fill=INK)
    top += MONTAGE_LINE + 8
    _paste(sheet, pen, row.query, (EDGE, top), "#3a6ea5")
    pen.text((EDGE, top + TILE[1] + 5), elide(row.query.name, TILE[0], _CAPTION), font=font(_CAPTION), fill=INK)
    left = EDGE + TILE[0] + 2 * GAP
    for tile in row.tiles:
        _paste(sheet, pen, tile.image, (left, top), FRAMES[tile.mark])
        for number, line in enumerate(tile.caption_lines):
            at = (left, top + TILE[1] + 5 + number * MONTAGE_LINE)
            pen.text(at, elide(line, TILE[0], _CAPTION), font=font(_CAPTION), fill=FAINT if number else INK)
        left += TILE[0] + GAP


def _paste(sheet: Image.Image, pen: ImageDraw.ImageDraw, path: Path | None, at: tuple[int, int], frame: str) -> None:
    """Draw a photo in its colored frame, or its name if it cannot be read."""
    x, y = at
    inner = (TILE[0] - 2 * FRAME, TILE[1] - 2 * FRAME)
    pen.rectangle((x, y, x + TILE[0] - 1, y + TILE[1] - 1), fill=frame)
    photo = None if path is None else _open(path, inner)
    if photo is not None:
        sheet.paste(photo, (x + FRAME, y + FRAME))
        return
    pen.rectangle((x + FRAME, y + FRAME, x + TILE[0] - FRAME - 1, y + TILE[1] - FRAME - 1), fill=GRAY)
    name = "no photo" if path is None else path.name
    words = [elide(name, inner[0] - 12, _CAPTION)] + (["cannot be read"] if path is not None else [])
    for number, text in enumerate(words):
        center = (x + TILE[0] / 2, y + TILE[1] / 2 + (number - (len(words) - 1) / 2) * MONTAGE_LINE)
        pen.text(center, text, font=font(_CAPTION), fill=INK, anchor="mm")


def _open(path: Path, size: tuple[int, int]) -> Image.Image | None:
    """Return the photo upright and cropped to the tile; None if it is missing or broken."""
    try:
        with Image.open(path) as photo:
            photo.draft("RGB", (2 * size[0], 2 * size[1]))  # a JPEG decodes at a fraction of its size
            return ImageOps.fit(as_rgb(photo), size, Image.Resampling.LANCZOS)
    except (BadImage, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None  # Pillow raises all of these for broken files; the answer is still worth showing


def elide(text: str, width: int, size: int) -> str:
    """Cut the middle of `text` so that it fits `width` pixels."""
    text = make_printable(text)  # a line break would be drawn over the row below
    shown, keep = text, len(text)
    while keep > 2 and font(size).getlength(shown) > width:
        keep -= 1
        shown = text[: (keep + 1) // 2] + "…" + text[len(text) - keep // 2 :]
    return shown


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size)
