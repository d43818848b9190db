"""Draw the demo's images and write its report, a single HTML file, from `templates/demo.html`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from tfa.core.files import write_atomically, write_text
from tfa.demo.sample import SampleTown
from tfa.explain.draw_matches import FINER, MATCH_EDGE, draw_matches, format_caption
from tfa.explain.draw_montage import FAINT, GRAY, INK, PAPER, font
from tfa.explain.why import explain_match
from tfa.maps import PlaceMap
from tfa.report.html import ReportTable, TableRow, render_template
from tfa.types import Answer, ExplainResult

_TEMPLATE = Path(__file__).parent / "templates" / "demo.html"


@dataclass(frozen=True)
class MatchPicture:
    """A drawing of the matches between a query and an answer, with its caption."""

    picture: Path
    title: str
    text: str


def write_demo_report(path: Path, *, recalls: Sequence[TableRow], **parts: Any) -> None:
    """Write the report with embedded images and escaped text; `parts` are the other values of the template."""
    write_text(path, render_template(_TEMPLATE, recalls=ReportTable(recalls), **parts))


PLAN = 384  # side of the plan in pixels, as high as the photos next to it
MARGIN = 28  # margin within the plan, in pixels
DOT, _RING, _LETTERS = 4, 11, 24  # radii and font size, in pixels
ANSWERED, _TRUE = "#d9480f", "#1864ab"  # colors of the answer and the true position


def _draw_answer(out: Path, town: SampleTown, explained: ExplainResult, matches: Image.Image) -> None:
    """Write the drawn matches of an answer, with its position on the plan, to `out`."""
    number = town.query_files.index(Path(explained.query).name)
    row = town.reference_files.index(Path(explained.answer.image).name)
    there, taken = town.reference_positions[row], town.query_positions[number]
    sheet = Image.new("RGB", (matches.width + PLAN + MATCH_EDGE, matches.height), PAPER)
    sheet.paste(matches, (0, 0))
    sheet.paste(_plan(town.reference_positions, there, taken), (matches.width, MATCH_EDGE))
    pen, middle = ImageDraw.Draw(sheet), matches.width + PLAN / 2
    caption = f"{'recognized, ' if explained.answer.sure else ''}confidence {explained.answer.confidence:.2f}"
    pen.text((middle, MATCH_EDGE + PLAN + 8), caption, font=font(_LETTERS), fill=INK, anchor="ma")
    away = f"{np.linalg.norm(there - taken):.1f} m from the true position"
    pen.text((middle, MATCH_EDGE + PLAN + 8 + _LETTERS + 10), away, font=font(_LETTERS), fill=FAINT, anchor="ma")
    write_atomically(out, lambda temporary: sheet.save(temporary, format="PNG", optimize=True))


def _plan(references: np.ndarray, there: np.ndarray, taken: np.ndarray) -> Image.Image:
    """Draw map images as dots, the answer as a large dot and the true position as a ring."""
    side, low = PLAN * FINER, references.min(axis=0)
    scale = (PLAN - 2 * MARGIN) / max(np.ptp(references, axis=0).max(), 1e-9)
    spare = (PLAN - scale * np.ptp(references, axis=0)) / 2  # centers the shorter side

    plan = Image.new("RGB", (side, side), PAPER)
    pen = ImageDraw.Draw(plan)
    pen.rectangle((0, 0, side - 1, side - 1), outline=GRAY, width=FINER)

    def circle(position: np.ndarray, radius: float, **style: object) -> None:
        east, north = spare + scale * (position - low)
        x, y, reach = east * FINER, (PLAN - north) * FINER, radius * FINER  # north is up
        pen.ellipse((x - reach, y - reach, x + reach, y + reach), **style)  # type: ignore[arg-type]

    for position in references:
        circle(position, DOT, fill=FAINT)
    circle(there, _RING - 3, fill=ANSWERED)
    circle(taken, _RING, outline=_TRUE, width=3 * FINER)
    for line, (text, color) in enumerate((("answer", ANSWERED), ("true position", _TRUE))):
        top = (PLAN - MARGIN - 10 - (1 - line) * 26) * FINER
        pen.text((12 * FINER, top), text, font=font(20 * FINER), fill=color, anchor="la")
    return plan.resize((PLAN, PLAN), Image.Resampling.LANCZOS)


ANSWER = "answer.png"  # the most confident right answer with its position on the plan
PICTURES = {True: "matches-right.png", False: "matches-wrong.png"}


def draw_match_pictures(
    out: Path, town: SampleTown, place_map: PlaceMap, answers: Sequence[Answer]
) -> list[MatchPicture]:
    """Draw the right and the wrong answer of highest confidence, if any; nothing without compact tokens."""
    pictures, places = [], town.positives
    (out / ANSWER).unlink(missing_ok=True)  # remove images of an earlier run
    for right, name in PICTURES.items():
        picture = out / name
        picture.unlink(missing_ok=True)
        found_any = [answer for answer in answers if answer.hits]
        of_kind = [one for one in found_any if (Path(one.hits[0].image).name in places[Path(one.query).name]) == right]
        if not of_kind or place_map.state.compact is None:
            continue
        explanation = explain_match(place_map, Path(max(of_kind, key=lambda answer: answer.confidence).query))
        found, matches = explanation.result, explanation.matches
        query, image = Path(found.query), Path(found.answer.image)
        drawn = draw_matches(query, image, matches, found.grid, found.grid, picture)
        if right:
            picture = out / ANSWER
            _draw_answer(picture, town, found, drawn)
        title = f"{'Right' if right else 'Wrong'} answer of highest confidence"
        verdict = "shows the same place as" if right else "shows another place than"
        text = (
            f"{query.name} {verdict} {image.name}. Confidence {found.answer.confidence:.2f}; "
            f"{format_caption(matches)}; {found.view}."
        )
        pictures.append(MatchPicture(picture, title, text))
    return pictures
