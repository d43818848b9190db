"""Retrieval grids: queries down, heads across, the best answer of each in a green (right) or red (wrong) frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tfa.bench.figures.record_groups import BestAnswers, Study
from tfa.bench.records import Truth
from tfa.core.files import write_atomically
from tfa.errors import BadSpec
from tfa.explain.draw_montage import EDGE, GAP, INK, PAPER, TILE, TITLE, MontageRow, MontageTile, compose, elide

ROWS = 6
PARTS = 3  # rows come from each third of the queries
HEADER = 38  # pixels above the grid for the names of the columns


@dataclass(frozen=True)
class Grid:
    """What one grid shows, before anything is drawn."""

    queries: tuple[int, ...]
    eligible: int  # queries it was chosen from
    heads: tuple[str, ...]
    answers: Mapping[str, BestAnswers]


def choose(study: Study, heads: Sequence[str], *, successes: bool, rows: int = ROWS) -> Grid:
    """Queries the first head answers rightly and some other wrongly, or the reverse, evaluated for every head."""
    if rows < 1:
        raise BadSpec(f"rows={rows} is out of range: a grid has at least 1 row")
    answers = {head: BestAnswers.of(study.records[head], study.truth) for head in heads}
    reference, *others = answers.values()
    evaluated = np.logical_and.reduce([answer.evaluated for answer in answers.values()])
    differing = np.zeros(len(evaluated), bool)
    for other in others:
        differing |= other.right != reference.right
    eligible = np.flatnonzero(evaluated & differing & (reference.right == successes))
    return Grid(tuple(spread_out(eligible, len(evaluated), rows)), len(eligible), tuple(heads), answers)


def spread_out(eligible: np.ndarray, queries: int, rows: int) -> list[int]:
    """At most `rows` of the eligible queries, equally many from each third of all queries where there are enough.

    The choice is ours and uses no chance: a third that gives k rows gives the middles of k equal runs.
    """
    edges = [queries * part // PARTS for part in range(PARTS + 1)]
    thirds = [eligible[(eligible >= low) & (eligible < high)] for low, high in pairwise(edges)]
    counts = [0] * PARTS
    while sum(counts) < min(rows, len(eligible)):
        # The next row comes from the third that has given least; what one third lacks the others make up for.
        open_parts = [part for part in range(PARTS) if counts[part] < len(thirds[part])]
        counts[min(open_parts, key=lambda part: counts[part])] += 1
    return [
        int(third[(2 * i + 1) * len(third) // (2 * count)])
        for third, count in zip(thirds, counts, strict=True)
        for i in range(count)
    ]


def draw_grid(grid: Grid, truth: Truth, photos: Path) -> Image.Image:
    """The grid as a picture; a photo that is not below `photos` is an empty box with its name."""
    rows = [
        MontageRow(
            photos / truth.queries[query],
            f"query {query}: {truth.queries[query]}",
            [_tile(grid.answers[head], query, truth, photos) for head in grid.heads],
        )
        for query in grid.queries
    ]
    body = compose(rows)
    sheet = Image.new("RGB", (body.width, body.height + HEADER), PAPER)
    sheet.paste(body, (0, HEADER))
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=TITLE + 3)
    pen.text((EDGE, EDGE), "query", font=font, fill=INK)
    for column, head in enumerate(grid.heads):
        pen.text((_left(column), EDGE), elide(head, TILE[0], TITLE + 3), font=font, fill=INK)
    return sheet


def write_grid(grid: Grid, truth: Truth, photos: Path, path: Path) -> None:
    sheet = draw_grid(grid, truth, photos)
    write_atomically(path, lambda temporary: sheet.save(temporary, format="PNG"))


def _left(column: int) -> int:
    """Where a column of answers begins; the montage puts a double gap after the query."""
    return EDGE + TILE[0] + 2 * GAP + column * (TILE[0] + GAP)


def _tile(answers: BestAnswers, query: int, truth: Truth, photos: Path) -> MontageTile:
    image = int(answers.image[query])
    if image < 0:
        return MontageTile(None, ["no answer", "wrong"], "bad")
    right = bool(answers.right[query])
    # The word beside the colour is for those who cannot tell green from red.
    words = [truth.database[image], "right" if right else "wrong"]
    return MontageTile(photos / truth.database[image], words, "good" if right else "bad")
