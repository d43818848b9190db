"""The demo's report: one HTML file that needs nothing but itself."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from tfa.base.files import write_text
from tfa.bench.figures.page import PAGE
from tfa.errors import TfaError

MEDIA = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}


@dataclass(frozen=True)
class SummaryRow:
    """One method: recalls in percent, as `{1: 84.4, 5: 97.8}`."""

    method: str
    recalls: Mapping[int, float]
    sees: str = ""  # what the method was fitted on


@dataclass(frozen=True)
class Decision:
    """One thing the head decided: what, why in a sentence, and the numbers behind it."""

    name: str
    choice: str
    reason: str
    numbers: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class CloserLook:
    """A picture of the matches between a query and an answer, and what to see in it."""

    picture: Path
    title: str
    text: str


def write_report(
    path: Path,
    *,
    title: str,
    summary_rows: Sequence[SummaryRow],
    decisions: Sequence[Decision],
    montage_path: Path | None,
    notes: Sequence[str] = (),
    closer: Sequence[CloserLook] = (),
) -> None:
    """Write the report; pictures are embedded, every text is escaped."""
    parts = [
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(note)}</p>" for note in notes),
        _summary(summary_rows),
        _decisions(decisions),
        _montage(montage_path),
        _closer(closer),
    ]
    page = PAGE.format(title=escape(title), style=_STYLE, body="\n".join(part for part in parts if part))
    write_text(Path(path), page)


def _summary(rows: Sequence[SummaryRow]) -> str:
    """Methods down, recalls across; the best of each column stands out."""
    if not rows:
        return ""
    ranks = sorted({rank for row in rows for rank in row.recalls})
    best = {rank: max(row.recalls[rank] for row in rows if rank in row.recalls) for rank in ranks}
    sees = any(row.sees for row in rows)
    head = "".join(f'<th class="n">R@{rank}</th>' for rank in ranks)
    lines = []
    for row in rows:
        cells = "".join(_recall(row.recalls.get(rank), best[rank]) for rank in ranks)
        lines.append(f"<tr><td>{escape(row.method)}</td>{cells}{_cell(row.sees) if sees else ''}</tr>")
    return (
        '<h2>Recall</h2>\n<div class="wide"><table>\n'
        f"<thead><tr><th>method</th>{head}{'<th>fitted on</th>' if sees else ''}</tr></thead>\n"
        f"<tbody>\n{chr(10).join(lines)}\n</tbody></table></div>\n"
        '<p class="small">R@k: share of queries, in percent, with a true place among their first k answers.</p>'
    )


def _recall(value: float | None, best: float) -> str:
    if value is None:
        return '<td class="n">–</td>'
    text = f"{value:.1f}"
    # Compared as printed: two equal figures are both best.
    return f'<td class="n">{f"<b>{text}</b>" if text == f"{best:.1f}" else text}</td>'


def _cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"


def _decisions(decisions: Sequence[Decision]) -> str:
    if not decisions:
        return ""
    items = []
    for decision in decisions:
        numbers = "".join(
            f"<li><span>{escape(name)}</span> <code>{escape(_number(value))}</code></li>"
            for name, value in decision.numbers.items()
        )
        items.append(
            f"<dt>{escape(decision.name)}: <b>{escape(decision.choice)}</b></dt>\n<dd><p>{escape(decision.reason)}</p>"
            + (f'<ul class="numbers">{numbers}</ul>' if numbers else "")
            + "</dd>"
        )
    return f"<h2>Decisions</h2>\n<dl>\n{chr(10).join(items)}\n</dl>"


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _montage(path: Path | None) -> str:
    if path is None:
        return ""
    return (
        '<h2>Answers</h2>\n<p class="small">Each row: the query (blue frame), then its best hits. '
        "Green: a true place. Red: another place. Grey: not known.</p>\n"
        f'<div class="wide"><img alt="Queries and their best hits" src="{_embedded(path, "the montage")}"></div>'
    )


def _closer(looks: Sequence[CloserLook]) -> str:
    if not looks:
        return ""
    figures = "\n".join(
        f'<figure><img alt="{escape(look.title)}" src="{_embedded(look.picture, "the matches")}">'
        f"<figcaption><b>{escape(look.title)}.</b> {escape(look.text)}</figcaption></figure>"
        for look in looks
    )
    return (
        '<h2>Looking closer</h2>\n<p class="small">The query left, its best hit right. Lines join patches that are '
        "each other's most similar and move alike between the photos; the colour tells how high in the query they "
        f"are. Faint dots: most similar both ways too, but they move otherwise.</p>\n{figures}"
    )


def _embedded(path: Path, what: str) -> str:
    """A picture as an address that holds it."""
    media = MEDIA.get(path.suffix.lower())
    if media is None:
        raise TfaError(f"{path.name} cannot be embedded in a report: it must end in {', '.join(MEDIA)}")
    if not path.is_file():
        raise TfaError(f"{path} is not there; draw {what} before the report, or write the report without")
    return f"data:{media};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"


_STYLE = """
:root { color-scheme: light dark; --paper: #fdfdfc; --ink: #1c2126; --faint: #5a636c; --line: #dfe3e7; --shade: #f1f3f5;
  --accent: #1f6f4a; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #15181b; --ink: #e6e9ec; --faint: #9aa4ad; --line: #30363c; --shade: #1f2428; --accent: #7fd1a5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 62rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: .5rem 0 1rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); }
p { max-width: 44rem; margin: .4rem 0; }
.small { color: var(--faint); font-size: .875rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; min-width: 20rem; }
th, td { text-align: left; padding: .4rem 1.2rem .4rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--faint); font-weight: 500; font-size: .875rem; }
.n { text-align: right; font-variant-numeric: tabular-nums; }
td b { color: var(--accent); }
dt { margin-top: 1rem; } dt b { color: var(--accent); }
dd { margin: 0; } dd p { margin: .15rem 0 .35rem; }
.numbers { list-style: none; margin: 0; padding: 0; display: flex; flex-wrap: wrap; gap: .3rem .5rem;
  font-size: .85rem; }
.numbers li { background: var(--shade); border-radius: .3rem; padding: .1rem .5rem; }
.numbers span { color: var(--faint); }
code { font-family: ui-monospace, monospace; }
img { display: block; width: 100%; min-width: 40rem; height: auto; border: 1px solid var(--line);
  border-radius: .3rem; }
figure { margin: 1rem 0; } figure img { min-width: 0; max-width: 45rem; }
figcaption { max-width: 44rem; margin-top: .4rem; }
"""
