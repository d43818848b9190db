"""`tfa pairs` and `tfa export`: a map for other programs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfa.cli import options
from tfa.cli.console import format_count, say, show_notes
from tfa.cli.query import end_with_errors
from tfa.core.config import EncoderOptions
from tfa.errors import BadSpec

if TYPE_CHECKING:
    from tfa.maps import PlaceMap


class Format(StrEnum):
    npz = "npz"
    faiss = "faiss"
    onnx_head = "onnx-head"
    onnx = "onnx"
    hloc = "hloc"


class PairFormat(StrEnum):
    hloc = "hloc"
    colmap = "colmap"
    alicevision = "alicevision"
    kapture = "kapture"


@options.with_encoder
def pairs(
    map: options.MapPath,
    photos: options.PhotosArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.txt", dir_okay=False, help="Where to write.")],
    format: Annotated[
        PairFormat,
        typer.Option(
            help="hloc: names of query and image; colmap: a match list, each two images once; alicevision: pairs of "
            "views; kapture: a pairs file with scores."
        ),
    ] = PairFormat.hloc,
    k: Annotated[int, typer.Option("-k", min=1, help="Map images for each photo.")] = 20,
    root: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Name all photos as they are below this folder. If not given: for hloc, queries below the folder "
            "that holds them all, and the map's photos too, unless names collide; else below one folder for all.",
        ),
    ] = None,
    views: Annotated[
        Path | None,
        typer.Option(
            metavar="cameraInit.sfm",
            exists=True,
            dir_okay=False,
            help="For alicevision: the views of all photos, as cameraInit wrote them.",
        ),
    ] = None,
    calibration: options.Calibration = None,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Write retrieval pairs for 3-D localization: by default hloc's text format, a line "query map-image" each.

    No name stands for two photos. A photo that cannot be read is reported and the others are written; the exit code is
    then 1.
    """
    options.check_folder(map, "pairs")
    options.check_writable(out)
    if (views is not None) != (format is PairFormat.alicevision):
        raise BadSpec("--format alicevision and --views cameraInit.sfm go together: its pairs are of views")

    from tfa.cli.query import expanded
    from tfa.exports.hloc import (
        find_common_folder,
        list_photo_pairs,
        name_pairs,
        read_views,
        roots_without_collisions,
        write_kapture_pairs,
        write_match_list,
        write_pairs,
        write_view_pairs,
    )

    numbers = {} if views is None else read_views(views)
    place_map, progress = options.open_map(map, encoding, quiet=quiet)
    queries = expanded(photos)
    answers = place_map.query_many(queries, k=k, calibration=calibration, progress=progress)
    found, images = list_photo_pairs(answers), [Path(record.path) for record in place_map.images]
    if format is PairFormat.alicevision:
        count = write_view_pairs(out, found, numbers)
    elif format is PairFormat.kapture:
        count = write_kapture_pairs(out, found, root or find_common_folder([*queries, *images]))
    elif format is PairFormat.colmap:
        one_root = root or find_common_folder([*queries, *images])
        count = write_match_list(out, name_pairs(found, one_root, one_root))
    else:
        given = photos[0] if len(photos) == 1 and photos[0].is_dir() else find_common_folder(queries)
        of_queries, of_map, collision = roots_without_collisions(
            queries, images, root or given, root or find_common_folder(images)
        )
        write_pairs(out, name_pairs(found, of_queries, of_map))
        show_notes([] if collision is None else [collision])
        count = len(found)
    say(f"{format_count(count, 'pair')} of {format_count(sum(one.error is None for one in answers), 'photo')} in {out}")
    end_with_errors(answers)


