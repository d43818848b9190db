"""`tfa bench judge`: what the judge sees of every candidate, and what labels say of it."""

from __future__ import annotations

from typing import Annotated

import typer

from tfa.cli import options
from tfa.cli.bench.run import load_all, loaded_encoder
from tfa.cli.console import delivered, print_text, wants_progress
from tfa.types import EncoderOptions


@options.with_encoder
def judge(
    dataset: Annotated[
        list[str],
        typer.Option(metavar="NAME=PATH", help="A dataset and its folder, as for [bold]tfa bench run[/bold]; several."),
    ],
    encoder: options.EncoderOption = "dinov2-s14-focus",
    out: options.JsonFile = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Value ± error and true R@1 of every head before the judge: database only, and by 64 queries. Markdown."""
    from tfa.bench.heads.contract import Shared
    from tfa.bench.run import prepare
    from tfa.bench.studies.judge import page, study_judge
    from tfa.core.progress import as_progress

    loaded = load_all(dataset, out=out)
    bars = as_progress(wants_progress(quiet))
    model = loaded_encoder(encoder, encoding)
    studies = []
    for data in loaded:
        bench = prepare(data, model, progress=bars)
        studies.append(study_judge(bench, Shared(spec=bench.spec, device=encoding.device, progress=bars), bars))
    if not delivered([study.to_dict() for study in studies], out=out, json=json):
        print_text(page(studies) + "\n")
