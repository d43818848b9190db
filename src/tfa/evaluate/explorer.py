"""Write the failure explorer: one HTML page with its scripts and thumbnails.

Thumbnails are embedded, or written to a folder next to the page if they are large. The terminal prints the same summary
rows.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from tfa.core.arrays import map_in_threads
from tfa.core.files import write_atomically, write_text
from tfa.core.progress import Progress, as_progress
from tfa.errors import BadImage
from tfa.evaluate.judgement import PROBABILITY, EvaluatedHead, JudgedAnswer, Judgement, Metres, Run, list_hubs
from tfa.evaluate.positives import position_kinds
from tfa.maps.confidence import SURE_CONFIDENCE
from tfa.photos.images import as_rgb
from tfa.report.html import ReportTable, TableRow, embed_json, render_template
from tfa.report.page import plan_view_script
from tfa.types import Position
from tfa.version import __version__


def describe_judgement(judgement: Judgement) -> list[str]:
    """Describe the images, the queries, and what counts as right."""
    facts = [f"{len(judgement.images):,} images, {len(judgement.queries):,} queries. Right answers: {judgement.rule}."]
    if judgement.not_in_map:
        facts.append(f"{judgement.not_in_map:,} queries show places that are not in the map; they count as missed.")
    if judgement.flags:
        facts.append(f"Queries are answered as by tfa query {judgement.flags}.")
    return facts


def score_row(head: EvaluatedHead) -> dict[str, str]:
    """Return a row of the terminal's table by column."""
    row = {"head": head.name + (" *" if head.active else ""), "queries": f"{head.evaluated:,}"}
    row |= {column: f"{value:.1f}" for column, value in _percent(head).items()}
    row["R@1"] += f" [{100 * head.interval.low:.1f}, {100 * head.interval.high:.1f}]"
    return row | _in_words(head)


def _percent(head: EvaluatedHead) -> dict[str, float]:
    shares = {f"R@{k}": recall for k, recall in head.recalls.items()}
    shares |= {"PR area": head.acceptance.area, "R at 99 % P": head.acceptance.recall_at_99}
    return {column: 100 * share for column, share in shares.items()}


def _in_words(head: EvaluatedHead) -> dict[str, str]:
    sure, expected = head.sure, head.expected_recall
    if expected is None:
        return {}
    share, low, high = (100 * value for value in (expected.share, expected.low, expected.high))
    holds = "holds" if expected.holds else "does not hold"
    unanswered = {"no answer": f"{head.unanswered:,}"} if head.unanswered else {}
    return unanswered | {
        "sure and right": f"{sure.right:,} of {sure.answers:,}" if sure.answers else "–",
        "expected recall": f"{share:.0f} ({low:.0f}–{high:.0f}), {holds}",
    }


def distance_row(head: str, metres: Metres) -> dict[str, str]:
    """Return a row of the terminal's distance table by column."""
    row = {"head": head, "placed": f"{metres.placed:,} of {metres.queries:,}"}
    every = metres.best_of_all if metres.placed < metres.queries else None  # otherwise equal to the best
    for name, spread in (("place", metres.fused), ("best answer", metres.best), ("every best answer", every)):
        if spread is not None:
            row |= {f"{name}: median": f"{spread.median:,.1f}", f"{name}: 90 %": f"{spread.ninety:,.1f}"}
    if metres.within_radius is not None:
        row["within radius"] = f"{100 * metres.within_radius:.0f} %"
    if metres.fused_agreed is not None:
        sharp = metres.fused_agreed
        row |= {"agreed": f"{metres.agreed:,}", "agreed: median": f"{sharp.median:,.1f}"}
        row["agreed: 90 %"] = f"{sharp.ninety:,.1f}"
    return row


def score_table(heads: Sequence[EvaluatedHead]) -> ReportTable:
    """Return the table at the top of the page."""
    numbers = [{column: (value, None) for column, value in _percent(head).items()} for head in heads]
    rows = zip(heads, numbers, strict=True)
    return ReportTable([TableRow(head.title, percent, _in_words(head), head.name) for head, percent in rows])


def short_names(paths: Sequence[str]) -> list[str]:
    """Return paths relative to their common folder."""
    folders = {os.path.dirname(path) for path in paths}
    common = os.path.commonpath(folders) if folders and len({os.path.isabs(one) for one in folders}) == 1 else ""
    return [os.path.relpath(path, common) if common else path for path in paths]


