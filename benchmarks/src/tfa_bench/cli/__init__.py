"""The commands of `tfa bench` and the examples in their help."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer

from tfa.cli.console import Command, CommandGroup, examples
from tfa_bench.cli import datasets, pages, run

VERBS: Mapping[Callable[..., Any], str] = {
    run.run: """
        tfa bench run --dataset sped=data/sped --heads anyloc,tfvpr,ria,tfa,tfa-c64 --out results/
        tfa bench run --dataset sped=data/sped --dataset mine=photos/ --heads all
        tfa bench run --dataset pitts30k=data/pitts30k --encoder dinov2-b14@322 --weights vitb14.pth
    """,
    run.heads: """
        tfa bench heads
        tfa bench heads --json
    """,
    datasets.datasets: """
        tfa bench datasets
        tfa bench datasets pitts30k
        tfa bench datasets --json
    """,
    datasets.check: """
        tfa bench check sped data/sped
        tfa bench check pitts30k data/pitts30k --deep
        tfa bench check my-town photos/ --positives town.json
    """,
    pages.score_records: """
        tfa bench score results/
        tfa bench score results/ --dataset sped --against anyloc
        tfa bench score results/ --head tfa-c64 --ks 1,5 --json
    """,
    pages.table: """
        tfa bench table primary
        tfa bench table heads --records results/sped --format csv
        tfa bench table all --out tables/
    """,
    pages.results: """
        tfa bench results --records results/ --out results/README.md
    """,
    pages.figures: """
        tfa bench figures results/ --out figures/
        tfa bench figures results/ --out figures/ --dataset sped --photos sped=datasets/SPED
    """,
    pages.explore: """
        tfa bench explore --records results/sped --head tfa --head judged --photos data/sped --out failures.html
        tfa bench explore --records old/sped --records new/sped --head tfa --out changed.html
    """,
}


app = typer.Typer(
    name="bench",
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Recall on datasets, compared with published methods.",
    epilog=examples(
        "tfa bench run --dataset sped=data/sped --out results/", "tfa bench table primary --records results/"
    ),
)
for verb, shown in VERBS.items():
    app.command(
        verb.__name__.partition("_")[0],
        cls=Command,
        epilog=examples(*(line.strip() for line in shown.strip().splitlines())),
    )(verb)
