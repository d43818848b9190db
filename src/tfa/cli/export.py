"""`tfa pairs` and `tfa export`: write a map's pairs, descriptors or model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tfa.cli import options
from tfa.cli.console import format_count, say, show_notes
from tfa.cli.query import end_with_errors, expand_folders
from tfa.errors import BadSpec
from tfa.types import EncoderOptions

if TYPE_CHECKING:
    from tfa.exports.vectors import CompiledMap
    from tfa.maps import PlaceMap


Format = Literal["npz", "faiss", "onnx-head", "onnx", "hloc"]
PairFormat = Literal["hloc", "colmap", "alicevision", "kapture"]


@options.with_encoder
def pairs(
    map: options.MapPath,
    photos: options.PhotosArgument,
    out: Annotated[Path, options.out_option(metavar="FILE.txt", help="File to write.")],
    format: Annotated[
        PairFormat,
        typer.Option(help="hloc: names; colmap: match list; alicevision: pairs of views; kapture: with scores."),
    ] = "hloc",
    k: Annotated[int, typer.Option("-k", min=1, help="Map images per photo.")] = 20,
    root: Annotated[
        Path | None, options.folder_option(help="Name photos relative to this folder. \\[default: their common folder]")
    ] = None,
    views: Annotated[
        Path | None,
        options.file_option(
            metavar="cameraInit.sfm",
            exists=True,
            help="For alicevision: views of all photos, as cameraInit wrote them.",
        ),
    ] = None,
    calibration: options.CalibrationOption = None,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Write image pairs for hloc, COLMAP and other 3D tools.

    A photo that cannot be read is reported, the others are written, and the exit code is 1.
    """
    options.check_folder(map, "pairs")
    options.check_writable(out)
    if (views is not None) != (format == "alicevision"):
        raise BadSpec("--format alicevision needs --views cameraInit.sfm, and --views is only for alicevision")

    from tfa.exports.hloc import (
        find_photo_root,
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
    queries = expand_folders(photos)
    answers = place_map.query_many(queries, k=k, calibration=calibration, progress=progress)
    found, images = list_photo_pairs(answers.answers), [Path(record.path) for record in place_map.images]
    if format == "alicevision":
        count = write_view_pairs(out, found, numbers)
    elif format == "kapture":
        count = write_kapture_pairs(out, found, root or find_photo_root([*queries, *images]))
    elif format == "colmap":
        one_root = root or find_photo_root([*queries, *images])
        count = write_match_list(out, name_pairs(found, one_root, one_root))
    else:
        given = photos[0] if len(photos) == 1 and photos[0].is_dir() else find_photo_root(queries)
        of_queries, of_map, collision = roots_without_collisions(
            queries, images, root or given, root or find_photo_root(images)
        )
        write_pairs(out, name_pairs(found, of_queries, of_map))
        show_notes([] if collision is None else [collision])
        count = len(found)
    read = format_count(sum(one.error is None for one in answers), "photo")
    say(f"wrote {out}: {format_count(count, 'pair')} for {read}")
    end_with_errors(answers.answers)


@options.with_encoder
def export(
    map: options.MapPath,
    out: Annotated[Path, options.out_option(metavar="FILE", help="File to write.")],
    format: Annotated[
        Format, typer.Option(help="npz or faiss: descriptors; onnx-head: head only; onnx: with encoder; hloc: h5 file.")
    ] = "npz",
    queries: Annotated[
        list[Path] | None,
        options.photos_option(help="For hloc: write descriptors of these photos instead; repeat for more."),
    ] = None,
    root: Annotated[
        Path | None,
        options.folder_option(help="For hloc: name photos relative to this folder. \\[default: a common one]"),
    ] = None,
    calibration: options.CalibrationOption = None,
    dims: Annotated[
        int | None,
        typer.Option(min=4, metavar="D", help="For onnx: dimensions of a descriptor. \\[default: the head's]"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Export descriptors or the model for other programs.

    The score of an image is query descriptor · image descriptor + bias.
    """
    options.check_folder(map, "export")
    if format != "onnx" and dims is not None:
        raise BadSpec(f"--dims is for --format onnx, not {format}; remove it")
    if format == "onnx" and out.suffix == ".npz":
        raise BadSpec(
            f"--out {out}: --format onnx writes the descriptors of map images there; name the graph NAME.onnx"
        )
    if format != "hloc" and (queries or root is not None):
        raise BadSpec(f"--queries and --root are for --format hloc, not {format}; remove them")

    from tfa.exports.onnx_head import rows_path, write_onnx_head, write_onnx_place
    from tfa.exports.vectors import compile_map, write_faiss, write_npz
    from tfa.maps.state import DATABASE

    for path in (out, rows_path(out)) if format == "onnx" else (out,):
        options.check_new(path, force=force)
    place_map, progress = options.open_map(map, encoding, quiet=quiet)
    head = place_map.state.chosen(calibration).name
    holds = f"{'no calibration' if head == DATABASE else f'calibration {head}'}; without reranking and confidence"
    compiled = compile_map(place_map, calibration)
    if format == "hloc":
        count, width = _write_hloc(place_map, compiled, out, queries or [], root, progress=progress)
        say(f"wrote {out}: {format_count(count, 'photo')}, {width:,} dimensions; {holds}")
        return
    if format == "onnx":
        place_map.use_encoder(EncoderOptions(weights=encoding.weights))
        rows = write_onnx_place(out, place_map, compiled, dims=dims, int8=encoding.precision == "int8")
        count, width = rows.vectors.shape
        say(f"wrote {out}: photo to unit vector, {width:,} dimensions, {out.stat().st_size / 1e6:,.1f} MB")
        say(f"wrote {rows_path(out)}: {format_count(count, 'image')}, {width:,} dimensions; {holds}")
        return
    write = {"npz": write_npz, "faiss": write_faiss, "onnx-head": write_onnx_head}
    write[format](out, compiled)
    count, width = compiled.vectors.shape
    what = "tokens to query vector" if format == "onnx-head" else format_count(count, "image")
    say(f"wrote {out}: {what}, {width:,} dimensions; {holds}")


def _write_hloc(
    place_map: PlaceMap, compiled: CompiledMap, out: Path, queries: list[Path], root: Path | None, *, progress: bool
) -> tuple[int, int]:
    """Write descriptors of map images, or of queries; return their number and dimensions."""
    from tfa.exports.hloc import find_photo_root, query_vectors, roots_without_collisions, write_hloc_features

    photos, vectors = [Path(image) for image in compiled.images], compiled.with_bias
    if queries:
        paths = expand_folders(queries)
        *_, collision = roots_without_collisions(
            paths, photos, root or find_photo_root(paths), root or find_photo_root(photos)
        )
        if collision is not None:  # hloc would treat the two as one photo and never pair them
            raise BadSpec(
                f"{collision.partition(':')[0]}; pass a --root FOLDER that contains both, here and for the map's file"
            )
        encoded = place_map.encode_photos(paths, False, progress)
        photos, vectors = list(encoded.paths), query_vectors(compiled, encoded.tokens)
    write_hloc_features(out, photos, vectors, root or find_photo_root(photos))
    return len(photos), vectors.shape[1]
