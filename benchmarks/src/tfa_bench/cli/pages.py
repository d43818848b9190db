"""Score, print or draw records: `tfa bench score`, `table`, `results`, `figures` and `explore`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfa.cli import options
from tfa.cli.console import console, format_count, note, open_table, print_json, print_text, say
from tfa.errors import BadSpec
from tfa_bench.cli.results import ScoreEntry

if TYPE_CHECKING:
    from tfa.evaluate.metrics import Paired
    from tfa_bench.scores import Estimate, Scored

    Differences = dict[int, Paired]  # row index → its difference to the head compared with
    from tfa_bench.tables.table import Table


# --- score ---------------------------------------------------------------------------------------------------------


def whole_numbers(text: str) -> str:
    """Check a list like `1,5,10` while parsing, so that a typo is a usage error."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r} is not a list of positive integers, such as 1,5,10")
    return ",".join(parts)


def score_records(
    results: Annotated[
        Path,
        typer.Argument(
            metavar="RESULTS", help="Folder or archive of records, as written by [bold]tfa bench run[/bold]."
        ),
    ],
    dataset: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this dataset; repeatable.")] = None,
    head: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this head; repeatable.")] = None,
    encoder: Annotated[str | None, typer.Option(metavar="ID", help="Only records under this encoder.")] = None,
    ks: Annotated[
        str, typer.Option(metavar="K,K,…", callback=whole_numbers, help="Values of k for recall at k.")
    ] = "1,5,10,20",
    skip_unanswerable: Annotated[
        bool,
        typer.Option(
            "--skip-unanswerable", help="Leave out queries without positives instead of counting them as misses."
        ),
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(metavar="HEAD", help="Also show the difference in R@1 to this head, on shared queries."),
    ] = None,
    replica: Annotated[
        str | None, typer.Option(metavar="NAME", help="Score only this seed, such as 0. [default: mean of all]")
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
        replica=replica,
    )
    differences = compared(scored, against) if against else {}
    if json:
        print_json([_entry(one, against, differences.get(row)) for row, one in enumerate(scored)])
        return
    show_scores(scored, against, differences)


def show_scores(scored: Sequence[Scored], against: str | None = None, differences: Differences | None = None) -> None:
    """Print a table for each dataset and encoder."""
    rows = list(enumerate(scored))
    for _, group in groupby(rows, key=lambda row: (row[1].dataset, row[1].encoder)):
        _show(list(group), against, differences or {})


def compared(scored: Sequence[Scored], against: str) -> Differences:
    """Compare each row with the named head on the same dataset and encoder, if recorded."""
    from tfa_bench.scores import paired

    others = {(one.dataset, one.encoder): one for one in scored if one.head == against}
    if not others:
        there = ", ".join(sorted({one.head for one in scored}))
        raise BadSpec(f"no record of head {against!r} to compare with; recorded: {there}")
    differences = {}
    for row, one in enumerate(scored):
        other = others.get((one.dataset, one.encoder))
        if other is None:
            note(f"{one.dataset} under {one.encoder} has no record of {against}; {one.head} is not compared")
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
    say(f"{format_count(first.database, 'image')}, {queries}{averaged}; percent, R@1 with its 95 % interval")
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
    without = max(one.without_positives for one in scored)  # a head with a budget is evaluated on fewer queries
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


# --- tables, pages and figures -------------------------------------------------------------------------------------


class Name(StrEnum):
    """Names of the layouts in tfa_bench.tables.table_specs, and `all`."""

    product = "product"
    overview = "overview"
    primary = "primary"
    aerial = "aerial"
    native = "native"
    spectral = "spectral"
    ground_backbones = "ground-backbones"
    full_query = "full-query"
    aerial_access = "aerial-access"
    budgets = "budgets"
    paired = "paired"
    comparisons = "comparisons"
    decisions = "decisions"
    ablation = "ablation"
    heads = "heads"
    all = "all"


class Format(StrEnum):
    markdown = "markdown"
    csv = "csv"
    latex = "latex"


def table(
    name: Annotated[
        Name, typer.Argument(metavar="NAME", show_default=False, help="Table to print, or all; listed above.")
    ],
    records: Annotated[
        Path, typer.Option(metavar="RESULTS", help="Folder of records, as written by [bold]tfa bench run[/bold].")
    ] = Path("results"),
    encoder: Annotated[str | None, typer.Option(metavar="ID", help="Only records under this encoder.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write NAME.md, NAME.csv and NAME.tex there.")
    ] = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.markdown,
    no_paper: Annotated[bool, typer.Option("--no-paper", help="Leave out the paper's figures.")] = False,
    both: Annotated[
        bool,
        typer.Option("--both", help="spectral: controls under both assignments, not only the one TFA-FullQ chose."),
    ] = False,
) -> None:
    """Print recorded results in a layout of the paper, next to its published figures.

    Tables: product, overview, primary, aerial, native, spectral, ground-backbones, full-query, aerial-access, budgets,
    paired, comparisons, decisions, ablation, heads. No model is loaded.
    """
    from tfa_bench.tables.table import FORMATS, write_table

    if out is not None:
        options.check_writable(out / "table.md")
    _, render = FORMATS[format.value]
    for i, made in enumerate(_tables(name, records, encoder, paper=not no_paper, both=both)):
        print_text(("\n" if i else "") + render(made))
        if out is not None:
            for path in write_table(made, out):
                note(f"wrote {path}")


def _tables(name: Name, records: Path, encoder: str | None, *, paper: bool, both: bool) -> list[Table]:
    """Return the requested table, or for `all` every table that has records."""
    from tfa_bench.tables.analyses import read_paired
    from tfa_bench.tables.table import NoTable, read_cells
    from tfa_bench.tables.table_specs import LAYOUTS, layout

    cells = read_cells(records, encoder=encoder)
    if name in (Name.paired, Name.all):
        cells += read_paired(records, encoder=encoder)
    if name is not Name.all:
        return [layout(name.value, cells, paper=paper, both=both)]
    made = []
    for one in LAYOUTS:
        try:
            made.append(layout(one, cells, paper=paper, both=both))
        except NoTable as error:
            note(*error.lines)
    if not made:
        raise NoTable(f"no table can be made from the records of {records}")
    return made


def results(
    records: Annotated[
        Path, typer.Option(metavar="RESULTS", help="Folder of records, as written by [bold]tfa bench run[/bold].")
    ] = Path("results"),
    encoder: Annotated[
        str, typer.Option(metavar="ID", help="Encoder of the records to show.")
    ] = "dinov2-s14-focus@322",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", dir_okay=False, help="Write the page to this file instead of printing it."),
    ] = None,
    command: Annotated[
        str, typer.Option(metavar="COMMAND", help="Command that made the records, shown on the page.")
    ] = "make results DATA=data",
) -> None:
    """Write every table of a folder of records as one Markdown page."""
    from tfa.core.files import write_text
    from tfa_bench.tables.page import results_page

    if out is not None:
        options.check_writable(out)
    page = results_page(records, encoder=encoder, command=command)
    if out is None:
        print_text(page)
        return
    write_text(out, page)
    note(f"wrote {out}")


