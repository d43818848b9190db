"""`tfa bench sequences`: what the temporal filter and self-calibration do on drives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from tfa.base.config import EncoderOptions
from tfa.cli import options
from tfa.cli.bench.run import load_all, loaded_encoder
from tfa.cli.console import console, delivered, open_table, printable, say, wants_progress


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
    encoder: options.Encoder = "dinov2-s14-focus",
    out: options.JsonFile = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Replay drives: R@1 of single frames and of sequences, with and without self-calibration.

    Of the database-only head, for which nothing of the queries is fitted; all three replicas.
    """
    from tfa.base.progress import as_progress
    from tfa.bench.run import prepare
    from tfa.bench.studies.sequences import check_drive, study_drive

    loaded = load_all(dataset, out=out)
    for data in loaded:
        check_drive(data.card.name, len(data.queries))
    bars = as_progress(wants_progress(quiet=quiet, json=json))
    model = loaded_encoder(encoder, encoding)
    studies = [study_drive(prepare(data, model, progress=bars), encoding.device, bars).to_dict() for data in loaded]
    if not delivered(studies, out=out, json=json):
        show(studies)


def show(studies: Sequence[Mapping[str, Any]]) -> None:
    """The two tables: whole drives, then their second halves."""
    from tfa.bench.studies.sequences import REPLAY_COLUMNS, SEQUENCE_COLUMNS, table_rows

    say(f"Sequences, {studies[0]['encoder']}: R@1 in percent (share of frames that are rather lost)", style="bold")
    _print("frames", SEQUENCE_COLUMNS, table_rows(studies, "sequence"))
    say()
    say("Replay: R@1 of the second half in percent, self-calibrated on the queries before", style="bold")
    _print("queries", REPLAY_COLUMNS, table_rows(studies, "replay"))


def _print(unit: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = open_table()
    for number, column in enumerate(("dataset", unit, "replicas", *columns)):
        table.add_column(column, justify="left" if number in (0, 2) else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    console().print(table)
