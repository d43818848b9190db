"""`tfa bench sequences`: what online adaptation and the tracker do on drives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from tfa.cli import options
from tfa.cli.bench.run import load_all, loaded_encoder
from tfa.cli.console import console, delivered, open_table, say, wants_progress
from tfa.types import EncoderOptions


@options.with_encoder
def sequences(
    dataset: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=PATH",
            help="A dataset and its folder, as for [bold]tfa bench run[/bold]; several. Its database and its queries "
            "must be in driving order by their names: of other datasets the numbers mean nothing.",
        ),
    ],
    encoder: options.EncoderOption = "dinov2-s14-focus",
    out: options.JsonFile = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Replay drives: R@1 of photos alone, adapted online, verified and followed; how fast a stream adapts and recovers.

    Of the second-order head with partial whitening, for which nothing of the queries is fitted. Photos outside a map
    are those of the dataset given next.
    """
    from tfa.bench.run import prepare
    from tfa.bench.studies.sequences import check_drive, study_drive
    from tfa.core.progress import as_progress

    loaded = load_all(dataset, out=out)
    for data in loaded:
        check_drive(data.card.name, len(data.queries))
    bars = as_progress(wants_progress(quiet))
    model = loaded_encoder(encoder, encoding)
    prepared = [prepare(data, model, progress=bars) for data in loaded]
    studies = []
    for number, one in enumerate(prepared):
        foreign = prepared[(number + 1) % len(prepared)].queries.tokens if len(prepared) > 1 else None
        studies.append(study_drive(one, foreign, encoding.device, bars).to_dict())
    if not delivered(studies, out=out, json=json):
        show(studies)


def show(studies: Sequence[Mapping[str, Any]]) -> None:
    """Four tables."""
    from tfa.bench.studies.sequences import TABLES, table_rows

    for table, (title, columns) in TABLES.items():
        say(f"{title}; {studies[0]['encoder']}, in percent", style="bold")
        _print(columns, table_rows(studies, table))
        say()


def _print(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = open_table()
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 2 and column != "photos" else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)
