"""The failure explorer as one HTML file: `templates/explorer.html`, its scripts and the pictures inside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tfa.bench.evaluation.judgement import Judgement
from tfa.bench.explorer.content import page_content
from tfa.bench.explorer.photos import addresses, small_pictures
from tfa.core.files import write_text
from tfa.core.progress import Progress
from tfa.report.html import ReportTable, render_template
from tfa.report.page import plan_view_script
from tfa.version import __version__

HERE = Path(__file__).parent
TEMPLATE = HERE / "templates" / "explorer.html"
UPLOT = HERE / "vendor" / "uplot"
# In the order in which they need each other, after the plan that pages share; all have one scope.
SCRIPTS = (
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
    given = {hit.image for run in judgement.runs for answer in run.given for hit in answer.hits}
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
            "\n".join([plan_view_script(), *((TEMPLATE.parent / name).read_text("utf-8") for name in SCRIPTS)])
        ),
    )
    write_text(Path(path), page)


def embedded_json(value: Any) -> Markup:
    """JSON that can stand in a script element: no name of a file ends it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))
