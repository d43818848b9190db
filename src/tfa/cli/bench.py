"""`tfa bench fit`: is fitting the head as fast as its unavoidable parts allow?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tfa.cli import options
from tfa.cli.console import examples, print_json, say, wants_progress

bench = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Measure speed on this machine.")


def register(app: typer.Typer) -> None:
    app.add_typer(bench, name="bench", epilog=examples("tfa bench fit"))


@bench.callback()
def benchmarks() -> None:
    """Measure speed on this machine."""  # a group of one verb is a group only if it has a callback


@bench.command(
    epilog=examples(
        "tfa bench fit", "tfa bench fit --images 200 --patches 256 --json", "tfa bench fit --tokens photos/"
    )
)
def fit(
    images: Annotated[int, typer.Option(min=2, help="Images of made-up tokens.")] = 607,
    patches: Annotated[int, typer.Option(min=1, help="Patches of each image.")] = 529,
    channels: Annotated[int, typer.Option(min=1, help="Channels of each patch.")] = 384,
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="PHOTOS",
            exists=True,
            help="Tokens of these photos (default encoder) rather than made-up ones.",
        ),
    ] = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Time the fitting of a head against the sum of its unavoidable parts, each called on its own."""
    from tfa.bench.fit import run_fit_benchmark

    result = run_fit_benchmark(
        images=images,
        patches=patches,
        channels=channels,
        photos=tokens,
        progress=wants_progress(quiet=quiet, json=json),
    )
    if json:
        print_json(result.to_dict())
    else:
        say(str(result))
