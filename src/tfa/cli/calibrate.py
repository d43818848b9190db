"""`tfa calibrate`: fit a map to the camera that will ask it."""

from __future__ import annotations

from typing import Annotated

import typer

from tfa.cli import options
from tfa.cli.console import examples, print_json, say, show_notes, wants_progress
from tfa.cli.show_map import show_calibration


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "tfa calibrate town.tfa robot-photos/",
            "tfa calibrate town.tfa night-walk/ --name night",
            "tfa query town.tfa photo.jpg --calibration night",
            "tfa query town.tfa photo.jpg --calibration none",
        )
    )(calibrate)


def calibrate(
    map: options.MapPath,
    photos: options.Photos,
    name: Annotated[str, typer.Option(help="Name of the calibration; one of that name is replaced.")] = "target",
    budget: Annotated[int, typer.Option(min=2, help="Photos to use at most; of more, so many are drawn.")] = 64,
    score: Annotated[
        bool | None,
        typer.Option(
            "--score/--no-score",
            help="Calibrate scores too: take off each image's usual level. On from 16 photos if not given.",
        ),
    ] = None,
    skip_bad: options.SkipBad = False,
    weights: options.Weights = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    fast: options.Fast = False,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Calibrate a map with photos of the camera that will ask it.

    The photos need no labels and must not be in the map; 64 are enough. A map can hold several calibrations
    beside the one without; the newest answers unless another is named.
    """
    from tfa.maps import PlaceMap

    place_map = PlaceMap.load(map)
    progress = wants_progress(quiet=quiet, json=json)
    place_map.use_encoder(weights=weights, device=device, threads=threads, fast=fast, progress=progress)
    report = place_map.calibrate(
        photos, name, budget=budget, score=score, skip_bad=skip_bad, device=device, progress=progress
    )
    [entry] = [entry for entry in place_map.info()["calibrations"] if entry["name"] == report.name]
    show_notes(report.notes, report.skipped)
    if json:
        skipped = [{"file": file, "reason": reason} for file, reason in report.skipped]
        print_json({**entry, "skipped": skipped, "notes": list(report.notes)})
        return
    say(f"calibrated {map} as {report.name}", style="bold green")
    show_calibration(entry)
    say(f"it answers from now on; without it: tfa query {map} PHOTO --calibration none")
