"""List the supported datasets, or check a copy of one: `tfa bench datasets` and `tfa bench check`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from tfa.cli import options
from tfa.cli.console import console, format_count, open_table, print_json, say
from tfa_bench.cli.results import CheckFinding, CheckResult, DatasetEntry

if TYPE_CHECKING:
    from tfa_bench.datasets.card import DatasetCard
    from tfa_bench.datasets.check import Finding

STYLES = {"error": "red", "warning": "yellow", "note": "dim"}


def datasets(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this dataset in full.")] = None,
    json: options.AsJson = False,
) -> None:
    """List the supported datasets, or show one in full."""
    from tfa_bench.datasets.card import cards, find_card

    if name is not None:
        card = find_card(name)
        if json:
            print_json(DatasetEntry.from_dict(card.to_dict()))
        else:
            show_card(card)
        return
    known = cards()
    if json:
        print_json([DatasetEntry.from_dict(card.to_dict()) for card in known.values()])
        return
    console().print(card_table(known.values()))
    say()
    say("Details: tfa bench datasets NAME. Check your copy: tfa bench check NAME FOLDER")


def card_table(cards: Iterable[DatasetCard]) -> Table:
    from tfa_bench.datasets.card import DATASET_GROUPS

    table = open_table()
    for heading in ("dataset", "group", "database", "queries", "layout", "protocol"):
        numeric = heading in ("database", "queries")
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=True)
    for card in sorted(cards, key=lambda card: (DATASET_GROUPS.index(card.group), card.name)):
        images = [f"{count:,}" if count else "?" for count in (card.counts.database, card.counts.queries)]
        table.add_row(card.name, card.group, *images, card.layout, "public" if card.public else "not public")
    return table


def show_card(card: DatasetCard) -> None:
    say(f"{card.name}: {card.title}", style="bold")
    per_condition = ", ".join(f"{name} {count:,}" for name, count in card.counts.conditions.items())
    facts = {
        "group": card.group,
        "paper's row": card.paper_row,
        "database": f"{card.counts.database:,} images" if card.counts.database else "unknown",
        "queries": f"{card.counts.queries:,} images" if card.counts.queries else "unknown",
        "conditions": per_condition + (", each calibrated on its own" if card.conditions_specific else ""),
        "positives": card.positives,
        "not public": "" if card.public else "the protocol: provide positives.json for the paper's protocol",
        "layout": card.layout,
        "options": ", ".join(f"{key}={value}" for key, value in card.options.items()),
        "head": ", ".join(f"{key}={value}" for key, value in card.spec.items()),
        "citation": card.citation,
        "licence": card.licence,
        "get it": card.get,
        "note": card.note,
    }
    for key, value in facts.items():
        if value:
            say(f"  {key:<12} {value}")


def check(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="A dataset of [bold]tfa bench datasets[/bold], or a new name.")
    ],
    path: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder with the dataset.")],
    positives: Annotated[
        Path | None, typer.Option(metavar="JSON", help="Your positives: query → list of database images.")
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Decode every image instead of reading only its header.")
    ] = False,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """List all problems of a dataset copy. Exits with 1 if there is an error."""
    from tfa.core.progress import as_progress
    from tfa_bench.datasets.check import check_dataset

    progress = as_progress(not quiet)
    findings = check_dataset(dataset, path, positives=positives, deep=deep, progress=progress)
    whole = not any(finding.level == "error" for finding in findings)
    if json:
        listed = [CheckFinding.from_dict(vars(finding)) for finding in findings]
        print_json(CheckResult(dataset=dataset, folder=str(path), whole=whole, findings=listed))
    else:
        show_findings(dataset, findings)
    if not whole:
        raise typer.Exit(1)


def show_findings(dataset: str, findings: Sequence[Finding]) -> None:
    for finding in findings:
        say(f"{finding.level}: {finding.text}", style=STYLES[finding.level])
    errors = sum(1 for finding in findings if finding.level == "error")
    verdict = f"not whole: {format_count(errors, 'error')}" if errors else "whole"
    say(f"{dataset} is {verdict}", style="bold")
