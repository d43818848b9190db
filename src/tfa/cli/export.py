"""`tfa pairs` and `tfa export`: a map for other programs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tfa.base.config import EncoderOptions
from tfa.cli import options
from tfa.cli.console import counted, say
from tfa.cli.show_answers import end_with_errors
from tfa.errors import BadSpec


class Format(StrEnum):
    npz = "npz"
    faiss = "faiss"
    onnx_head = "onnx-head"
    onnx = "onnx"


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
    calibration: options.Calibration = None,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Write retrieval pairs for 3-D localisation: hloc's text format, a line "query map-image" each.

    A photo that cannot be read is reported and the others are written; the exit code is then 1.
    """
    options.check_folder(map, "pairs")
    options.check_writable(out)

    from tfa.cli.query import expanded
    from tfa.exports.hloc_pairs import common_folder, retrieval_pairs, write_pairs

    place_map, progress = options.open_map(map, encoding, quiet=quiet)
    queries = expanded(photos)
    answers = place_map.query_many(queries, k=k, calibration=calibration, progress=progress)
    given = photos[0] if len(photos) == 1 and photos[0].is_dir() else common_folder(queries)
    of_map = common_folder([Path(record.path) for record in place_map.images])
    found = retrieval_pairs(answers, root or given, root or of_map)
    write_pairs(out, found)
    say(f"{counted(len(found), 'pair')} of {counted(sum(one.error is None for one in answers), 'photo')} in {out}")
    end_with_errors(answers)


def export(
    map: options.MapPath,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", dir_okay=False, help="Where to write.")],
    format: Annotated[
        Format,
        typer.Option(
            help="npz: one vector and bias per image, with ids; faiss: an index file; onnx-head: the query side, "
            "tokens to vector, as an ONNX graph; onnx: photo to unit vector, encoder and all, as one ONNX graph, and "
            "beside it FILE.npz with the images' rows."
        ),
    ] = Format.npz,
    calibration: options.Calibration = None,
    dims: Annotated[
        int | None,
        typer.Option(
            min=4, metavar="D", help="With --format onnx: numbers of a vector; as many as the head has if not given."
        ),
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="With --format onnx: the encoder in 8-bit integers, one photo at a time.")
    ] = False,
    weights: options.Weights = None,
) -> None:
    """Write a map for other programs: score = query vector · image vector + bias."""
    options.check_folder(map, "export")
    options.check_writable(out)
    if format is not Format.onnx and (fast or dims is not None):
        raise BadSpec(f"--dims and --fast are for --format onnx, not {format.value}; leave them out")
    if format is Format.onnx and out.suffix == ".npz":
        raise BadSpec(
            f"{out} is where --format onnx writes the images' rows; give the graph another ending, best .onnx"
        )

    from tfa import exports
    from tfa.maps import PlaceMap

    place_map = PlaceMap.load(map)
    compiled = exports.compiled_map(place_map, calibration)
    if format is Format.onnx:
        place_map.use_encoder(EncoderOptions(weights=weights))
        rows = exports.write_onnx_place(out, place_map, compiled, dims=dims, fast=fast)
        count, width = rows.vectors.shape
        say(f"a photo to a unit vector of {width:,} numbers, {out.stat().st_size / 1e6:,.1f} MB, in {out}")
        say(f"rows of {counted(count, 'image')}, {width:,} numbers each, in {exports.rows_path(out)}")
        return
    write = {
        Format.npz: exports.write_npz,
        Format.faiss: exports.write_faiss,
        Format.onnx_head: exports.write_onnx_head,
    }
    write[format](out, compiled)
    count, width = compiled.vectors.shape
    held = f"tokens to a vector of {width:,} numbers" if format is Format.onnx_head else f"{width:,} numbers each"
    what = "the query side" if format is Format.onnx_head else counted(count, "image")
    say(f"{what}, {held}, in {out}")
