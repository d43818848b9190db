"""`tfa merge`: the photos of several maps in one."""

from __future__ import annotations

from typing import Annotated

import typer

from tfa.cli import options
from tfa.cli.build import check_out
from tfa.cli.console import format_count, print_json, say, show_notes
from tfa.search.store import MapLocation
from tfa.types import EncoderOptions


@options.with_encoder
def merge(
    maps: Annotated[
        list[MapLocation],
        typer.Argument(metavar="MAP MAP…", parser=MapLocation, help="Two or more maps of one encoder."),
    ],
    out: Annotated[
        MapLocation, typer.Option("--out", "-o", metavar="MAP.tfa", parser=MapLocation, help="Map folder to write.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Overwrite a map that is there.")] = False,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Merge maps: their photos in one map, with one head fitted over all of them; the maps stay as they are.

    Says how many photos of each map show places of the maps before it. Every photo keeps its position and has a
    session to choose by: the name of its map, unless it has one. Needs the photos, or their cached tokens.
    """
    for one in maps:
        options.check_folder(one, "merge")
    folder = options.check_folder(out, "merge")
    check_out(folder, force=force)

    from tfa.maps.merge import keep_confirmed, merge_maps, note_dropped_calibrations

    opened = [options.open_map(one, encoding, quiet=quiet, json=json)[0] for one in maps]
    merged, report = merge_maps(opened, progress=not quiet)
    notes = [*report.notes, *note_dropped_calibrations(opened, folder)]
    merged.save(folder, overwrite=force)
    keep_confirmed(opened, merged)
    show_notes(notes)
    if json:
        told = {**report.to_dict(), "notes": notes}
        print_json({"path": str(out), "images": len(merged), **told})
        return
    say(f"merged {format_count(len(maps), 'map')} into {out}: {format_count(len(merged), 'image')}", style="bold green")
    for part in report.parts[1:]:
        say(f"  {part.in_words}")
