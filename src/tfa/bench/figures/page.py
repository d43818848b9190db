"""The report as HTML: one file that needs nothing but itself. Every text is escaped, every image embedded."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from PIL import Image

PHOTO_QUALITY = 85


@dataclass(frozen=True)
class TableRow:
    """A head: its numbers in percent, each a mean and the deviation over splits (None where there is one split)."""

    head: str
    title: str
    protocol: str
    sees: str
    numbers: Mapping[str, tuple[float, float | None]]  # by column


@dataclass(frozen=True)
class Picture:
    file: Path
    alt: str
    caption: str
    photos: bool = False  # a sheet of photos: wide, and embedded as JPEG, a tenth of the size of its PNG


@dataclass(frozen=True)
class Section:
    """One dataset under one encoder. A part holds pictures, or a sentence that says why there are none."""

    anchor: str
    title: str
    facts: Sequence[str]
    tables: Mapping[str, Sequence[TableRow]]
    parts: Mapping[str, Sequence[Picture | str]]


def render(title: str, intro: Sequence[str], sections: Sequence[Section]) -> str:
    links = "".join(f'<li><a href="#{escape(s.anchor)}">{escape(s.title)}</a></li>' for s in sections)
    body = [
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in intro),
        f"<nav><ul>{links}</ul></nav>" if len(sections) > 1 else "",
        *(_section(section) for section in sections),
    ]
    return PAGE.format(title=escape(title), style=_STYLE, body="\n".join(part for part in body if part))


def _section(section: Section) -> str:
    lines = [f'<section id="{escape(section.anchor)}">', f"<h2>{escape(section.title)}</h2>"]
    lines += [f"<p>{escape(fact)}</p>" for fact in section.facts]
    for name, rows in section.tables.items():
        lines += [f"<h3>{escape(name)}</h3>", _table(rows)]
    lines.append(_EXPLAINED)
    for name, content in section.parts.items():
        lines.append(f"<h3>{escape(name)}</h3>")
        lines += [f"<p>{escape(p)}</p>" if isinstance(p, str) else _picture(p) for p in content]
    return "\n".join([*lines, "</section>"])


def _table(rows: Sequence[TableRow]) -> str:
    """Heads down, numbers across; the best of each column stands out."""
    columns = list(dict.fromkeys(column for row in rows for column in row.numbers))
    # Compared as printed: two equal figures are both best.
    best = {column: f"{max(row.numbers[column][0] for row in rows if column in row.numbers):.1f}" for column in columns}
    heading = "".join(f'<th scope="col" class="n">{escape(column)}</th>' for column in columns)
    lines = []
    for row in rows:
        cells = "".join(_number(row.numbers.get(column), best[column]) for column in columns)
        name = f'<th scope="row">{escape(row.title)}<br><code>{escape(row.head)}</code></th>'
        lines.append(f"<tr>{name}{cells}<td>{escape(row.protocol)}</td><td>{escape(row.sees)}</td></tr>")
    return (
        '<div class="wide"><table>\n'
        f'<thead><tr><th scope="col">head</th>{heading}<th scope="col">protocol</th><th scope="col">sees</th>'
        f"</tr></thead>\n<tbody>\n{chr(10).join(lines)}\n</tbody></table></div>"
    )


def _number(value: tuple[float, float | None] | None, best: str) -> str:
    if value is None:
        return '<td class="n">–</td>'
    mean, spread = value
    text = f"{mean:.1f}"
    shown = f"<b>{text}</b>" if text == best else text
    return f'<td class="n">{shown}{"" if spread is None else f" <small>± {spread:.1f}</small>"}</td>'


def _picture(picture: Picture) -> str:
    kind = "sheet" if picture.photos else "chart"
    image = f'<img class="{kind}" alt="{escape(picture.alt)}" src="{_embedded(picture)}">'
    return f'<figure><div class="wide">{image}</div><figcaption>{escape(picture.caption)}</figcaption></figure>'


def _embedded(picture: Picture) -> str:
    content, media = picture.file.read_bytes(), "image/png"
    if picture.photos:
        squeezed = io.BytesIO()
        with Image.open(io.BytesIO(content)) as sheet:
            sheet.save(squeezed, format="JPEG", quality=PHOTO_QUALITY)
        content, media = squeezed.getvalue(), "image/jpeg"
    return f"data:{media};base64,{base64.b64encode(content).decode('ascii')}"


_EXPLAINED = (
    '<p class="small">R@k: share of the queries asked, in percent, with a true place among their first k answers; '
    "mean over replicas and splits, ± standard deviation over splits.</p>"
)

_STYLE = """
:root { color-scheme: light dark; --paper: #fdfdfc; --ink: #1c2126; --faint: #5a636c; --line: #dfe3e7;
  --accent: #1f6f4a; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #15181b; --ink: #e6e9ec; --faint: #9aa4ad; --line: #30363c; --accent: #7fd1a5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 68rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: .5rem 0 1rem; }
h2 { font-size: 1.3rem; margin: 3rem 0 .6rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p { max-width: 44rem; margin: .4rem 0; }
a { color: var(--accent); }
small, .small, figcaption { color: var(--faint); font-size: .875rem; }
figure { margin: .6rem 0 1.4rem; }
figcaption { max-width: 44rem; margin-top: .4rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; min-width: 20rem; }
th, td { text-align: left; padding: .4rem 1.2rem .4rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
thead th { color: var(--faint); font-weight: 500; font-size: .875rem; }
tbody th { font-weight: 400; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td b { color: var(--accent); }
code { font-family: ui-monospace, monospace; font-size: .85rem; color: var(--faint); }
img { display: block; width: 100%; height: auto; border: 1px solid var(--line); border-radius: .3rem; }
.chart { max-width: 44rem; }
.sheet { min-width: 40rem; }
"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
