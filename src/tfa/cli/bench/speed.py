"""`tfa bench fit`, `calibrate`, `verify`: what fitting, calibrating and verifying cost on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tfa.cli import options
from tfa.cli.console import examples, print_json, say, wants_progress


def register(bench: typer.Typer) -> None:
    bench.command(
        epilog=examples(
            "tfa bench fit", "tfa bench fit --images 200 --patches 256 --json", "tfa bench fit --tokens photos/"
        )
    )(fit)
    bench.command(
        epilog=examples("tfa bench calibrate", "tfa bench calibrate --images 200 --full 200 --patches 256 --json")
    )(calibrate)
    bench.command(epilog=examples("tfa bench verify", "tfa bench verify --candidates 50 --threads 4 --json"))(verify)


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
    from tfa.bench.speed.fit import run_fit_benchmark

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


def calibrate(
    images: Annotated[int, typer.Option(min=2, help="Images of the map, of made-up tokens.")] = 607,
    target: Annotated[int, typer.Option(min=2, help="Target images of a usual calibration.")] = 64,
    full: Annotated[int, typer.Option(min=2, help="Target images when every query calibrates.")] = 607,
    patches: Annotated[int, typer.Option(min=1, help="Patches of each image.")] = 529,
    channels: Annotated[int, typer.Option(min=1, help="Channels of each patch.")] = 384,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Time the calibration of a head on target images against the fit it builds on, in one run."""
    from tfa.bench.speed.calibrate import run_calibrate_benchmark

    result = run_calibrate_benchmark(
        images=images,
        target=target,
        full=full,
        patches=patches,
        channels=channels,
        progress=wants_progress(quiet=quiet, json=json),
    )
    if json:
        print_json(result.to_dict())
    else:
        say(str(result))


def verify(
    candidates: Annotated[int, typer.Option(min=1, help="Candidates of each query, of made-up patches.")] = 20,
    patches: Annotated[int, typer.Option(min=1, help="Patches of each image.")] = 529,
    dimensions: Annotated[int, typer.Option(min=1, help="Dimensions of a compact patch.")] = 128,
    queries: Annotated[int, typer.Option(min=1, help="Queries of a batch.")] = 16,
    threads: Annotated[int, typer.Option(min=1, help="Threads that share the batch.")] = 2,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Time the verification of candidates against the bare matrix products of the same shapes."""
    from tfa.bench.speed.verify import run_verify_benchmark

    result = run_verify_benchmark(
        candidates=candidates,
        patches=patches,
        dimensions=dimensions,
        queries=queries,
        threads=threads,
        progress=wants_progress(quiet=quiet, json=json),
    )
    if json:
        print_json(result.to_dict())
    else:
        say(str(result))
