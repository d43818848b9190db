"""`tfa bench serve`: a service under load, and what it remembers when it is killed."""

from __future__ import annotations

from typing import Annotated

import typer

from tfa.cli import options
from tfa_bench.cli.speed import timed


def serve(
    seconds: Annotated[float, typer.Option(min=0.1, help="How long clients query and edit.")] = 60.0,
    clients: Annotated[int, typer.Option(min=1, help="Clients that query, at once.")] = 8,
    editors: Annotated[int, typer.Option(min=0, help="Clients that add and remove images, at once.")] = 2,
    threads: Annotated[int, typer.Option(min=1, help="Threads of matrix products, with and without the service.")] = 1,
    images: Annotated[int, typer.Option(min=2, help="Images of the made-up map.")] = 200,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Serve a made-up map on this machine under queries and edits, kill it, restart it, and count what is lost.

    The exit code is 1 if a request failed or an accepted edit is lost.
    """
    from tfa_bench.load_test.run import run_serving_benchmark

    load = {"clients": clients, "editors": editors, "images": images, "threads": threads}
    result = timed(run_serving_benchmark, json, quiet, seconds=seconds, **load)
    if not result.passed:
        raise typer.Exit(1)
