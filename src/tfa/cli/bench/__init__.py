"""The verbs of `tfa bench`, one file each."""

from __future__ import annotations

import typer

from tfa.cli.bench import confidence, datasets, figures, run, score, sequences, serve, speed, table, verification
from tfa.cli.console import examples

VERBS = (run, datasets, score, table, figures, verification, confidence, sequences, speed, serve)


def register(app: typer.Typer) -> None:
    bench = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="rich",
        help="Recall on datasets, against every peer; speed on this machine.",
    )
    for verb in VERBS:
        verb.register(bench)
    app.add_typer(
        bench,
        name="bench",
        epilog=examples(
            "tfa bench run --dataset sped=data/sped --out results/",
            "tfa bench table primary --records results/",
            "tfa bench fit",
        ),
    )
