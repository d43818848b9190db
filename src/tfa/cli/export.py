"""`tfa pairs` and `tfa export`: a map for other programs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tfa.base.config import EncoderOptions
from tfa.cli import options
from tfa.cli.console import counted, examples, say, show_error, wants_progress

Calibration = Annotated[
    str | None,
    typer.Option(metavar="NAME|none", help="Use this calibration of the map, as in [bold]tfa query[/bold]."),
]


class Format(StrEnum):
    npz = "npz"
    faiss = "faiss"
    onnx_head = "onnx-head"


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "tfa pairs town.tfa queries/ -o pairs.txt -k 20",
            "tfa pairs town.tfa images/query/ -o pairs.txt --root images/",
        )
    )(pairs)
    app.command(
        epilog=examples(
            "tfa export town.tfa --format npz -o town.npz",
            "tfa export town.tfa --format faiss -o town.faiss",
            "tfa export town.tfa --format onnx-head -o head.onnx",
        )
    )(export)


@options.with_encoder
def pairs(
    map: options.MapPath,
    photos: options.Photos,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.txt", dir_okay=False, help="Where to write.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Map images for each photo.")] = 20,
    root: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Name all photos as they are below this folder. If not given, queries are named below the folder "
            "that holds them all, and so are the map's photos.",
        ),
    ] = None,
    calibration: Calibration = None,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Write retrieval pairs for 3-D localisation: hloc's text format, a line "query map-image" each.

    A photo that cannot be read is reported and the others are written; the exit code is then 1.
    """
    options.check_writable(out)

    from tfa.cli.query import expanded
    from tfa.exports.hloc_pairs import common_folder, retrieval_pairs, write_pairs
    from tfa.maps import PlaceMap

    place_map, queries = PlaceMap.load(map), expanded(photos)
    progress = wants_progress(quiet=quiet, json=False)
    place_map.use_encoder(encoding, progress)
    answers = place_map.query_many(queries, k=k, calibration=calibration, progress=progress)
    given = photos[0] if len(photos) == 1 and photos[0].is_dir() else common_folder(queries)
    of_map = common_folder([Path(record.path) for record in place_map.images])
    found = retrieval_pairs(answers, root or given, root or of_map)
    write_pairs(out, found)
    failed = [answer.error for answer in answers if answer.error is not None]
    say(f"{counted(len(found), 'pair')} of {counted(len(answers) - len(failed), 'photo')} in {out}")
    for error in failed:
        show_error(error)
    if failed:
        raise typer.Exit(1)


def export(
    map: options.MapPath,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", dir_okay=False, help="Where to write.")],
    format: Annotated[
        Format,
        typer.Option(
            help="npz: one vector and bias per image, with ids; faiss: an index file; onnx-head: the query side, "
            "tokens to vector, as an ONNX graph."
        ),
    ] = Format.npz,
    calibration: Calibration = None,
) -> None:
    """Write a map for other programs: score = query vector · image vector + bias."""
    options.check_writable(out)

    from tfa import exports
    from tfa.maps import PlaceMap

    write = {
        Format.npz: exports.write_npz,
        Format.faiss: exports.write_faiss,
        Format.onnx_head: exports.write_onnx_head,
    }
    compiled = exports.compiled_map(PlaceMap.load(map), calibration)
    write[format](out, compiled)
    count, width = compiled.vectors.shape
    held = f"tokens to a vector of {width:,} numbers" if format is Format.onnx_head else f"{width:,} numbers each"
    what = "the query side" if format is Format.onnx_head else counted(count, "image")
    say(f"{what}, {held}, in {out}")
