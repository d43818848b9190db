"""How `tfa query` prints its answers: as JSON, as tables, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tfa.cli.console import console, format_count, note, open_table, say, show_error
from tfa.core.text import LATER_HITS, describe_order
from tfa.types import QueryOptions

if TYPE_CHECKING:
    from tfa.types import Answers

_FOLDED = ("query", "image", "best image", "position", "place")  # columns of any length
ONE_BY_ONE = 3  # up to so many queries get a table of their own
NEVER_SURE = (
    "no answer was verified, so none is sure; --rerank verifies them, if the map was built with patches to do so"
)
MONTAGE_ROWS = 60  # a taller picture is no longer a picture


def end_with_errors(answers: Sequence[Any], unread: Sequence[str] = ()) -> None:
    """The exit code is 1 if a photo could not be read; `unread` says why frames of a recording could not."""
    failed = [*unread, *(answer.error for answer in answers if answer.error is not None)]
    for error in failed:
        show_error(error)
    if failed:
        raise typer.Exit(1)


def show_answers(answers: Answers, k: int, least: QueryOptions) -> None:
    """A table each, or one for all with what they say together; how rows are ordered; what else is to be known."""
    if len(answers) > ONE_BY_ONE:
        show_many(answers.answers, k, least)
        show_together(answers)
    else:
        for answer in answers:
            show_one(answer, least)
    show_order(answers.answers)
    if least.sure and not any(answer.reranked for answer in answers):
        note(NEVER_SURE)
    most = max((answer.adaptation_photos or 0 for answer in answers), default=0)
    if most:
        note(
            "each photo is answered in the light of those before it, the last adapted by "
            f"{format_count(most, 'photo')}; --no-online answers each by the map alone"
        )


def show_order(answers: Sequence[Any]) -> None:
    """The footer of the tables."""
    answered = [answer for answer in answers if answer.hits]
    if answered:
        drive = any(answer.lost is not None for answer in answered)
        rule = describe_order(verified=any(answer.reranked for answer in answered), sequence=drive)
        say(f"{rule} {LATER_HITS}", style="dim")


def show_together(answers: Answers) -> None:
    """How many photos like these will be recognised, and whether they are unlike those the map is made for."""

    expected = answers.expected_recall
    if expected is not None:
        say(str(expected))
    if answers.notice is not None:
        say(answers.notice, style="yellow")


def _no_place(answer: Any, least: QueryOptions) -> str:
    if answer.error is not None:
        return "not readable"
    if (answer.lost or 0.0) > answer.confidence:
        return f"lost (probability {answer.lost:.2f})"
    if least.sure:
        return f"not sure (confidence {answer.confidence:.2f})"
    return f"no place (confidence {answer.confidence:.2f} below {least.min_confidence:.2f})"


def show_one(answer: Any, least: QueryOptions) -> None:
    say(answer.name, style="bold")
    if not answer.hits:
        say(f"  {_no_place(answer, least)}", style="yellow")
        return
    columns = _columns([answer])
    table = open_table("", "image", *columns, fold=_FOLDED)
    for rank, hit in enumerate(answer.hits, 1):
        table.add_row(str(rank), *_cells(hit, columns))
    console().print(table)
    if answer.place is not None:
        share = f"{100 * answer.place.share:.0f} % of what speaks for the verified images"
        say(f"  place: {answer.place} ({share}; {format_count(answer.place.images, 'image')})")
    elif any(hit.position is not None for hit in answer.hits):
        say(f"  no place: {answer.place_missing}", style="yellow")


def show_many(answers: Sequence[Any], k: int, least: QueryOptions) -> None:
    columns, placed = _columns(answers), any(answer.place is not None for answer in answers)
    table = open_table("query", "best image", *columns, *(["place"] if placed else []), fold=_FOLDED)
    for answer in answers:
        query = answer.name
        if answer.hits:
            table.add_row(query, *_cells(answer.hits[0], columns), *([str(answer.place or "–")] if placed else []))
        else:
            table.add_row(query, _no_place(answer, least), style="yellow")
    console().print(table)
    answered = sum(bool(answer.hits) for answer in answers)
    say(f"{answered:,} of {format_count(len(answers), 'photo')} answered")
    if k > 1 and answered:
        note(f"the best hit of each photo is shown; --json prints all {k}")


def _columns(answers: Sequence[Any]) -> tuple[str, ...]:
    verified = any(hit.inliers is not None for answer in answers for hit in answer.hits)
    return ("id", "score", "confidence", *(["inliers"] if verified else []), "position")


def _cells(hit: Any, columns: Sequence[str]) -> tuple[str, ...]:
    position = "" if hit.position is None else str(hit.position)
    inliers = ["–" if hit.inliers is None else str(hit.inliers)] if "inliers" in columns else []
    confidence = f"{hit.confidence:.2f}" + (" sure" if hit.sure else "")
    return hit.image, str(hit.id), f"{hit.score:.4f}", confidence, *inliers, position


def write_montage(path: Path, answers: Sequence[Any], least: QueryOptions) -> None:
    from tfa.explain.draw_montage import MontageRow, MontageTile, draw_montage, format_matches

    rows = []
    for answer in answers[:MONTAGE_ROWS]:
        file = Path(answer.query)
        title = answer.name if answer.hits else f"{answer.name}: {_no_place(answer, least)}"
        tiles = []
        for hit in answer.hits:
            where = [] if hit.position is None else [str(hit.position)]
            numbers = f"score {hit.score:.4f}, confidence {hit.confidence:.2f}"
            lines = [Path(hit.image).name, numbers, *format_matches(hit.inliers), *where]
            tiles.append(MontageTile(Path(hit.image), lines))
        rows.append(MontageRow(file, title, tiles))
    draw_montage(rows, path)
    left_out = len(answers) - len(rows)
    note(f"montage: {path}" + (f" (without the last {format_count(left_out, 'photo')})" if left_out else ""))