def figures(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS", help="Records, as written by [bold]tfa bench run[/bold].")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Output folder for report.html and the figures.")],
    photos: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="Image folder of a dataset, to show its photos; repeatable."),
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Draw only this dataset; repeatable. [default: all]")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(metavar="ID", help="Draw only records under this encoder. [default: all]")
    ] = None,
    reference: Annotated[
        str, typer.Option(metavar="HEAD", help="Head whose successes and failures are compared with the others.")
    ] = "tfa",
    rows: Annotated[int, typer.Option(min=1, help="Maximum queries in a grid of photos.")] = 6,
) -> None:
    """Draw curves, evidence, score matrices and answers of records, as PNG and HTML files."""
    folders = dict(_named_folder(text) for text in photos or [])
    options.check_writable(out / "report.html")

    from tfa_bench.figures.report import write_figures

    written = write_figures(
        results, out, photos=folders, datasets=dataset or None, encoder=encoder, reference=reference, rows=rows
    )
    say(f"{written[-1]}: {format_count(len(written) - 1, 'figure')}, each also a PNG file below {out}")


def _named_folder(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise typer.BadParameter(f"{text!r} is not NAME=PATH, for example sped=datasets/SPED", param_hint="--photos")
    return name, Path(path)


def explore(
    records: Annotated[
        list[Path],
        typer.Option(
            metavar="RECORD|FOLDER",
            help="Records of one dataset (files or folders), as written by [bold]tfa bench run[/bold]; repeatable.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE.html", dir_okay=False, help="Output file.")],
    head: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this head; repeatable, shown in this order.")
    ] = None,
    photos: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of the dataset, for photos and positions.")
    ] = None,
    split: Annotated[int, typer.Option(min=0, help="Split to show, for heads with several.")] = 0,
    quiet: options.Quiet = False,
) -> None:
    """Write the failure explorer of recorded heads: confident errors first, two heads side by side.

    No model is loaded; photos are read only for display.
    """
    options.check_writable(out)

    from tfa.evaluate.explorer import describe_judgement, write_explorer
    from tfa_bench.judge_records import judge_records
    from tfa_bench.scores import table_of_scores

    judged = judge_records(records, heads=head or (), photos=photos, split=split)
    for text in judged.notes:
        note(text)
    facts = [*describe_judgement(judged.judgement), *judged.notes]
    names = [run.name for run in judged.judgement.runs]
    table = table_of_scores(judged.scored, names)
    progress = not quiet
    write_explorer(out, judged.judgement, table, facts, progress=progress)
    queries = max(len(run.evaluated_answers) for run in judged.judgement.runs)
    say(f"{out}: {format_count(len(names), 'head')} on {queries:,} queries of {judged.truth.title}")