SIDE = 256  # longer side of a thumbnail in pixels
QUALITY = 72  # JPEG quality
INSIDE = 16_000_000  # maximum bytes of embedded thumbnails; more go into a folder
OURS = re.compile(r"[0-9a-f]{20}\.jpg")  # names of thumbnails in that folder


def _draw_thumbnail(path: Path) -> bytes | None:
    """Return a JPEG thumbnail; None if the photo is missing or broken."""
    try:
        photo = as_rgb(path)
    except BadImage:
        return None
    photo.thumbnail((SIDE, SIDE))
    held = io.BytesIO()
    photo.save(held, format="JPEG", quality=QUALITY)
    return held.getvalue()


def addresses(pictures: Mapping[str, bytes], page: Path) -> dict[str, str]:
    """Return the address of each thumbnail: embedded, or in the folder `PAGE_files`, which is written."""
    if sum(map(len, pictures.values())) <= INSIDE:
        return {
            name: f"data:image/jpeg;base64,{base64.b64encode(content).decode('ascii')}"
            for name, content in pictures.items()
        }
    folder = page.with_name(f"{page.stem}_files")
    kept = {name: f"{hashlib.sha256(content).hexdigest()[:20]}.jpg" for name, content in pictures.items()}
    for name, file in kept.items():
        if not (folder / file).is_file():  # named by content: an existing file is identical
            write_atomically(folder / file, lambda path, name=name: path.write_bytes(pictures[name]))  # type: ignore[misc]
    for old in folder.iterdir():  # delete thumbnails of an earlier page
        if OURS.fullmatch(old.name) and old.name not in kept.values():
            old.unlink()
    return {name: f"{folder.name}/{file}" for name, file in kept.items()}


_GLOBE, _PLANE, ORDER = "globe", "plane", "order"
EARTH = 6_371_008.8  # mean radius in meters
APART = 0.6  # distance between the rows of images and queries without positions, as a fraction of the route's length


def page_content(judgement: Judgement, shown: int = 0) -> dict[str, Any]:
    """Return the page's data without thumbnails; `shown` is the run that the page opens with."""
    images = list(judgement.images)
    row_of = {name: row for row, name in enumerate(images)}
    kind, places, of_queries = _plan(list(judgement.images.values()), [query.position for query in judgement.queries])
    queries = [
        {
            "number": query.number,
            "place": place,
            "degrees": _pair(query.position),
            "true": row_of.get(query.true_image or "", -1),
            "inMap": query.in_map,
            "condition": query.condition,
        }
        for query, place in zip(judgement.queries, of_queries, strict=True)
    ]
    return {
        "title": judgement.title,
        "plan": kind,
        "shown": shown,
        "beside": 1 - shown if len(judgement.runs) == 2 else -1,
        "images": {
            "names": short_names(images),
            "places": places,
            "degrees": [_pair(position) for position in judgement.images.values()],
        },
        "queryNames": short_names([query.query for query in judgement.queries]),
        "queries": queries,
        "runs": [_run(run, row_of) for run in judgement.runs],
    }


def _run(run: Run, row_of: Mapping[str, int]) -> dict[str, Any]:
    # The initial threshold is that of sure answers for probabilities, else the median confidence.
    known = [answer.confidence for answer in run.evaluated_answers if answer.confidence is not None]
    usual = float(np.median(known)) if known else 0.0
    return {
        "name": run.name,
        "title": run.title,
        "kind": run.kind,
        "grid": run.grid,
        "threshold": SURE_CONFIDENCE if run.kind == PROBABILITY else usual,
        "hubs": [[row_of[hub.image], hub.wrong, hub.right] for hub in list_hubs(run.evaluated_answers)],
        "answers": [_answer(answer, row_of) for answer in run.answers],
    }


def _answer(answer: JudgedAnswer | None, row_of: Mapping[str, int]) -> list[Any] | None:
    """Return confidence and sureness of the best hit, and all hits.

    A hit is image, right, confidence, inliers, meters and lines, without unknown values at the end.
    """
    if answer is None:
        return None
    hits = []
    for hit in answer.hits:
        rounded = [None if value is None else round(value, 4) for value in (hit.confidence, hit.inliers, hit.distance)]
        values = [row_of[hit.image], int(hit.right), *rounded, list(answer.lines.get(hit.image, ())) or None]
        while values[-1] is None:
            values.pop()
        hits.append(values)
    return [answer.confidence, int(answer.sure), hits]


