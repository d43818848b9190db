"""`tfa snapshot`: a copy of a map in a store, under another name or in another store."""

from __future__ import annotations

from typing import Annotated

import typer

from tfa.cli import options
from tfa.cli.console import format_count, print_json, say, wants_progress
from tfa.errors import BadSpec
from tfa.search.store import MapLocation


def snapshot_command(
    map: options.MapPath,
    to: Annotated[
        MapLocation, typer.Option(metavar="URL", parser=MapLocation, help="Map URL of the copy, in any store.")
    ],
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Copy a map in a store, as it answers now, to another name or another store; copying back restores it.

    The map is asked as always meanwhile, and edited when the copy is done.
    """
    if not map.in_store:
        raise BadSpec(f"{map} is a folder: copy it with cp -r")
    if not to.in_store:
        raise BadSpec(f"--to {to} is not a map URL, such as lance:///backups/town")

    from tfa.maps.store import StoreStorage
    from tfa.maps.store.republish import copy_map as copied

    opened = StoreStorage.open(map.text)
    try:
        header = copied(opened, to.text, wants_progress(quiet))
    finally:
        opened.close()
    if json:
        print_json({"url": str(to), "version": header.version, "images": header.count})
        return
    say(f"copied {opened.location} to {to}: {format_count(header.count, 'image')}", style="bold green")
