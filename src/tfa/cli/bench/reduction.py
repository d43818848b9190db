"""`tfa bench reduction`: recall by fewer numbers an image and fewer bits a number."""

from __future__ import annotations

from typing import Annotated

import typer

from tfa.base.config import EncoderOptions
from tfa.cli import options
from tfa.cli.bench.run import load_all, loaded_encoder
from tfa.cli.console import delivered, print_text, wants_progress


@options.with_encoder
def reduction(
    dataset: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=PATH",
            help="A dataset and its folder, as for [bold]tfa bench run[/bold]; several are also one gallery.",
        ),
    ],
    encoder: options.Encoder = "dinov2-s14-focus",
    out: options.JsonFile = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """R@1 of the judged head by fewer numbers an image, of 32, 8, 4 and 1 bits, scored again or not. Markdown."""
    from tfa.base.progress import as_progress
    from tfa.bench.run import prepare
    from tfa.bench.studies.reduction import study_alone, study_union
    from tfa.bench.studies.reduction_page import page

    loaded = load_all(dataset, out=out)
    bars = as_progress(wants_progress(quiet))
    model = loaded_encoder(encoder, encoding)
    benches = [prepare(data, model, progress=bars) for data in loaded]
    galleries = [study_union(benches, progress=bars)] if len(benches) > 1 else []
    galleries += [study_alone(bench, progress=bars) for bench in benches]
    facts = {"encoder": model.id, "galleries": [one.to_dict() for one in galleries]}
    if not delivered(facts, out=out, json=json):
        print_text(page(galleries) + "\n")
