"""`tfa add`, `tfa remove`, `tfa refit`: edit a map in place."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from tfa.cli import options
from tfa.cli.console import format_count, print_json, say, show_notes
from tfa.cli.show_map import show_changes, show_map
from tfa.types import EncoderOptions


@options.with_encoder
def add(
    map: options.MapPath,
    photos: options.PhotosArgument,
    positions: options.PositionsOption = None,
    gpx: options.Gpx = None,
    gpx_offset: options.GpxOffset = None,
    gpx_gap: options.GpxGap = None,
    utm: options.Utm = None,
    session: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the photos belong to: a day, a drive; to choose by.")
    ] = None,
    skip_bad: options.SkipBad = False,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Add photos to a map without fitting it again."""
    sources = options.read_position_sources(positions, gpx, gpx_offset, gpx_gap, utm)
    place_map, progress = options.open_map(map, replace(encoding, skip_bad=skip_bad), quiet=quiet, json=json)
    named: dict[str, Any] = {} if session is None else {"session": session}
    report = place_map.add(photos, positions=sources, progress=progress, **named)
    _show_edit(report, place_map, json=json)


def remove(
    map: options.MapPath,
    images: Annotated[
        list[str], typer.Argument(metavar="FILE|ID", help="Images as tfa names them in its answers, or ids.")
    ],
    json: options.AsJson = False,
) -> None:
    """Remove images from a map without fitting it again.

    They are no longer returned, but what was learnt from them stays until [bold]tfa refit[/bold].
    """
    from tfa.maps import PlaceMap

    place_map = PlaceMap.load(map)
    report = place_map.remove([int(image) if image.isdecimal() else image for image in images])
    _show_edit(report, place_map, json=json)


@options.with_encoder
def refit(
    map: options.MapPath,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Fit a map again on the images it holds now, from the token cache."""
    place_map, progress = options.open_map(map, encoding, quiet=quiet, json=json)
    before = place_map.info().to_dict()
    place_map.refit(progress)
    after = place_map.info().to_dict()
    show_notes(place_map.notes)
    if json:
        print_json(after)
        return
    say(f"fitted {map} again", style="bold green")
    show_map(after)
    show_changes(before, after)


def _show_edit(report: Any, place_map: Any, *, json: bool) -> None:
    skipped = show_notes(report.notes, report.skipped)
    if json:
        edits = {"added": list(report.added), "removed": list(report.removed)}
        print_json({**edits, "skipped": skipped, "notes": list(report.notes), "images": len(place_map)})
        return
    for verb, ids in (("added", report.added), ("removed", report.removed)):
        if ids:
            shown = ", ".join(map(str, ids[:8])) + (", …" if len(ids) > 8 else "")
            say(
                f"{verb} {format_count(len(ids), 'image')} ({'id' if len(ids) == 1 else 'ids'} {shown})",
                style="bold green",
            )
    if not report.added and not report.removed:
        say("nothing changed")
    say(f"the map holds {format_count(len(place_map), 'image')}")
