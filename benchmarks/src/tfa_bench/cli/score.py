"""`tfa bench score`: what recorded rankings come to, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfa.cli import options
from tfa.cli.console import console, format_count, note, open_table, print_json, say
from tfa.errors import BadSpec
from tfa_bench.cli.results import ScoreEntry

if TYPE_CHECKING:
    from tfa.evaluate.metrics import Paired
    from tfa_bench.scores import Estimate, Scored

    Differences = dict[int, Paired]  # number of a row → its difference to the head compared with


def whole_numbers(text: str) -> str:
    """`1,5,10`, checked where it is read, so that a slip is a usage error."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r} is not allowed; give whole numbers from 1 on, such as 1,5,10")
    return ",".join(parts)


def score_records(
    results: Annotated[
        Path,
        typer.Argument(
            metavar="RESULTS", help="A folder of records, as written by [bold]tfa bench run[/bold]; or one archive."
        ),
    ],
    dataset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this dataset; may be given several times.")
    ] = None,
    head: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this head; may be given several times.")
    ] = None,
    encoder: Annotated[str | None, typer.Option(metavar="ID", help="Only records under this encoder.")] = None,
    ks: Annotated[
        str, typer.Option(metavar="K,K,…", callback=whole_numbers, help="Recall among the first so many answers.")
    ] = "1,5,10,20",
    skip_unanswerable: Annotated[
        bool,
        typer.Option(
            "--skip-unanswerable", help="Leave out queries without positives, rather than count them as missed."
        ),
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="HEAD", help="Also show how R@1 differs from this head's, on the queries both were evaluated on."
        ),
    ] = None,
    json: options.AsJson = False,
) -> None:
    """Score recorded rankings: recall, mean average precision, precision against recall. No model is loaded."""
    from tfa_bench.scores import score_folder

    heads = [*head, against] if head and against else head
    scored = score_folder(
        results,
        ks=[int(k) for k in ks.split(",")],
        unanswerable="skip" if skip_unanswerable else "miss",
        datasets=dataset,
        heads=heads,
        encoder=encoder,
    )
    differences = compared(scored, against) if against else {}
    if json:
        print_json([_entry(one, against, differences.get(row)) for row, one in enumerate(scored)])
        return
    show_scores(scored, against, differences)


def show_scores(scored: Sequence[Scored], against: str | None = None, differences: Differences | None = None) -> None:
    """A table for each dataset and encoder; rows of one come after one another."""
    rows = list(enumerate(scored))
    for _, group in groupby(rows, key=lambda row: (row[1].dataset, row[1].encoder)):
        _show(list(group), against, differences or {})


def compared(scored: Sequence[Scored], against: str) -> Differences:
    """Each row against the head of that name under the same dataset and encoder, where there is one."""
    from tfa_bench.scores import paired

    others = {(one.dataset, one.encoder): one for one in scored if one.head == against}
    if not others:
        there = ", ".join(sorted({one.head for one in scored}))
        raise BadSpec(f"there is no record of head {against!r} to compare with; there are {there}")
    differences = {}
    for row, one in enumerate(scored):
        other = others.get((one.dataset, one.encoder))
        if other is None:
            note(f"{one.dataset} under {one.encoder} has no record of {against}: {one.head} is not compared")
        elif other is not one:
            differences[row] = paired(one, other)
    return differences


def _entry(one: Scored, against: str | None, difference: Paired | None) -> ScoreEntry:
    compared = {} if difference is None else {"against": {**difference.to_dict(), "head": against}}
    return ScoreEntry.from_dict({**one.to_dict(), **compared})


def _show(rows: Sequence[tuple[int, Scored]], against: str | None, differences: Differences) -> None:
    first = rows[0][1]
    say(f"{first.dataset_title} ({first.dataset}), {first.encoder}", style="bold")
    averaged = f", recall averaged over {format_count(len(first.strata), 'condition')}" if first.strata else ""
    queries = _queries([one for _, one in rows])
    say(f"{format_count(first.database, 'image')}, {queries}{averaged}; in percent, R@1 with its 95 % interval")
    compare = against is not None and any(row in differences for row, _ in rows)
    recalls = [f"R@{k}" for k in first.ks]
    numeric = [*recalls, "mAP", "PR area", "R at 99 % P", *([f"R@1 - {against}"] if compare else [])]
    table = open_table()
    for column in ("head", "data used", *numeric):
        table.add_column(column, justify="right" if column in numeric else "left", overflow="fold")
    for row, one in rows:
        accepted = [_percent(one.acceptance.area), _percent(one.acceptance.recall_at_99)]
        precision = "-" if one.mean_average_precision is None else _percent(one.mean_average_precision)
        difference = [_difference(differences.get(row))] if compare else []
        table.add_row(one.head, one.sees, *_recalls(one), precision, *accepted, *difference)
        for name, own in one.conditions.items():
            table.add_row(f"  {name}", "", *(_percent(own[k]) for k in one.ks), style="dim")
    console().print(table)
    for text in dict.fromkeys(one.refused for _, one in rows if one.refused):
        note(f"no mAP: {text}")
    say()


def _queries(scored: Sequence[Scored]) -> str:
    from tfa_bench.scores import UNANSWERABLE

    text = format_count(scored[0].queries, "query").replace("querys", "queries")
    without = max(one.without_positives for one in scored)  # a head with a budget is evaluated on fewer
    return f"{text} ({UNANSWERABLE[scored[0].unanswerable]}: {without:,})" if without else text


def _recalls(one: Scored) -> list[str]:
    cells = []
    for k in one.ks:
        recall = one.recalls[k]
        cell = _percent(recall)
        if k == 1:
            deviation = f" ± {100 * recall.sd:.1f}" if len(one.seeds) > 1 else ""
            cell += f"{deviation} [{100 * one.interval.low:.1f}, {100 * one.interval.high:.1f}]"
        cells.append(cell)
    return cells


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.mean:.1f}"


def _difference(paired: Paired | None) -> str:
    if paired is None:
        return ""
    return f"{100 * paired.mean:+.1f} [{100 * paired.low:+.1f}, {100 * paired.high:+.1f}]"