def _pair(position: Position | None) -> list[float] | None:
    """Return longitude and latitude, or x and y."""
    if position is None:
        return None
    first, second = position.pair
    return [second, first] if position.is_global else [first, second]


def _plan(images: Sequence[Position | None], queries: Sequence[Position | None]) -> tuple[str, list[Any], list[Any]]:
    """Return the kind of plan, and the points of images and queries in meters, east and north.

    If images or queries have no positions, they are drawn in two rows in file order.
    """
    kinds = position_kinds([*images, *queries])
    if len(kinds) != 1 or not any(images) or not any(queries):
        step = max(len(images) - 1, 1) / max(len(queries) - 1, 1)
        below = [[round(at * step, 2), -APART * max(len(images), 2)] for at in range(len(queries))]
        return ORDER, [[at, 0] for at in range(len(images))], below
    pairs = [_pair(position) for position in (*images, *queries)]
    known = np.array([pair for pair in pairs if pair is not None], np.float64)
    kind, metres = _PLANE, known - known[0]
    if True in kinds:
        kind = _GLOBE
        metres[:, 0] = (metres[:, 0] + 180) % 360 - 180  # wrap: a town across the 180th meridian stays in one piece
        # Equirectangular around the mean latitude: a town has its usual shape.
        metres *= np.radians(1) * EARTH * np.array([np.cos(np.radians(known[:, 1].mean())), 1.0])
    points = iter(metres.tolist())
    placed = [None if pair is None else [round(value, 2) for value in next(points)] for pair in pairs]
    return kind, placed[: len(images)], placed[len(images) :]


HERE = Path(__file__).parent
TEMPLATE = HERE / "templates" / "explorer.html"
UPLOT = HERE / "vendor" / "uplot"
# In order of dependency, after the shared plan script; all have one scope.
_SCRIPTS = (
    "elements.js", "answers.js", "pictures.js", "detail.js", "plan.js", "curve.js", "list.js", "files.js", "keys.js",
)  # fmt: skip


def write_explorer(
    path: Path,
    judgement: Judgement,
    table: ReportTable,
    facts: Sequence[str],
    *,
    shown: int = 0,
    progress: bool | Progress | None = None,
) -> None:
    """Write the page of an evaluation, with `table` and `facts` at its top; it opens with the run `shown`."""
    content = page_content(judgement, shown)
    images, queries = list(judgement.images), [query.query for query in judgement.queries]
    given = {hit.image for run in judgement.runs for answer in run.evaluated_answers for hit in answer.hits}
    given |= {name for query in judgement.queries for name in (query.query, query.true_image) if name is not None}
    wanted = [name for name in dict.fromkeys([*queries, *images]) if name in given and name in judgement.files]
    with as_progress(progress).task("drawing thumbnails", len(wanted), "photos") as task:
        drawn = map_in_threads(lambda name: _draw_thumbnail(judgement.files[name]), wanted, task=task)
    where = addresses({name: one for name, one in zip(wanted, drawn, strict=True) if one is not None}, path)
    photos = {"queries": [where.get(name) for name in queries], "images": [where.get(name) for name in images]}
    styles = (UPLOT / "uPlot.min.css", TEMPLATE.parent / "explorer.css")
    scripts = [plan_view_script(), *((TEMPLATE.parent / name).read_text("utf-8") for name in _SCRIPTS)]
    page = render_template(
        TEMPLATE,
        title=f"Failures of {judgement.title}",
        intro=list(facts),
        table=table,
        judgement=judgement,
        release=__version__,
        content=embed_json(content),
        photos=embed_json(photos),
        styles=Markup("".join(file.read_text("utf-8") for file in styles)),
        uplot=Markup((UPLOT / "uPlot.iife.min.js").read_text("utf-8")),
        licence=(UPLOT / "LICENSE").read_text("utf-8"),
        scripts=Markup("\n".join(scripts)),
    )
    write_text(Path(path), page)
