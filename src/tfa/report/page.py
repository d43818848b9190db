"""The report on a map: one HTML file that needs nothing but itself. Every text is escaped, every picture embedded."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from tfa.base.files import write_text
from tfa.bench.figures.page import PAGE
from tfa.errors import BadImage
from tfa.photos.images import open_image
from tfa.report.plots import bars, curves, scatter
from tfa.report.style import STYLE

SHOWN = 12  # groups, hubs and lonely images shown
IN_GROUP = 6
THUMB = 160  # longest side of a small picture


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write what `report_of` collected as a page."""
    write_text(Path(path), render(report))


def render(report: Mapping[str, Any]) -> str:
    facts, evidence = report["map"], report["evidence"]
    title = f"Report on {facts['name'] or 'a map'}"
    body = [
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in _opening(facts)),
        _section("Advice", _list(report["advice"]) or "<p>Nothing to do: the map is as it should be.</p>"),
        _section("Decisions", _decisions(evidence)),
        _section("Evidence", "".join(_plots(evidence))),
        _section("Near duplicates", _duplicates(report)),
        _section("Hubs", _hubs(report)),
        _section("Images that nothing else resembles", _lonely(report)),
        f'<p class="small">tfa {escape(report["tfa"])}; map revision {facts["revision"]}.</p>',
    ]
    return PAGE.format(title=escape(title), style=STYLE, body="\n".join(body))


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>"


def _opening(facts: Mapping[str, Any]) -> list[str]:
    placed = f"{facts['positions']:,} with a position" if facts["positions"] else "positions unknown"
    made = ", ".join(one["name"] for one in facts["calibrations"]) or "none"
    return [
        f"{facts['images']:,} images, {placed}; {facts['removed_images']:,} removed since the head was fitted.",
        f"Encoder {facts['encoder']['id']}; stored as {facts['storage']}; calibrations: {made}.",
        *facts["notes"],
    ]


def _list(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>" if sentences else ""


def _decisions(evidence: Mapping[str, Any]) -> str:
    made, reasons = evidence["decisions"], evidence["reasons"]
    rows = [
        ("assignment", made["assignment"], reasons.get("assignment", "")),
        ("carrier", made["carrier"], reasons.get("carrier", "")),
        ("global token", "admitted" if made["admit_cls"] else "left out", reasons.get("admit_cls", "")),
        ("strengths", f"c {made['c']:.3f}, β {made['beta']:.3f}", reasons.get("strengths", "")),
    ]
    cells = "".join(
        f'<dt>{escape(name)}: <b>{escape(str(value))}</b></dt><dd class="small">{escape(why)}</dd>'
        for name, value, why in rows
    )
    return f"<dl>{cells}</dl>"


def _plots(evidence: Mapping[str, Any]) -> list[str]:
    points = [
        (one["support"], float(np.mean(one["agreement"])), one["name"], "chosen" if one["chosen"] else "dot")
        for one in evidence["candidates"]
    ]
    alt = "Support against agreement of every candidate"
    caption = (
        "Every way to score that was weighed: how many distinct images its pseudo queries reach (support) against how "
        "often its three vocabularies give the same answer (agreement). Filled: chosen."
    )
    drawn = [_figure(scatter(points, "support", "mean agreement", alt, labels=True), caption)] if points else []
    spectrum = evidence["spectrum"]
    if spectrum is not None and spectrum["eigenvalues"]:
        values, gamma = spectrum["eigenvalues"], spectrum["gamma"]
        shaped = [value ** (1 - gamma) if value > 0 else 0.0 for value in values]
        # Both start at 1, so that their fall can be compared.
        lines = [("as it is", [v / values[0] for v in values], "line")]
        lines.append((f"shaped, γ = {gamma:.2f}", [v / shaped[0] for v in shaped], "chosen"))
        caption = (
            f"Spectrum of the residuals relative to its largest value: the first {len(values)} of {spectrum['rank']} "
            f"directions; spectral width {spectrum['participation']:.1f}. Shaping lifts the directions that vary less."
        )
        drawn.append(_figure(curves(lines, "direction", "variance", "Spectrum and its shaping"), caption))
    pairs = evidence["similarity"]
    if pairs is not None:
        spots = [(x, y, "", "dot") for x, y in zip(pairs["original"], pairs["final"], strict=True)]
        caption = "The same pairs of the map's images: similarity of the residuals as they are, and the final score."
        drawn.append(_figure(scatter(spots, "original similarity", "final score", "Original and final"), caption))
    return drawn


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def _duplicates(report: Mapping[str, Any]) -> str:
    groups = report["duplicates"]
    if not groups:
        return f"<p>No two images are alike by a cosine of {report['near']:.2f} or more.</p>"
    count = sum(len(group["images"]) - 1 for group in groups)
    shown = "".join(_strip(group["images"][:IN_GROUP], len(group["images"])) for group in groups[:SHOWN])
    return f"<p>{count:,} images nearly repeat another, in {len(groups):,} groups.{_more(groups)}</p>{shown}"


def _hubs(report: Mapping[str, Any]) -> str:
    told = (
        f"<p>{report['asked']:,} images were asked for with themselves hidden; each returned its "
        f"{report['answers']} best others.</p>"
    )
    if report["returned_by"]:
        counts = np.bincount(report["returned_by"])
        svg = bars(counts.tolist(), "returned by so many images", "images", "How often images are returned")
        told += _figure(svg, "How many images are returned how often. A long tail to the right: hubs.")
    if not report["hubs"]:
        return told + "<p>No image is returned far more often than is usual.</p>"
    images = report["hubs"]
    note = lambda image: f"returned by {image['returned_by']}"  # noqa: E731
    return told + f"<p>{len(images):,} hubs.{_more(images)}</p>" + _strip(images[:SHOWN], 0, note)


def _lonely(report: Mapping[str, Any]) -> str:
    images = report["lonely"]
    if not images:
        return "<p>None: every image has another that resembles it as is usual here.</p>"
    note = lambda image: f"nearest {image['cosine']:.2f}"  # noqa: E731
    return f"<p>{len(images):,} images.{_more(images)}</p>" + _strip(images[:SHOWN], 0, note)


def _more(things: Sequence[Any]) -> str:
    return f" The first {SHOWN} are shown." if len(things) > SHOWN else ""


def _strip(images: Sequence[Mapping[str, Any]], whole: int, note: Callable[[Any], str] | None = None) -> str:
    """Small pictures side by side, each with its id and name."""
    tiles = []
    for image in images:
        told = f"{image['id']} · {image['image']}" + (f" · {note(image)}" if note else "")
        tiles.append(f'<figure class="tile">{_thumb(image["path"])}<figcaption>{escape(told)}</figcaption></figure>')
    left = whole - len(images)
    return f'<div class="strip">{"".join(tiles)}{f"<p>and {left} more</p>" if left > 0 else ""}</div>'


def _thumb(path: str) -> str:
    try:
        photo = open_image(Path(path))
    except (BadImage, OSError):
        return '<div class="gone">photo is gone</div>'
    photo.thumbnail((THUMB, THUMB))
    held = io.BytesIO()
    photo.save(held, format="JPEG", quality=75)
    return f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(held.getvalue()).decode("ascii")}">'
