"""One answer at a glance: the query, the photo of the map that answers it, their matches, and where that is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from tfa.core.files import write_atomically
from tfa.demo.town import Town
from tfa.explain.draw_matches import FINER, MATCH_EDGE, draw_matches
from tfa.explain.draw_montage import FAINT, GREY, INK, PAPER, font
from tfa.explain.why import explain_match
from tfa.maps import PlaceMap
from tfa.types import Answer

PLAN = 384  # side of the plan, as high as the photos beside it
_MARGIN = 28  # within the plan
DOT, RING, LETTERS = 4, 11, 24
ANSWERED, TRUE = "#d9480f", "#1864ab"  # where the answer is; where the query was taken


def draw_answer(out: Path, town: Town, place_map: PlaceMap, answer: Answer) -> None:
    """Written to `out`, a PNG or JPEG file."""
    found = explain_match(place_map, Path(answer.query))
    matches = draw_matches(Path(found.query), Path(found.hit.image), found.matches, found.grid, found.grid)
    number = town.query_files.index(Path(answer.query).name)
    row = town.reference_files.index(Path(found.hit.image).name)
    there, taken = town.reference_positions[row], town.query_positions[number]
    sheet = Image.new("RGB", (matches.width + PLAN + MATCH_EDGE, matches.height), PAPER)
    sheet.paste(matches, (0, 0))
    sheet.paste(_plan(town.reference_positions, there, taken), (matches.width, MATCH_EDGE))
    pen, middle = ImageDraw.Draw(sheet), matches.width + PLAN / 2
    said = f"{'sure, ' if found.hit.sure else ''}confidence {found.hit.confidence:.2f}"
    pen.text((middle, MATCH_EDGE + PLAN + 8), said, font=font(LETTERS), fill=INK, anchor="ma")
    away = f"{np.linalg.norm(there - taken):.1f} m from where it was taken"
    pen.text((middle, MATCH_EDGE + PLAN + 8 + LETTERS + 10), away, font=font(LETTERS), fill=FAINT, anchor="ma")
    write_atomically(out, lambda temporary: sheet.save(temporary, format="PNG", optimize=True))


def _plan(references: np.ndarray, there: np.ndarray, taken: np.ndarray) -> Image.Image:
    """The map's photos as dots, the answer as a large one, the query as a ring; drawn large, then reduced."""
    side, low = PLAN * FINER, references.min(axis=0)
    scale = (PLAN - 2 * _MARGIN) / max(np.ptp(references, axis=0).max(), 1e-9)
    spare = (PLAN - scale * np.ptp(references, axis=0)) / 2  # the shorter side stands in the middle

    def placed(position: np.ndarray) -> np.ndarray:
        x, y = spare + scale * (position - low)
        return FINER * np.array([x, PLAN - y])  # north is up

    plan = Image.new("RGB", (side, side), PAPER)
    pen = ImageDraw.Draw(plan)
    pen.rectangle((0, 0, side - 1, side - 1), outline=GREY, width=FINER)

    def circle(position: np.ndarray, radius: float, **style: object) -> None:
        x, y = placed(position)
        pen.ellipse((x - radius * FINER, y - radius * FINER, x + radius * FINER, y + radius * FINER), **style)  # type: ignore[arg-type]

    for position in references:
        circle(position, DOT, fill=FAINT)
    circle(there, RING - 3, fill=ANSWERED)
    circle(taken, RING, outline=TRUE, width=3 * FINER)
    for line, (text, colour) in enumerate((("answer", ANSWERED), ("query taken here", TRUE))):
        top = (PLAN - _MARGIN - 10 - (1 - line) * 26) * FINER
        pen.text((12 * FINER, top), text, font=font(20 * FINER), fill=colour, anchor="la")
    return plan.resize((PLAN, PLAN), Image.Resampling.LANCZOS)
