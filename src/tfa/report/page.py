"""Write the report on a map, and the plan of a drive with its loops, as one HTML file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from tfa.core.files import write_text
from tfa.errors import BadImage
from tfa.online.closed_path import close_path
from tfa.online.sequence_filter import project_to_meters
from tfa.photos.images import as_rgb
from tfa.report.html import TEMPLATES, bars, embed_json, embed_photo, render_template
from tfa.types import LoopsResult, Position

PLAN_VIEW = Path(__file__).parent / "templates" / "plan_view.js"  # ES module, for pages with a server


def plan_view_script() -> str:
    """Return the plan view without exports, for a page in one file."""
    return re.sub(r"^export ", "", PLAN_VIEW.read_text("utf-8"), flags=re.MULTILINE)


_SHOWN = 12  # groups, hubs and isolated images to show
IN_GROUP = 6  # images of a group to show
THUMB = 160  # longest side of a thumbnail, in pixels


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write the result of `collect_report` as an HTML page."""
    facts, counts = report["map"], report["returned_by"]
    placed = f"{facts['positions']:,} with a position" if facts["positions"] else "without positions"
    removed = f"; {facts['removed_images']:,} removed since the last fit" if facts["removed_images"] else ""
    calibrations = ", ".join(one["name"] for one in facts["calibrations"]) or "none"
    page = render_template(
        TEMPLATES / "map.html",
        title=f"Report on {facts['name'] or 'a map'}",
        headline=report["headline"],
        intro=[],
        contents=[
            f"{facts['images']:,} images, {placed}{removed}. Encoder {facts['encoder']['id']}; stored as "
            f"{facts['storage']}; calibrations: {calibrations}."
        ],
        report=report,
        repeated=sum(len(group["images"]) - 1 for group in report["duplicates"]),
        histogram=counts
        and bars(np.bincount(counts).tolist(), "queries that return it", "images", "How often images are returned"),
        thumbnail=_thumbnail,
        names=lambda path: Path(path).name,
        shown=_SHOWN,
        in_group=IN_GROUP,
    )
    write_text(Path(path), page)


def write_loops_page(
    path: Path, result: LoopsResult, names: Sequence[str], positions: Sequence[Position | None]
) -> None:
    """Draw a drive before and after its loops; without positions, plot frames against earlier frames."""
    placed = {node: one for node, one in enumerate(positions) if one is not None}
    track: list[list[float] | None] = [[0, 0], [len(names), len(names)]]
    ends: list[tuple[list[float] | None, ...]] = [([float(one.query), one.match],) * 2 for one in result.pairs]
    closed: list[list[float]] = []
    intro = [f"{len(result.pairs):,} of {result.frames:,} frames show an earlier place."]
    hint = "Each dot is a loop: frame number to the right, earlier frame upward. Click one to see its frames."
    kinds = {one.is_global for one in placed.values()}
    if len(kinds) == 1:
        pairs = np.array([one.pair for one in placed.values()])
        points = dict(zip(placed, (project_to_meters(*pairs.T) if True in kinds else pairs).tolist(), strict=True))
        track = [points.get(node) for node in range(len(names))]
        ends = [(track[one.query], track[one.match]) for one in result.pairs]
        rows = {node: row for row, node in enumerate(points)}
        before = np.array([*points.values()])
        known = [(rows[one.query], rows[one.match]) for one in result.pairs if {one.query, one.match} <= rows.keys()]
        after = close_path(before, known)
        closed = after.tolist()
        intro.append(
            f"Closed by its loops, the path changes by up to {np.linalg.norm(after - before, axis=1).max():.1f} m."
        )
        hint = "Gray: the path before. Blue: closed by its loops. Click the end of a loop to see its frames."
    texts = [f"{names[one.query]} shows {names[one.match]}" for one in result.pairs]
    loops = [(*end, text) for end, text in zip(ends, texts, strict=True) if None not in end]
    page = render_template(
        TEMPLATES / "loops.html", title="Loops of a drive", hint=hint, script=Markup(plan_view_script()),
        intro=intro, content=embed_json({"track": track, "closed": closed, "loops": loops}),
    )  # fmt: skip
    write_text(path, page)


def _thumbnail(path: str) -> str | None:
    """Return the data URL of a thumbnail; None if the photo is missing or broken."""
    try:
        photo = as_rgb(Path(path))
    except (BadImage, OSError):
        return None
    photo.thumbnail((THUMB, THUMB))
    return embed_photo(photo)
