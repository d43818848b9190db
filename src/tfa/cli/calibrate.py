"""`tfa calibrate`: fit a map to the camera it will be used with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tfa.cli import options
from tfa.cli.console import print_json, say, show_notes
from tfa.cli.info import show_calibration
from tfa.core.config import CalibrationSpec, EncoderOptions
from tfa.core.text import format_command


@options.with_encoder
def calibrate_command(
    map: options.MapPath,
    photos: Annotated[
        list[Path] | None, typer.Argument(metavar="PHOTOS", exists=True, help="Photos, or folders searched for photos.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the calibration; one of that name is replaced.")] = "target",
    budget: Annotated[int, typer.Option(min=2, help="Photos to use at most; of more, so many are drawn.")] = (
        CalibrationSpec.budget
    ),
    score: Annotated[
        bool | None,
        typer.Option(
            "--score/--no-score",
            help="Calibrate scores too: subtract each image's mean score. If not given, as the judge decides; of the "
            "paper's head on from 16 photos.",
        ),
    ] = None,
    activate: Annotated[
        str | None,
        typer.Option(metavar="NAME|none", help="Without photos: let this calibration of the map answer from now on."),
    ] = None,
    drop: Annotated[
        str | None, typer.Option(metavar="NAME", help="Without photos: take this calibration out of the map for good.")
    ] = None,
    skip_bad: options.SkipBad = False,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Calibrate a map with photos of the camera it will be used with.

    The photos need no labels and must not be in the map; 64 are enough. A map can hold several calibrations
    beside the one without; the newest answers unless another is named.
    """
    if [bool(photos), activate is not None, drop is not None].count(True) != 1:
        raise typer.BadParameter("give photos to calibrate with, or one of --activate NAME and --drop NAME")
    place_map, progress = options.open_map(map, replace(encoding, skip_bad=skip_bad), quiet=quiet, json=json)
    if not photos:
        _change(place_map, activate, drop, json=json)
        return
    report = place_map.calibrate(photos, name, budget=budget, score=score, progress=progress)
    [entry] = [entry for entry in place_map.info()["calibrations"] if entry["name"] == report.name]
    skipped = show_notes(report.notes, report.skipped)
    if json:
        print_json({**entry, "skipped": skipped, "notes": list(report.notes)})
        return
    say(f"calibrated {map} as {report.name}", style="bold green")
    show_calibration(entry)
    say(
        "it answers from now on; without it: "
        + format_command("tfa", "query", str(map), "PHOTO", "--calibration", "none")
    )


def _change(place_map: Any, activate: str | None, drop: str | None, *, json: bool) -> None:
    """Choose among the calibrations there are, or drop one."""
    if drop is not None:
        place_map.drop_calibration(drop)
    else:
        place_map.activate(activate)
    active, names = place_map.state.active, place_map.calibrations
    if json:
        print_json({"active": active, "calibrations": names})
        return
    say(f"the map has {', '.join(names) or 'no calibration'}; {active} answers where none is named", style="bold green")
