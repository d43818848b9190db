"""Write the report on a map as one HTML file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from tfa.core.files import write_text
from tfa.errors import BadImage
from tfa.maps.describe import format_reason
from tfa.photos.images import as_rgb
from tfa.report.collect import list_heads
from tfa.report.html import TEMPLATES, ReportDecision, bars, curves, embed_photo, render_template, scatter

PLAN_VIEW = Path(__file__).parent / "templates" / "plan_view.js"  # ES module, for pages with a server


def plan_view_script() -> str:
    """Return the plan view without exports, for a page in one file."""
    return re.sub(r"^export ", "", PLAN_VIEW.read_text("utf-8"), flags=re.MULTILINE)


_SHOWN = 12  # groups, hubs and isolated images to show
IN_GROUP = 6  # images of a group to show
THUMB = 160  # longest side of a thumbnail, in pixels


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write the result of `collect_report` as an HTML page."""
    facts, evidence, counts = report["map"], report["evidence"], report["returned_by"]
    placed = f"{facts['positions']:,} with a position" if facts["positions"] else "without positions"
    removed = f"; {facts['removed_images']:,} removed since the last fit" if facts["removed_images"] else ""
    calibrations = ", ".join(one["name"] for one in facts["calibrations"]) or "none"
    page = render_template(
        TEMPLATES / "map.html",
        title=f"Report on {facts['name'] or 'a map'}",
        headline=report["headline"],
        intro=[
            f"{facts['images']:,} images, {placed}{removed}. Encoder {facts['encoder']['id']}; stored as "
            f"{facts['storage']}; calibrations: {calibrations}.",
            *facts["notes"],
        ],
        report=report,
        heads=[(head["title"], _decisions(head["decided"])) for head in list_heads(facts)],
        plots=list(_plots(evidence)),
        repeated=sum(len(group["images"]) - 1 for group in report["duplicates"]),
        histogram=counts
        and bars(np.bincount(counts).tolist(), "queries that return it", "images", "How often images are returned"),
        thumbnail=_thumbnail,
        names=lambda path: Path(path).name,
        shown=_SHOWN,
        in_group=IN_GROUP,
    )
    write_text(Path(path), page)


def _decisions(rows: Sequence[Mapping[str, Any]]) -> list[ReportDecision]:
    return [ReportDecision(row["name"], row["choice"], format_reason(row), row["about"]) for row in rows]


def _plots(evidence: Mapping[str, Any]) -> Iterator[tuple[Markup, str]]:
    """Draw the evidence; yield each plot with its caption."""
    points = [
        (one["support"], float(np.mean(one["agreement"])), one["name"], "chosen" if one["chosen"] else "dot")
        for one in evidence["candidates"]
        if "support" in one
    ]
    if points:
        alt = "Support against agreement of every candidate"
        yield (
            scatter(points, "support", "mean agreement", alt, labels=True),
            "Candidate heads: how many distinct images their self-test queries reach (support) against how often their "
            "three vocabularies give the same answer (agreement). The chosen one is highlighted.",
        )
    spectrum = evidence["spectrum"]
    if spectrum is not None and spectrum["eigenvalues"]:
        values, gamma = spectrum["eigenvalues"], spectrum["gamma"]
        shaped = [value ** (1 - gamma) if value > 0 else 0.0 for value in values]
        # Scale both to start at 1, so that their decay can be compared.
        drawn = [("original", [v / values[0] for v in values], "line")]
        if gamma:
            drawn.append((f"shaped, γ = {gamma:.2f}", [v / shaped[0] for v in shaped], "chosen"))
        yield (
            curves(drawn, "direction", "variance", "Spectrum and its shaping"),
            f"Variance of the descriptors by direction, relative to the largest: the first {len(values)} of "
            f"{spectrum['rank']} directions; spectral width {spectrum['participation']:.1f}."
            + (" Shaping raises directions with less variance." if gamma else ""),
        )
    pairs = evidence["similarity"]
    if pairs is not None:
        spots = [(x, y, "", "dot") for x, y in zip(pairs["original"], pairs["final"], strict=True)]
        yield (
            scatter(spots, "original similarity", "final score", "Original similarity and final score"),
            "Pairs of map images: similarity of the original descriptors, and the final score.",
        )


def _thumbnail(path: str) -> str | None:
    """Return the data URL of a thumbnail; None if the photo is missing or broken."""
    try:
        photo = as_rgb(Path(path))
    except (BadImage, OSError):
        return None
    photo.thumbnail((THUMB, THUMB))
    return embed_photo(photo)
