"""`tfa bench merge`: what merging the maps of two sessions is worth."""

from __future__ import annotations

from typing import Annotated

import typer

from tfa.cli import options
from tfa.cli.bench.run import load_all, loaded_encoder
from tfa.cli.console import delivered, print_text, wants_progress
from tfa.types import EncoderOptions


@options.with_encoder
def merge(
    dataset: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=PATH",
            help="A dataset and its folder, as for [bold]tfa bench run[/bold]; several. Its queries must show the "
            "places of its database frame by frame: query i that of image i.",
        ),
    ],
    encoder: options.EncoderOption = "dinov2-s14-focus",
    out: options.JsonFile = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Recall of two sessions' maps before and after [bold]tfa merge[/bold]. Markdown.

    Even photos of the database are the first session, even queries the second; the odd photos of both are asked of
    either map alone and of the merged one.
    """
    from tfa.bench.studies.sessions import check_sessions, page, study_sessions
    from tfa.core.progress import as_progress

    loaded = load_all(dataset, out=out)
    for data in loaded:
        check_sessions(data)
    bars = as_progress(wants_progress(quiet))
    model = loaded_encoder(encoder, encoding)
    studies = [study_sessions(data, model, encoding, progress=bars).to_dict() for data in loaded]
    if not delivered(studies, out=out, json=json):
        print_text(page(studies) + "\n")
