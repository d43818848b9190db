"""`tfa tiles`: an orthophoto becomes photos that a map can be built from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tfa.cli import options
from tfa.cli.console import format_count, print_json, say, wants_progress
from tfa.core.text import format_command


def tiles(
    orthophoto: Annotated[
        Path, typer.Argument(metavar="ORTHO.tif", exists=True, dir_okay=False, help="A GeoTIFF, north up, in bytes.")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where tiles and positions.csv go; new or empty.")],
    size: Annotated[float, typer.Option(metavar="M", help="Side of a tile in metres: about what one photo shows.")],
    step: Annotated[
        float | None, typer.Option(metavar="M", help="Metres from tile to tile; the size if not given.")
    ] = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Cut an orthophoto into tiles with the positions of their centres, to build a map for photos from the air.

    Tiles that show nearly nothing are left out. Needs pip install 'tfa-vpr\\[geo]'.
    """
    from tfa.photos.orthophoto import TILE_POSITIONS, cut_tiles

    cut = cut_tiles(orthophoto, out, size, step, wants_progress(quiet))
    if json:
        pixels = {"across": cut.size[0], "down": cut.size[1]}
        print_json({"out": str(out), "tiles": cut.written, "left_out": cut.left_out, "pixels": pixels})
        return
    say(f"wrote {format_count(cut.written, 'tile')} to {out}", style="bold green")
    if cut.left_out:
        say(f"  left out, with nearly nothing on them: {cut.left_out:,}")
    say(
        "map them: "
        + format_command("tfa", "build", out, "--out", f"{out.name}.tfa", "--positions", out / TILE_POSITIONS)
    )
