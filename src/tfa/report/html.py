"""The skeleton of every report: one HTML file that needs nothing but itself, readable in light and dark.

A report is a jinja2 template that extends `templates/base.html`. Every text is escaped, every picture embedded.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from tfa.base.printable import make_printable
from tfa.errors import TfaError
from tfa.photos.images import as_rgb

TEMPLATES = Path(__file__).parent / "templates"
MEDIA = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
PHOTO_QUALITY = 85


class Decision(NamedTuple):
    """One thing that was decided: what, and why in a sentence."""

    name: str
    choice: str
    reason: str


@dataclass(frozen=True)
class TableRow:
    """A method: its numbers in percent by column, each a mean and its deviation (None where there is none)."""

    title: str
    numbers: Mapping[str, tuple[float, float | None]]
    notes: Mapping[str, str]  # further columns, of text
    name: str = ""  # what the command line calls the method


@dataclass(frozen=True)
class ReportTable:
    """Methods down, numbers across; the best of each column stands out."""

    rows: Sequence[TableRow]

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for row in self.rows for column in row.numbers))

    @property
    def best(self) -> dict[str, str]:
        """As printed: two equal figures are both best."""
        return {c: f"{max(row.numbers[c][0] for row in self.rows if c in row.numbers):.1f}" for c in self.columns}


def render_template(template: Path, **values: Any) -> str:
    """The page of a template; `values` must hold all that it and the skeleton (`title`, `intro`) name."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: (
            make_printable(value) if type(value) is str else value
        ),  # names of files; what is safe stays
    )
    environment.filters |= {"embedded": embed_photo, "as_jpeg": lambda path: embed_photo(as_rgb(path))}
    return environment.get_template(template.name).render(values)


def embed_photo(picture: Path | Image.Image) -> str:
    """A picture as an address that holds it: a file as it is, a PIL image as JPEG."""
    if isinstance(picture, Image.Image):
        held = io.BytesIO()
        as_rgb(picture).save(held, format="JPEG", quality=PHOTO_QUALITY)
        media, content = "image/jpeg", held.getvalue()
    else:
        if picture.suffix.lower() not in MEDIA:
            raise TfaError(f"{picture.name} cannot be embedded in a report: its name must end in {', '.join(MEDIA)}")
        if not picture.is_file():
            raise TfaError(f"{picture} is missing; draw it before the report, or write the report without it")
        media, content = MEDIA[picture.suffix.lower()], picture.read_bytes()
    return f"data:{media};base64,{base64.b64encode(content).decode('ascii')}"
