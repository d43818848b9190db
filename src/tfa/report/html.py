"""HTML pages from templates, and SVG plots."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from PIL import Image

from tfa.core.text import make_printable
from tfa.errors import TfaError
from tfa.photos.images import as_rgb

TEMPLATES = Path(__file__).parent / "templates"
MEDIA = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
PHOTO_QUALITY = 85


@dataclass(frozen=True)
class TableRow:
    """A method with its mean and deviation (None if unknown) in percent for each column."""

    title: str
    numbers: Mapping[str, tuple[float, float | None]]
    notes: Mapping[str, str]  # text columns
    name: str = ""  # name of the method on the command line


@dataclass(frozen=True)
class ReportTable:
    """Methods as rows, numbers as columns; the best of each column is highlighted."""

    rows: Sequence[TableRow]

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for row in self.rows for column in row.numbers))

    @property
    def best(self) -> dict[str, str]:
        """Best number of each column as printed, so that equal figures are both highlighted."""
        return {c: f"{max(row.numbers[c][0] for row in self.rows if c in row.numbers):.1f}" for c in self.columns}


def render_template(template: Path, **values: Any) -> str:
    """Render a template; `values` must include all names of the template and of base.html (`title`, `intro`)."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Escapes the names of files; what is safe stays.
        finalize=lambda value: make_printable(value) if type(value) is str else value,
    )
    environment.filters |= {"embedded": embed_photo, "as_jpeg": lambda path: embed_photo(as_rgb(path))}
    return environment.get_template(template.name).render(values)


def embed_photo(picture: Path | Image.Image) -> str:
    """Return a data URL of an image: a file unchanged, a PIL image as JPEG."""
    if isinstance(picture, Image.Image):
        held = io.BytesIO()
        as_rgb(picture).save(held, format="JPEG", quality=PHOTO_QUALITY)
        media, content = "image/jpeg", held.getvalue()
    else:
        if picture.suffix.lower() not in MEDIA:
            raise TfaError(f"cannot embed {picture.name} in a report: its name must end in {', '.join(MEDIA)}")
        if not picture.is_file():
            raise TfaError(f"{picture} not found; draw it before the report, or write the report without it")
        media, content = MEDIA[picture.suffix.lower()], picture.read_bytes()
    return f"data:{media};base64,{base64.b64encode(content).decode('ascii')}"


def embed_json(value: Any) -> Markup:
    """Return JSON for a script element, in which no file name can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


_WIDTH, HEIGHT = 560, 340
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 46
TICKS = 5


@dataclass(frozen=True)
class Axis:
    """A linear scale from values to pixels."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / TICKS))
        step *= next(times for times in (1, 2, 5, 10) if (self.high - self.low) / (times * step) <= TICKS)
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def bars(counts: Sequence[int], x_name: str, y_name: str, alt: str) -> Markup:
    """Plot a histogram: `counts[i]` items have the value i."""
    across = Axis(-0.5, max(len(counts), 2) - 0.5, LEFT, _WIDTH - RIGHT)
    down = Axis(0, max([*counts, 1]) * 1.05, HEIGHT - BOTTOM, TOP)
    wide = max((across(1) - across(0)) * 0.85, 0.8)
    drawn = [
        f'<rect class="bar" x="{across(i) - wide / 2:.1f}" y="{down(n):.1f}" width="{wide:.1f}" '
        f'height="{down(0) - down(n):.1f}"><title>{i}: {n}</title></rect>'
        for i, n in enumerate(counts)
        if n
    ]
    lines = [f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{_WIDTH - RIGHT}"/>']
    lines += [_text(across(value), HEIGHT - BOTTOM + 18, f"{value:.6g}", "middle") for value in across.ticks()]
    for value in down.ticks():
        lines.append(f'<path class="grid" d="M{LEFT} {down(value):.1f}H{_WIDTH - RIGHT}"/>')
        lines.append(_text(LEFT - 6, down(value) + 4, f"{value:.6g}", "end"))
    lines.append(_text((LEFT + _WIDTH - RIGHT) / 2, HEIGHT - 8, x_name, "middle"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'transform="rotate(-90 14 {middle})"'
    lines.append(f'<text x="14" y="{middle}" text-anchor="middle" {turned}>{escape(y_name)}</text>')
    body = "\n".join([*lines, *drawn])
    return Markup(f'<svg viewBox="0 0 {_WIDTH} {HEIGHT}" role="img" aria-label="{escape(alt)}">\n{body}\n</svg>')


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
