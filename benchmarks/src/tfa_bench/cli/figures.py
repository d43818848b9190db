"""`tfa bench figures`: pictures and one report from records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tfa.cli import options
from tfa.cli.console import counted, say


def figures(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS", help="Records, as written by [bold]tfa bench run[/bold].")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where report.html and the pictures are written.")],
    photos: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="The folder of a dataset whose photos may be shown; may be repeated."),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Draw this dataset only; may be repeated. All of them if not given."),
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(metavar="ID", help="Draw records under this encoder only. All if not given.")
    ] = None,
    reference: Annotated[
        str, typer.Option(metavar="HEAD", help="Head whose successes and failures are shown beside the others.")
    ] = "tfa",
    rows: Annotated[int, typer.Option(min=1, help="Queries in a grid of photos, at most.")] = 6,
) -> None:
    """Draw curves, evidence, score matrices and answers of records, as PNG files and in one HTML report."""
    folders = dict(_named_folder(text) for text in photos or [])
    options.check_writable(out / "report.html")

    from tfa_bench.figures.report import write_figures

    written = write_figures(
        results, out, photos=folders, datasets=dataset or None, encoder=encoder, reference=reference, rows=rows
    )
    say(f"{written[-1]}: {counted(len(written) - 1, 'picture')}, each also a PNG file below {out}")


def _named_folder(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise typer.BadParameter(f"{text!r} is not NAME=PATH, as in sped=datasets/SPED", param_hint="--photos")
    return name, Path(path)
