"""The report of figures: what a section holds, and its page, `templates/figures.html`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfa.report.html import Table, render

TEMPLATE = Path(__file__).parent / "templates" / "figures.html"


@dataclass(frozen=True)
class Picture:
    file: Path
    alt: str
    caption: str
    photos: bool = False  # a sheet of photos: wide, and embedded as JPEG, a tenth of the size of its PNG


@dataclass(frozen=True)
class Section:
    """One dataset under one encoder. A figure is pictures, or a sentence that says why there are none."""

    anchor: str
    title: str
    facts: Sequence[str]
    tables: Mapping[str, Table]
    figures: Mapping[str, Sequence[Picture | str]]


def figures_page(title: str, intro: Sequence[str], sections: Sequence[Section]) -> str:
    return render(TEMPLATE, title=title, intro=intro, sections=sections)
