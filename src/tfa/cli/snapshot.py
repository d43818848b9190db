"""`tfa snapshot`: a copy of a map in an engine, under another name or in another engine."""

from __future__ import annotations

from typing import Annotated

import typer

from tfa.cli import options
from tfa.cli.console import counted, print_json, say, wants_progress
from tfa.errors import BadSpec
from tfa.search.store import hide_password, is_url


def snapshot(
    map: options.MapPath,
    to: Annotated[str, typer.Option(metavar="URL", help="Where the copy will be: a map's URL, in any engine.")],
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Copy a map in an engine, as it answers now, to another name or another engine; copying back restores it.

    The map is asked as always meanwhile, and edited when the copy is done.
    """
    if not is_url(map):
        raise BadSpec(f"{map} is a folder: copy it with cp -r")
    if not is_url(to):
        raise BadSpec(f"--to {to} is no URL of a map in an engine, such as lance:///backups/town")

    from tfa.maps.engine_map import EngineMap
    from tfa.maps.engine_map.snapshot import snapshot as copied

    opened = EngineMap.open(map)  # type: ignore[arg-type]  # a URL, see `options.map_place`
    try:
        header = copied(opened, to, wants_progress(quiet))
    finally:
        opened.close()
    if json:
        print_json({"url": hide_password(to), "version": header.version, "images": header.count})
        return
    say(f"copied {opened.called} to {hide_password(to)}: {counted(header.count, 'image')}", style="bold green")
