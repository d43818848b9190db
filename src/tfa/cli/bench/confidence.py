"""`tfa bench confidence`: what confidence and expected recall are worth on datasets left out of their fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tfa.cli import options
from tfa.cli.bench.run import load_all, loaded_encoder
from tfa.cli.console import console, delivered, open_table, say, wants_progress
from tfa.types import EncoderOptions

if TYPE_CHECKING:
    from tfa.bench.studies.confidence import ConfidenceStudy


@options.with_encoder
def confidence(
    dataset: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=PATH",
            help="A dataset and its folder, as for [bold]tfa bench run[/bold]; two or more. Photos outside a map are "
            "queries of the two datasets given next.",
        ),
    ],
    encoder: options.EncoderOption = "dinov2-s14-focus",
    out: options.JsonFile = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Fit confidence with each dataset left out: expected and true R@1, answers called sure, photos outside the map.

    Of second-order heads, verified and not, in three ways: photos alone, adapted online, calibrated with 64 photos.
    """
    from tfa.bench.run import prepare
    from tfa.bench.studies.confidence import study_confidence
    from tfa.core.progress import as_progress

    loaded = load_all(dataset, out=out)
    if len(loaded) < 2:
        raise typer.BadParameter("a dataset is left out of the fit; give --dataset at least twice")
    bars = as_progress(wants_progress(quiet))
    model = loaded_encoder(encoder, encoding)
    study = study_confidence([prepare(data, model, progress=bars) for data in loaded], encoding.device, bars)
    if not delivered(study.to_dict(), out=out, json=json):
        show(study)


def show(study: ConfidenceStudy) -> None:
    """A table of verified answers, one of others, and one of photos that are unlike the map's."""
    from tfa.bench.studies.confidence import COLUMNS, LOOK_COLUMNS, in_words, look_rows, table_rows

    for verified, title in ((True, "verified answers"), (False, "answers that were not verified")):
        say(f"{title}, each dataset left out of the fit, in percent; {study.encoder}", style="bold")
        _print(COLUMNS, table_rows(study, verified))
        say(in_words(study, verified))
        say()
    say("photos that are unlike those the map is made for", style="bold")
    _print(LOOK_COLUMNS, look_rows(study))


def _print(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = open_table()
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 2 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)
