"""`tfa bench speed`, `performance`, `fit`, `calibrate`, `verify`: what the stages cost on this machine."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer

from tfa.cli import options
from tfa.cli.console import console, note, open_table, print_json, print_text, say, wants_progress

if TYPE_CHECKING:
    from tfa.bench.speed.suite import Done


class Result(Protocol):
    def to_dict(self) -> dict[str, Any]: ...


T = TypeVar("T", bound=Result)
Patches = Annotated[int, typer.Option(min=1, help="Patches of each image.")]
Channels = Annotated[int, typer.Option(min=1, help="Channels of each patch.")]


class Size(StrEnum):
    small = "small"
    full = "full"


def speed(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Benchmarks to run. If none is named: all but the long ones."),
    ] = None,
    peers: Annotated[
        bool,
        typer.Option("--peers", help="Also run AnyLoc's build, faiss and scikit-learn on the same tokens."),
    ] = False,
    size: Annotated[
        Size, typer.Option(help="small: minutes in all, for trying out. full: what is reported.")
    ] = Size.full,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", dir_okay=False, help="Also write the result there, as JSON, after every benchmark."
        ),
    ] = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Time every stage against its floor, both in this run: the least time its unavoidable work takes here."""
    from tfa.bench.speed.suite import SpeedRun, chosen, run_each
    from tfa.core.files import write_json

    wanted = chosen(names or (), peers=peers)
    if out is not None:
        options.check_writable(out)
    done: list[Done] = []
    for one in run_each(wanted, size.value, wants_progress(quiet), alone=True):
        done.append(one)
        if not json:
            show(one)
        if out is not None:  # what is measured stays, should a later benchmark be stopped
            write_json(out, SpeedRun.here(size.value, done).to_dict())
    if size is Size.small and any(line.bar for one in done for line in one.lines):
        note("the bars are meant for --size full")
    if out is not None:
        note(f"wrote {out}")
    if json:
        print_json(SpeedRun.here(size.value, done).to_dict())


def show(done: Done) -> None:
    from tfa.bench.speed.result_line import COLUMNS, cells
    from tfa.bench.speed.suite import SUITE

    say(f"{SUITE[done.name].title} ({done.name})", style="bold")
    say(SUITE[done.name].floor)
    table = open_table()
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for line in done.lines:
        table.add_row(*cells(line), style="yellow" if line.met is False else None)
    console().print(table)
    say()


def performance(
    records: Annotated[
        list[Path],
        typer.Argument(metavar="RESULTS", help="Files of [bold]tfa bench speed --out[/bold], or folders of them."),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Write the page there rather than print it.")
    ] = None,
) -> None:
    """Write recorded speeds as one Markdown page, the machine named. Nothing is timed."""
    from tfa.bench.speed.page import performance_page, read_results
    from tfa.core.files import write_text

    if out is not None:
        options.check_writable(out)
    page = performance_page(read_results(records))
    if out is None:
        print_text(page)
        return
    write_text(out, page)
    note(f"wrote {out}")


def timed(run: Callable[..., T], json: bool, quiet: bool, **given: Any) -> T:
    """Run a benchmark and show its result."""
    result = run(**given, progress=wants_progress(quiet))
    if json:
        print_json(result.to_dict())
    else:
        print_text(f"{result}\n")
    return result


def fit(
    images: Annotated[int, typer.Option(min=2, help="Images of made-up tokens.")] = 607,
    patches: Patches = 529,
    channels: Channels = 384,
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

    timed(run_fit_benchmark, json, quiet, images=images, patches=patches, channels=channels, photos=tokens)


def calibrate(
    images: Annotated[int, typer.Option(min=2, help="Images of the map, of made-up tokens.")] = 607,
    target: Annotated[int, typer.Option(min=2, help="Target images of a usual calibration.")] = 64,
    full: Annotated[int, typer.Option(min=2, help="Target images when every query calibrates.")] = 607,
    patches: Patches = 529,
    channels: Channels = 384,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Time the calibration of a head on target images against the fit it builds on, in one run."""
    from tfa.bench.speed.calibrate import run_calibrate_benchmark

    shape = {"images": images, "target": target, "full": full, "patches": patches, "channels": channels}
    timed(run_calibrate_benchmark, json, quiet, **shape)


def verify(
    candidates: Annotated[int, typer.Option(min=1, help="Candidates of each query, of made-up patches.")] = 20,
    patches: Patches = 529,
    dimensions: Annotated[int, typer.Option(min=1, help="Dimensions of a compact patch.")] = 128,
    small: Annotated[
        bool, typer.Option("--small", help="As [bold]tfa build --patches small[/bold] keeps them: 120 at most.")
    ] = False,
    queries: Annotated[int, typer.Option(min=1, help="Queries of a batch.")] = 16,
    threads: Annotated[int, typer.Option(min=1, help="Threads that share the batch.")] = 2,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Time the verification of candidates against the bare matrix products of the same shapes."""
    from tfa.bench.speed.verify import run_verify_benchmark

    shape = {"candidates": candidates, "patches": patches, "dimensions": dimensions, "queries": queries}
    timed(run_verify_benchmark, json, quiet, **shape, small=small, threads=threads)
