"""`tfa calibrate`: fit a map to the camera it will be used with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tfa.cli import options
from tfa.cli.console import delivered, say, show_notes
from tfa.cli.info import show_calibration
from tfa.cli.options import ENCODING, Part, takes
from tfa.core.text import format_command
from tfa.types import ActiveCalibration, CalibrateOptions, CalibrationResult, EncoderOptions


@takes(chosen=CalibrateOptions, encoding=Part(EncoderOptions, (*ENCODING, "skip_bad")))
def calibrate_command(
    map: options.MapPath,
    photos: Annotated[list[Path] | None, options.photos_argument] = None,
    *,
    chosen: CalibrateOptions,
    activate: Annotated[
        str | None, typer.Option(metavar="NAME|none", help="Without photos: make this calibration the active one.")
    ] = None,
    drop: Annotated[
        str | None, typer.Option(metavar="NAME", help="Without photos: remove this calibration from the map.")
    ] = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    encoding: EncoderOptions,
) -> None:
    """Adapt a map to a camera, season or time of day, with unlabeled photos.

    The photos need no labels and must not be in the map; 64 are enough. A map can hold several calibrations; the newest
    is active.
    """
    if [bool(photos), activate is not None, drop is not None].count(True) != 1:
        raise typer.BadParameter("pass photos to calibrate with, or one of --activate NAME and --drop NAME")
    place_map, progress = options.open_map(map, encoding, quiet=quiet)
    if not photos:
        if drop is not None:
            place_map.drop_calibration(drop)
        else:
            place_map.activate(activate)
        active, names = place_map.state.active, place_map.calibrations
        if not delivered(ActiveCalibration(active=active, calibrations=names), json=json):
            say(f"calibrations: {', '.join(names) or 'none'}; active: {active}", style="bold green")
        return
    report = place_map.calibrate(photos, progress=progress, **vars(chosen))
    [made] = [one for one in place_map.info().calibrations if one.name == report.name]
    skipped = show_notes(report.notes, report.skipped)
    if delivered(CalibrationResult(**vars(made), skipped=skipped, notes=list(report.notes)), json=json):
        return
    say(f"calibrated {map} as {report.name}", style="bold green")
    show_calibration(made, decisions=False)
    without = format_command("tfa", "query", str(map), "PHOTO", "--calibration", "none")
    say(f"it is now active; query without it: {without}")