@options.with_encoder
def export(
    map: options.MapPath,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", dir_okay=False, help="Where to write.")],
    format: Annotated[
        Format,
        typer.Option(
            help="npz: one vector and bias per image, with ids; faiss: an index file; onnx-head: the query side, "
            "tokens to vector, as an ONNX graph; onnx: photo to unit vector, encoder and all, as one ONNX graph, and "
            "beside it FILE.npz with the images' rows; hloc: global descriptors in an h5 file."
        ),
    ] = Format.npz,
    queries: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PHOTO|FOLDER",
            exists=True,
            help="For hloc: descriptors of these photos, to search the map's with, instead of the map's own. May be "
            "given several times.",
        ),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="For hloc: name photos below this folder, else below the one of all."
        ),
    ] = None,
    calibration: options.Calibration = None,
    dims: Annotated[
        int | None,
        typer.Option(
            min=4, metavar="D", help="With --format onnx: numbers of a vector; as many as the head has if not given."
        ),
    ] = None,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Write a map for other programs: score = query vector · image vector + bias."""
    options.check_folder(map, "export")
    options.check_writable(out)
    if format is not Format.onnx and dims is not None:
        raise BadSpec(f"--dims is for --format onnx, not {format.value}; leave it out")
    if format is Format.onnx and out.suffix == ".npz":
        raise BadSpec(
            f"{out} is where --format onnx writes the images' rows; give the graph another ending, best .onnx"
        )
    if format is not Format.hloc and (queries or root is not None):
        raise BadSpec("--queries and --root are for --format hloc")

    from tfa import exports
    from tfa.maps import PlaceMap

    if format is Format.hloc:
        place_map, progress = options.open_map(map, encoding, quiet=quiet)
        _export_hloc(place_map, out, queries, root, calibration, progress=progress)
        return
    place_map = PlaceMap.load(map)
    compiled = exports.compile_map(place_map, calibration)
    if format is Format.onnx:
        place_map.use_encoder(EncoderOptions(weights=encoding.weights))
        rows = exports.write_onnx_place(out, place_map, compiled, dims=dims, fast=encoding.fast)
        count, width = rows.vectors.shape
        say(f"a photo to a unit vector of {width:,} numbers, {out.stat().st_size / 1e6:,.1f} MB, in {out}")
        say(f"rows of {format_count(count, 'image')}, {width:,} numbers each, in {exports.rows_path(out)}")
        return
    write = {
        Format.npz: exports.write_npz,
        Format.faiss: exports.write_faiss,
        Format.onnx_head: exports.write_onnx_head,
    }
    write[format](out, compiled)
    count, width = compiled.vectors.shape
    held = f"tokens to a vector of {width:,} numbers" if format is Format.onnx_head else f"{width:,} numbers each"
    what = "the query side" if format is Format.onnx_head else format_count(count, "image")
    say(f"{what}, {held}, in {out}")


def _export_hloc(
    place_map: PlaceMap,
    out: Path,
    queries: list[Path] | None,
    root: Path | None,
    calibration: str | None,
    *,
    progress: bool,
) -> None:
    """Descriptors of the map's images, or of queries for them."""
    from tfa import exports
    from tfa.cli.query import expanded
    from tfa.exports.hloc import find_common_folder, roots_without_collisions

    compiled = exports.compile_map(place_map, calibration)
    photos, vectors = [Path(image) for image in compiled.images], compiled.with_bias
    if queries:
        asked, images = expanded(queries), photos
        *_, collision = roots_without_collisions(
            asked, images, root or find_common_folder(asked), root or find_common_folder(images)
        )
        if collision is not None:  # hloc would take the two for one photo, and never pair them
            raise BadSpec(
                f"{collision.partition(':')[0]}; give --root FOLDER that holds both, here and for the map's file"
            )
        encoded = place_map.encode_photos(asked, False, progress)
        photos, vectors = list(encoded.paths), exports.query_vectors(compiled, encoded.tokens)
    exports.write_hloc_features(out, photos, vectors, root or find_common_folder(photos))
    say(f"{format_count(len(photos), 'photo')}, {vectors.shape[1]:,} numbers each, in {out}")
