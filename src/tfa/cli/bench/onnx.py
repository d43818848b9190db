"""`tfa bench onnx`: what a map recognises as one ONNX file."""

from __future__ import annotations

from typing import Annotated

import typer

from tfa.cli import options
from tfa.cli.bench.run import load_all, loaded_encoder
from tfa.cli.console import delivered, print_text, wants_progress
from tfa.errors import BadSpec
from tfa.types import BuildOptions, EncoderOptions

LEAST = 4  # numbers of a vector, as of tfa export


def numbers(text: str) -> str:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= LEAST for part in parts):
        raise typer.BadParameter(f"{text!r} is not allowed; give whole numbers from {LEAST}, for example 256,512")
    return ",".join(parts)


@options.with_encoder
def onnx(
    dataset: Annotated[
        list[str],
        typer.Option(metavar="NAME=PATH", help="A dataset and its folder, as for [bold]tfa bench run[/bold]; several."),
    ],
    dims: Annotated[
        str,
        typer.Option(
            metavar="D,…",
            help="Numbers of a vector, as [bold]tfa export --dims[/bold] takes them.",
            callback=numbers,
        ),
    ] = "512,256,128",
    queries: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Ask so many queries, evenly spaced, rather than all.")
    ] = None,
    head: Annotated[
        str, typer.Option(metavar="KIND", help="Of the map: judged, second-order or paper, as for tfa build.")
    ] = BuildOptions.head,
    encoder: options.EncoderOption = "dinov2-s14-focus",
    out: options.JsonFile = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """R@1 of maps as one ONNX file that onnxruntime runs: all numbers and fewer, in floats and in 8 bits. Markdown.

    A map of each database is built and exported as [bold]tfa export --format onnx[/bold] does, without and with --fast.
    """
    from tfa.bench.studies.one_file import chosen_queries, page, study_file
    from tfa.core.progress import as_progress
    from tfa.encoders.int8 import import_onnxruntime
    from tfa.maps import PlaceMap

    if encoding.fast:
        raise BadSpec("tfa bench onnx measures files with and without --fast; leave it out")
    import_onnxruntime()  # before anything is encoded
    spec = BuildOptions.from_dict({"head": head, "storage": "float32", "rerank": False})
    loaded = load_all(dataset, out=out)
    bars = as_progress(wants_progress(quiet))
    model = loaded_encoder(encoder, encoding)
    wanted = [int(one) for one in dims.split(",")]
    studies = []
    for data in loaded:
        place_map = PlaceMap.build(list(data.database), encoder=model, map_spec=spec, options=encoding, progress=bars)
        asked = chosen_queries(data, queries)
        studies += [
            study_file(data, place_map, asked, wanted, fast=fast, progress=bars).to_dict() for fast in (False, True)
        ]
    if not delivered(studies, out=out, json=json):
        print_text(page(studies) + "\n")
