"""Write the failure explorer: one HTML file of `templates/explorer.html`, its scripts and small photos.

Photos are inside the page, or in a folder next to it if they are large. Names are listed once, places are meters on a
plan. The summary rows are the same on the terminal.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from tfa.core.arrays import map_in_threads
from tfa.core.files import write_atomically, write_text
from tfa.core.progress import Progress, as_progress
from tfa.errors import BadImage
from tfa.evaluate.judgement import PROBABILITY, JudgedAnswer, JudgedHit, Judgement, Metres, Run, RunScores, score_run
from tfa.evaluate.positives import position_kinds
from tfa.maps.confidence import SURE_CONFIDENCE
from tfa.photos.images import as_rgb
from tfa.report.html import ReportTable, TableRow, render_template
from tfa.report.page import plan_view_script
from tfa.types import Position
from tfa.version import __version__


def describe_judgement(judgement: Judgement) -> list[str]:
    """What was asked, and what counts as right."""
    facts = [
        f"{len(judgement.images):,} images, {len(judgement.queries):,} queries; an answer is right: {judgement.rule}."
    ]
    if judgement.not_in_map:
        facts.append(f"{judgement.not_in_map:,} queries have no true place in the map; they count as missed.")
    return facts


def score_row(run: Run, numbers: RunScores, active: bool = False) -> dict[str, str]:
    """A row of the table on the terminal, by column."""
    low, high = numbers.interval.low, numbers.interval.high
    recalls = {f"R@{k}": f"{100 * recall:.1f}" for k, recall in numbers.recalls.items()}
    recalls["R@1"] += f" [{100 * low:.1f}, {100 * high:.1f}]"
    return {
        "head": run.name + (" *" if active else ""),
        "queries": f"{numbers.evaluated:,}",
        **recalls,
        "PR area": f"{100 * numbers.curve.area:.1f}",
        "R at 99 % P": f"{100 * numbers.curve.recall_at_precision(0.99):.1f}",
        **_in_words(numbers),
    }


def _in_words(numbers: RunScores) -> dict[str, str]:
    sure = "–" if not numbers.sure else f"{numbers.sure_and_right:,} of {numbers.sure:,}"
    words = {"sure and right": sure}
    expected = numbers.expected
    if expected is None:
        return {}
    holds = "holds" if numbers.expectation_holds else "does not hold"
    words["expected recall"] = (
        f"{100 * expected.share:.0f} ({100 * expected.low:.0f}–{100 * expected.high:.0f}), {holds}"
    )
    return words


def distance_row(run: Run, metres: Metres) -> dict[str, str]:
    """A row of the table of distances on the terminal, by column."""
    row = {"head": run.name, "placed": f"{metres.placed:,} of {metres.queries:,}"}
    every = metres.best_of_all if metres.placed < metres.queries else None  # else it is that of the placed
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


def score_table(runs: Sequence[tuple[Run, RunScores]]) -> ReportTable:
    """The table at the top of the page."""
    rows = []
    for run, numbers in runs:
        percent: dict[str, tuple[float, float | None]] = {
            f"R@{k}": (100 * recall, None) for k, recall in numbers.recalls.items()
        }
        percent["PR area"] = (100 * numbers.curve.area, None)
        percent["R at 99 % P"] = (100 * numbers.curve.recall_at_precision(0.99), None)
        rows.append(TableRow(run.title, percent, _in_words(numbers), run.name))
    return ReportTable(rows)


def short_names(paths: Sequence[str]) -> list[str]:
    """Paths below what all have in common."""
    folders = {os.path.dirname(path) for path in paths}
    common = os.path.commonpath(folders) if folders and len({os.path.isabs(one) for one in folders}) == 1 else ""
    return [os.path.relpath(path, common) if common else path for path in paths]


SIDE = 256  # pixels of the longer side
QUALITY = 72
INSIDE = 16_000_000  # bytes of pictures that a page holds itself; more go into a folder
OURS = re.compile(r"[0-9a-f]{20}\.jpg")


def small_pictures(
    files: Mapping[str, Path], names: Sequence[str], progress: bool | Progress | None = None
) -> dict[str, bytes]:
    """A small JPEG of each name that has a photo; one that is missing or broken has none."""
    wanted = [name for name in dict.fromkeys(names) if name in files]
    with as_progress(progress).task("drawing small pictures", len(wanted), "photos") as task:
        made = map_in_threads(lambda name: _small(files[name]), wanted, task=task)
    return {name: content for name, content in zip(wanted, made, strict=True) if content is not None}


def _small(path: Path) -> bytes | None:
    try:
        photo = as_rgb(path)
    except (BadImage, OSError):
        return None
    photo.thumbnail((SIDE, SIDE))
    held = io.BytesIO()
    photo.save(held, format="JPEG", quality=QUALITY)
    return held.getvalue()


def addresses(pictures: Mapping[str, bytes], page: Path) -> dict[str, str]:
    """Where the page finds each picture: in itself, or in the folder `PAGE_files` that is written beside it."""
    if sum(map(len, pictures.values())) <= INSIDE:
        return {
            name: f"data:image/jpeg;base64,{base64.b64encode(content).decode('ascii')}"
            for name, content in pictures.items()
        }
    folder = page.with_name(f"{page.stem}_files")
    kept = {name: f"{hashlib.sha256(content).hexdigest()[:20]}.jpg" for name, content in pictures.items()}
    for name, file in kept.items():
        if not (folder / file).is_file():  # named by their content: one that is there is the same
            write_atomically(folder / file, partial(_put, pictures[name]))
    for old in folder.iterdir():  # of an earlier page of this name
        if OURS.fullmatch(old.name) and old.name not in kept.values():
            old.unlink()
    return {name: f"{folder.name}/{file}" for name, file in kept.items()}


def _put(content: bytes, path: Path) -> None:
    path.write_bytes(content)


_GLOBE, _PLANE, ORDER = "globe", "plane", "order"
EARTH = 6_371_008.8  # metres: mean radius
APART = 0.6  # of the route's length: between the rows of queries and images that are drawn in their order


def page_content(judgement: Judgement, shown: int = 0) -> dict[str, Any]:
    """All but the pictures; `shown` is the run that the page opens with."""
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
        "runs": [_run(judgement, run, row_of) for run in judgement.runs],
    }


def _run(judgement: Judgement, run: Run, row_of: Mapping[str, int]) -> dict[str, Any]:
    numbers = score_run(judgement, run)
    return {
        "name": run.name,
        "title": run.title,
        "kind": run.kind,
        "grid": run.grid,
        "threshold": _threshold(run),
        "hubs": [[row_of[hub.image], hub.wrong, hub.right] for hub in numbers.hubs],
        "answers": [_answer(answer, row_of) for answer in run.answers],
    }


def _answer(answer: JudgedAnswer | None, row_of: Mapping[str, int]) -> list[Any] | None:
    """Confidence of the best, whether it is sure, and the hits."""
    if answer is None:
        return None
    return [answer.confidence, int(answer.sure), [_hit(hit, row_of) for hit in answer.hits]]


def _hit(hit: JudgedHit, row_of: Mapping[str, int]) -> list[Any]:
    """Image, right, confidence, inliers, metres, lines; what is unknown at the end is left out."""
    rounded = [None if value is None else round(value, 4) for value in (hit.confidence, hit.inliers, hit.distance)]
    values = [row_of[hit.image], int(hit.right), *rounded, list(hit.lines) or None]
    while values[-1] is None:
        values.pop()
    return values


def _threshold(run: Run) -> float:
    """Where the page begins: what is called sure of probabilities, else the median confidence."""
    if run.kind == PROBABILITY:
        return SURE_CONFIDENCE
    known = [answer.confidence for answer in run.evaluated_answers if answer.confidence is not None]
    return float(np.median(known)) if known else 0.0


def _pair(position: Position | None) -> list[float] | None:
    """Longitude and latitude, or x and y."""
    if position is None:
        return None
    first, second = position.pair
    return [second, first] if position.is_global else [first, second]


def _plan(images: Sequence[Position | None], queries: Sequence[Position | None]) -> tuple[str, list[Any], list[Any]]:
    """Return the kind of the plan and its points in meters, east and north; None without a plan.

    Where images or queries have no positions, they stand in two rows in the order of their files.
    """
    kinds = position_kinds([*images, *queries])
    if len(kinds) != 1 or not any(images) or not any(queries):
        step = max(len(images) - 1, 1) / max(len(queries) - 1, 1)
        below = [[round(at * step, 2), -APART * max(len(images), 2)] for at in range(len(queries))]
        return ORDER, [[at, 0] for at in range(len(images))], below
    pairs = [_pair(position) for position in (*images, *queries)]
    known = np.array([pair for pair in pairs if pair is not None], np.float64)
    origin = known[0]
    kind = _GLOBE if True in kinds else _PLANE
    # Equirectangular around the mean latitude: a town looks as it does on any map.
    scale = np.ones(2)
    if kind == _GLOBE:
        scale = np.radians(1) * EARTH * np.array([np.cos(np.radians(known[:, 1].mean())), 1.0])
    placed = [None if pair is None else _metres(np.array(pair) - origin, scale, kind) for pair in pairs]
    return kind, placed[: len(images)], placed[len(images) :]


def _metres(offset: np.ndarray, scale: np.ndarray, kind: str) -> list[float]:
    if kind == _GLOBE:  # the shorter way round: a town across the 180th meridian stays one town
        offset = np.array([(offset[0] + 180) % 360 - 180, offset[1]])
    return [round(float(value), 2) for value in offset * scale]


HERE = Path(__file__).parent
TEMPLATE = HERE / "templates" / "explorer.html"
UPLOT = HERE / "vendor" / "uplot"
# In the order in which they need each other, after the plan that pages share; all have one scope.
_SCRIPTS = (
    "elements.js",
    "answers.js",
    "pictures.js",
    "detail.js",
    "plan.js",
    "curve.js",
    "list.js",
    "files.js",
    "keys.js",
)


def write_explorer(
    path: Path,
    judgement: Judgement,
    table: ReportTable,
    facts: Sequence[str],
    *,
    shown: int = 0,
    progress: bool | Progress | None = None,
) -> None:
    """Write the page of a judgement; `table` and `facts` stand at its top, `shown` is the run that it opens with."""
    content = page_content(judgement, shown)
    images, queries = list(judgement.images), [query.query for query in judgement.queries]
    given = {hit.image for run in judgement.runs for answer in run.evaluated_answers for hit in answer.hits}
    given |= {query.true_image for query in judgement.queries if query.true_image is not None}
    pictures = small_pictures(judgement.files, [*queries, *(name for name in images if name in given)], progress)
    where = addresses(pictures, path)
    photos = {"queries": [where.get(name) for name in queries], "images": [where.get(name) for name in images]}
    page = render_template(
        TEMPLATE,
        title=f"Failures of {judgement.title}",
        intro=list(facts),
        table=table,
        judgement=judgement,
        release=__version__,
        content=embedded_json(content),
        photos=embedded_json(photos),
        styles=Markup(
            (UPLOT / "uPlot.min.css").read_text("utf-8") + (TEMPLATE.parent / "explorer.css").read_text("utf-8")
        ),
        uplot=Markup((UPLOT / "uPlot.iife.min.js").read_text("utf-8")),
        licence=(UPLOT / "LICENSE").read_text("utf-8"),
        scripts=Markup(
            "\n".join([plan_view_script(), *((TEMPLATE.parent / name).read_text("utf-8") for name in _SCRIPTS)])
        ),
    )
    write_text(Path(path), page)


def embedded_json(value: Any) -> Markup:
    """JSON that can stand in a script element: no name of a file ends it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))
